package uverbs

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/extents"
	"github.com/goverbs/verbs/internal/host"
	"github.com/goverbs/verbs/mmap"
)

// Arena is registered memory from which a program takes blocks of any size and to which it returns
// them. Registering memory pins its pages, which takes longer than most transfers: register once,
// then transfer from blocks.
//
//	PD of mlx5_0  MR 1 ─┐      ┌ block ┐      ┌ block ┐
//	PD of mlx5_1  MR 1 ─┴ part [#######|......|#######|..........]
//	PD of mlx5_0  MR 2 ─┐
//	PD of mlx5_1  MR 2 ─┴ part [.................................]
//
// An arena consists of parts of at most [ArenaOptions.Part] bytes, each registered in every PD.
// Blocks are taken from the lowest address that has room for them, inside one part, without
// rounding but to [ArenaOptions.Align]: address-ordered first fit leaves long runs free while
// blocks of mixed sizes come and go.
//
// Peers that know an RKey of the arena reach all of its part. Between peers that must not read each
// other's blocks, use an arena for each in PDs of their own, or, except on rxe, type 2 memory windows.
//
// All methods may be called concurrently.
type Arena struct {
	size  int
	align int
	pds   []*PD
	parts []arenaPart

	mu      sync.Mutex
	blocks  int
	inUse   int          // bytes
	waiting []*arenaWait // in the order of their calls
	closed  bool
}

// arenaPart is memory that is registered at a time.
type arenaPart struct {
	mem  []byte
	mrs  []*MR // one in each PD
	free extents.List
}

// arenaWait is a call of Get that waits for n bytes.
type arenaWait struct {
	n     int
	block chan *Block // of one element; closed without one if the arena is closed
}

// ArenaOptions contains options for [PD.AllocArena]. The zero value suits most programs.
type ArenaOptions struct {
	// Rails are PDs of other devices, or further ones of this device, in which the same memory is
	// registered.
	Rails []*PD
	// PageSize allocates the memory as [MROptions] does.
	PageSize int
	// Part is how many bytes are registered at a time, and the longest block; 0 means 1 GiB, the
	// most that rxe registers, or less if a device's MaxMRSize is less.
	Part int
	// Align is a power of two of which addresses and lengths of blocks are multiples; 0 means 64, a
	// line of the processor's cache.
	Align int
	// Parallel is how many registrations run at the same time; 0 means 4. It shortens the set-up of
	// arenas of many GiB, most of which the kernel spends on clearing pages.
	Parallel int
}

// ArenaStats are the current figures of an [Arena].
type ArenaStats struct {
	Size    int // bytes of the arena
	InUse   int // bytes of blocks that are not returned
	Blocks  int // blocks that are not returned
	Waiting int // calls of Get that wait
}

const (
	defaultArenaPart     = maxRXE
	defaultArenaAlign    = 64
	defaultArenaParallel = 4
)

const opAllocArena = "allocate arena in"

// AllocArena registers size bytes of new, zeroed memory, rounded up to a multiple of Align and
// PageSize.
func (p *PD) AllocArena(size int, access verbs.Access, opt ArenaOptions) (*Arena, error) {
	a := &Arena{align: cmp.Or(opt.Align, defaultArenaAlign), pds: append([]*PD{p}, opt.Rails...)}
	part := cmp.Or(opt.Part, defaultArenaPart)
	unit := max(a.align, opt.PageSize, os.Getpagesize())
	switch {
	case size <= 0:
		return nil, p.obj.fail(opAllocArena, fmt.Errorf("size of %d bytes: %w", size, syscall.EINVAL))
	case a.align < 0 || a.align&(a.align-1) != 0:
		return nil, p.obj.fail(opAllocArena, fmt.Errorf("alignment %d is no power of two: %w", a.align, syscall.EINVAL))
	case part < 0 || part%unit != 0:
		return nil, p.obj.fail(opAllocArena, fmt.Errorf("part of %d bytes is no multiple of %d, the larger of Align and the pages' size: %w", part, unit, syscall.EINVAL))
	case opt.Parallel < 0:
		return nil, p.obj.fail(opAllocArena, fmt.Errorf("%d registrations at a time: %w", opt.Parallel, syscall.EINVAL))
	}
	if opt.Part == 0 {
		for _, pd := range a.pds {
			if most := pd.ctx.dev.Attr.MaxMRSize; most < uint64(part) {
				part = max(int(most)/unit*unit, unit)
			}
		}
	}
	a.size = (size + unit - 1) / unit * unit
	spare := max(a.align-max(opt.PageSize, os.Getpagesize()), 0) // memory begins at a multiple of the page's size alone
	buf, err := mmap.NewBuffer(a.size+spare, mmap.BufferOptions{PageSize: opt.PageSize})
	if err != nil {
		return nil, p.obj.fail(opAllocArena, err)
	}
	skip := int(-buf.Addr() & uint64(a.align-1))
	for rest := buf.Bytes()[skip:][:a.size]; len(rest) > 0; { // slices.Chunk's index would overflow at 2 GiB of 32 bits
		mem := rest[:min(part, len(rest))]
		rest = rest[len(mem):]
		a.parts = append(a.parts, arenaPart{mem: mem, mrs: make([]*MR, len(a.pds)), free: extents.New(len(mem))})
	}
	if err := a.register(buf, access, cmp.Or(opt.Parallel, defaultArenaParallel)); err != nil {
		return nil, err
	}
	return a, nil
}

// register registers each part in each PD, parallel of them at a time. The MRs share the memory:
// whichever is destroyed last frees it, also if it is the collector that closes them with their PD.
func (a *Arena) register(buf *mmap.Buffer, access verbs.Access, parallel int) error {
	var refs atomic.Int64
	refs.Store(1) // this call's
	free := func() error {
		if refs.Add(-1) > 0 {
			return nil
		}
		return buf.Close()
	}
	type job struct{ part, pd int }
	jobs := make(chan job)
	errs := make([]error, parallel)
	var wg sync.WaitGroup
	for i := range parallel {
		wg.Go(func() {
			for j := range jobs {
				if errs[i] != nil {
					continue
				}
				part := &a.parts[j.part]
				refs.Add(1) // of the MR; without one register frees it
				part.mrs[j.pd], errs[i] = a.pds[j.pd].register(part.mem, mmap.Addr(part.mem), nil, access, free)
			}
		})
	}
	// A part's first registration brings its pages into memory, so the parts of one PD go first.
	for pd := range a.pds {
		for part := range a.parts {
			jobs <- job{part, pd}
		}
	}
	close(jobs)
	wg.Wait()
	err := cmp.Or(errs...)
	if err != nil {
		a.closeMRs()
	}
	free()
	return err
}

// Get takes a block of n bytes, rounded up to a multiple of Align, and waits while there is no room
// for it. Waiting calls are served in their order, so that small blocks do not starve long ones. The
// block's memory is not cleared. An error of the context says how much of the arena is in use.
func (a *Arena) Get(ctx context.Context, n int) (*Block, error) {
	a.mu.Lock()
	b, err := a.take(n)
	if b != nil || err != nil {
		a.mu.Unlock()
		return b, err
	}
	w := &arenaWait{n: n, block: make(chan *Block, 1)}
	a.waiting = append(a.waiting, w)
	a.mu.Unlock()
	select {
	case b := <-w.block:
		return a.given(b)
	case <-ctx.Done():
		return a.leave(ctx, w)
	}
}

// leave ends the wait of a call of Get, unless the call has got its block just now.
func (a *Arena) leave(ctx context.Context, w *arenaWait) (*Block, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	i := slices.Index(a.waiting, w)
	if i < 0 {
		return a.given(<-w.block)
	}
	a.waiting = slices.Delete(a.waiting, i, i+1)
	a.serve() // those behind may need less
	return nil, a.fail("get block from", fmt.Errorf("waiting for %d bytes, while %d blocks have %d of %d: %w", w.n, a.blocks, a.inUse, a.size, host.Ended(ctx)))
}

// given returns what a wait has ended with: a block, or none as the arena is closed.
func (a *Arena) given(b *Block) (*Block, error) {
	if b == nil {
		return nil, a.fail("get block from", verbs.ErrClosed)
	}
	return b, nil
}

// TryGet is [Arena.Get] without waiting: it returns nil, and no error, if there is no room now or
// others wait.
func (a *Arena) TryGet(n int) (*Block, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.take(n)
}

// take takes a block, or returns nil if there is no room or others wait.
func (a *Arena) take(n int) (*Block, error) {
	switch {
	case a.closed:
		return nil, a.fail("get block from", verbs.ErrClosed)
	case n <= 0 || n > len(a.parts[0].mem):
		return nil, a.fail("get block from", fmt.Errorf("%w: %d bytes: a block has 1 to %d", verbs.ErrRange, n, len(a.parts[0].mem)))
	case len(a.waiting) > 0:
		return nil, nil
	}
	return a.find(n), nil
}

// find takes a block, or returns nil if no part has room.
func (a *Arena) find(n int) *Block {
	size := (n + a.align - 1) &^ (a.align - 1)
	for i := range a.parts {
		part := &a.parts[i]
		if at, ok := part.free.Take(size); ok {
			a.blocks++
			a.inUse += size
			return &Block{a: a, part: part, mem: part.mem[at : at+n : at+size], at: at}
		}
	}
	return nil
}

// serve gives blocks to those that wait, in their order.
func (a *Arena) serve() {
	for len(a.waiting) > 0 {
		b := a.find(a.waiting[0].n)
		if b == nil {
			return
		}
		a.waiting[0].block <- b
		a.waiting = slices.Delete(a.waiting, 0, 1)
	}
}

// Stats returns the current figures.
func (a *Arena) Stats() ArenaStats {
	a.mu.Lock()
	defer a.mu.Unlock()
	return ArenaStats{Size: a.size, InUse: a.inUse, Blocks: a.blocks, Waiting: len(a.waiting)}
}

// Close deregisters and frees the memory, and ends waiting calls of Get with an error. While blocks
// are not returned it changes nothing, and its error matches [verbs.ErrInUse].
func (a *Arena) Close() error {
	if a == nil {
		return verbs.ErrClosed
	}
	if err := a.end(); err != nil {
		return err
	}
	return a.closeMRs()
}

// end ends calls of Get, unless there are blocks.
func (a *Arena) end() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.blocks > 0 {
		return a.fail("close", fmt.Errorf("%w: %d blocks with %d bytes are not returned", verbs.ErrInUse, a.blocks, a.inUse))
	}
	a.closed = true
	for _, w := range a.waiting {
		close(w.block)
	}
	a.waiting = nil
	return nil
}

// closeMRs closes what has been registered. It may be called again.
func (a *Arena) closeMRs() (err error) {
	for i := range a.parts {
		for _, mr := range a.parts[i].mrs {
			if mr != nil {
				err = cmp.Or(err, mr.Close())
			}
		}
	}
	return err
}

func (a *Arena) fail(op string, err error) error {
	return &verbs.Error{Op: op, Object: fmt.Sprintf("arena of %d bytes", a.size), Device: a.pds[0].ctx.device.Name, Err: err}
}

// Block is memory of an [Arena]. One goroutine uses it at a time.
type Block struct {
	a    *Arena
	part *arenaPart
	mem  []byte // its capacity is what the block takes of the arena
	at   int    // in the part
}

// Bytes returns the block's memory, or nil after Put.
func (b *Block) Bytes() []byte { return b.mem }

// Addr returns the address of the first byte, as SGEs and peers use it.
func (b *Block) Addr() uint64 { return b.part.mrs[0].addr + uint64(b.at) }

// MR returns the region in pd that has the block's memory, from its offset off on: its LKey and
// RKey are those of the block. It panics if the arena is not registered in pd.
func (b *Block) MR(pd *PD) (mr *MR, off int) {
	i := slices.Index(b.a.pds, pd)
	if i < 0 {
		panic(fmt.Sprintf("uverbs: the arena is not registered in %v on %s", pd.obj.name, pd.ctx.device.Name))
	}
	return b.part.mrs[i], b.at
}

// SGE returns an SGE for n bytes of the block from off, for queues of pd. It panics, as slicing
// does, if they are not inside.
func (b *Block) SGE(pd *PD, off, n int) verbs.SGE {
	_ = b.mem[off : off+n]
	mr, at := b.MR(pd)
	return mr.SGE(at+off, n)
}

// Put returns the block to its arena. No posted request may use its memory any more, nor may a peer
// that knows its RKey. A second call does nothing.
func (b *Block) Put() {
	a := b.a
	a.mu.Lock()
	defer a.mu.Unlock()
	if b.mem == nil {
		return
	}
	size := cap(b.mem)
	b.mem = nil
	b.part.free.Put(b.at, size)
	a.blocks--
	a.inUse -= size
	a.serve()
}
