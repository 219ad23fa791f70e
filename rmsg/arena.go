package rmsg

import (
	"log/slog"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/extents"
	"github.com/goverbs/verbs/uverbs"
)

// arena is a connection's memory, in a PD of its own: a peer that guesses keys reaches no memory of
// other connections.
//
//	receives  one region with a slot for each receive, all posted
//	staging   one region of SendBuffer bytes, made by the first small message
//	regions   for each message above Eager, or without room in staging
//
// It is released when the connection has ended and all its buffers have been freed.
type arena struct {
	c   *Conn
	dev *device
	pd  *uverbs.PD

	registered atomic.Int64 // bytes

	mu      sync.Mutex
	refs    int // the connection, and the buffers that the program holds
	slots   *uverbs.MR
	staging *uverbs.MR
	room    extents.List // free in staging
	free    []*Buffer    // Send's buffers, for reuse
	copied  int          // bytes that Send has copied and that are not sent yet
	wakeAt  int          // a Send waits until copied is at most this; -1 if none does
}

func newArena(c *Conn, dev *device) (*arena, error) {
	pd, err := dev.ctx.AllocPD()
	if err != nil {
		return nil, err
	}
	return &arena{c: c, dev: dev, pd: pd, refs: 1, wakeAt: -1}, nil
}

func (a *arena) alloc(size int, access verbs.Access) (*uverbs.MR, error) {
	mr, err := a.pd.AllocMR(size, access, uverbs.MROptions{})
	if err == nil {
		a.registered.Add(int64(size))
	}
	return mr, err
}

// close closes a region made by alloc.
func (a *arena) close(mr *uverbs.MR) {
	a.registered.Add(-int64(mr.Len()))
	if err := mr.Close(); err != nil {
		a.c.l.logConn(slog.LevelWarn, "closing memory failed", a.c, err)
	}
}

// receives allocates the slots of the connection's receives.
func (a *arena) receives(n int) ([]*Buffer, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	room := headerSize + a.c.l.opt.Eager
	size := (room + 7) &^ 7
	mr, err := a.alloc(n*size, verbs.AccessLocalWrite)
	if err != nil {
		return nil, err
	}
	a.slots = mr
	bufs := make([]*Buffer, n)
	for i := range bufs {
		at := i * size
		bufs[i] = &Buffer{c: a.c, mr: mr, mem: mr.Bytes()[at : at+room : at+room], at: at, source: fromSlot, slot: i}
		bufs[i].set(Released)
	}
	return bufs, nil
}

// get returns a buffer with status Free for n bytes to send. If copies is set, it is for Send, and
// get returns ErrWouldBlock while Send must wait until earlier ones are sent.
func (a *arena) get(n int, copies bool) (*Buffer, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.refs == 0 {
		return nil, verbs.ErrClosed
	}
	var b *Buffer
	var err error
	most := a.c.l.opt.Window
	if n <= a.c.out.eager {
		most = a.c.l.opt.SendBuffer
		b, err = a.getStaged(n, copies)
	}
	if b == nil && err == nil {
		if copies && a.copied > 0 && (n <= a.c.out.eager || a.copied+n > most) {
			a.wakeAt = max(a.wakeAt, a.copied-most/2, 0) // wake Send when several have been sent
			return nil, ErrWouldBlock
		}
		b, err = a.region(n, n > a.c.out.eager)
	}
	if err != nil {
		return nil, err
	}
	if b.freeWhenSent = copies; copies {
		a.copied += len(b.mem)
	}
	a.refs++
	b.n = n
	b.set(Free)
	return b, nil
}

// getStaged returns a buffer in the staging region, or nil if there is no room.
func (a *arena) getStaged(n int, copies bool) (*Buffer, error) {
	size, all := inBlocks(headerSize+n), a.c.l.opt.SendBuffer&^(blockSize-1)
	if size > all {
		return nil, nil
	}
	if a.staging == nil {
		mr, err := a.alloc(all, verbs.AccessLocalWrite)
		if err != nil {
			return nil, err
		}
		a.staging, a.room = mr, extents.New(all)
	}
	at, ok := a.room.Take(size)
	if !ok {
		return nil, nil
	}
	end := at + min(size, headerSize+a.c.out.eager)
	b := new(Buffer)
	if last := len(a.free) - 1; copies && last >= 0 {
		b, a.free = a.free[last], a.free[:last]
	}
	*b = Buffer{c: a.c, mr: a.staging, mem: a.staging.Bytes()[at:end:end], at: at, source: fromStaging}
	return b, nil
}

// blockSize is what buffers in the staging region are multiples of, so that it has few runs of free
// memory.
const blockSize = 512

func inBlocks(n int) int { return (n + blockSize - 1) &^ (blockSize - 1) }

// region returns a buffer for n bytes in a separate region.
func (a *arena) region(n int, readable bool) (*Buffer, error) {
	size := regionSize(headerSize + n)
	mr := a.c.l.cache.take(a, size, readable)
	if mr == nil {
		access := verbs.AccessLocalWrite
		if readable {
			access |= verbs.AccessRemoteRead
		}
		var err error
		if mr, err = a.alloc(size, access); err != nil {
			return nil, err
		}
	}
	mem := mr.Bytes()
	if !readable && n <= a.c.out.eager {
		mem = mem[:min(size, headerSize+a.c.out.eager)]
	}
	return &Buffer{c: a.c, mr: mr, mem: mem, source: fromRegion, readable: readable}, nil
}

// regionSize rounds up by an eighth at most, so that other messages can reuse a region.
func regionSize(n int) int {
	step := max(4096, 1<<bits.Len(uint(n-1))>>4)
	return (n + step - 1) / step * step
}

// incoming returns a buffer for an announced message of n bytes.
func (a *arena) incoming(n int) (*Buffer, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	b, err := a.region(n, false)
	if err == nil {
		b.mem = b.mr.Bytes()
		b.n = n
		a.refs++
	}
	return b, err
}

func (a *arena) put(b *Buffer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch b.source {
	case fromHeap: // holds no reference
		return
	case fromSlot: // the connection has posted it again, or has ended
	case fromStaging:
		a.room.Put(b.at, inBlocks(len(b.mem)))
	case fromRegion:
		a.c.l.cache.put(a, b.mr, b.readable)
	}
	if b.freeWhenSent {
		a.copied -= len(b.mem)
		if a.copied <= a.wakeAt {
			a.wakeAt = -1
			signal(a.c.out.sendRoom)
		}
		if b.source == fromStaging {
			a.free = append(a.free, b)
		}
	}
	a.unref()
}

// ref takes a reference for a buffer that the program receives without get.
func (a *arena) ref() {
	a.mu.Lock()
	a.refs++
	a.mu.Unlock()
}

// release drops the reference of the connection.
func (a *arena) release() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.unref()
}

func (a *arena) unref() {
	if a.refs--; a.refs > 0 {
		return
	}
	a.c.l.cache.drop(a)
	for _, mr := range []*uverbs.MR{a.slots, a.staging} {
		if mr != nil {
			a.close(mr)
		}
	}
	a.free = nil
	if err := a.pd.Close(); err != nil {
		a.c.l.logConn(slog.LevelWarn, "closing the protection domain failed", a.c, err)
	}
	a.dev.unref()
}

// cache holds the regions of freed messages of all arenas of a loop, up to a limit, and for
// cacheTime at most. Only its arena can reuse a region.
type cache struct {
	mu      sync.Mutex
	limit   int
	bytes   int
	regions []*cached // the oldest first
}

type cached struct {
	a        *arena
	mr       *uverbs.MR
	readable bool
	expiry   *time.Timer
}

const cacheTime = time.Second

// take removes and returns a region of the arena with that size, or nil.
func (c *cache) take(a *arena, size int, readable bool) *uverbs.MR {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, r := range slices.Backward(c.regions) {
		if r.a == a && r.mr.Len() == size && r.readable == readable {
			r.expiry.Stop()
			c.regions = slices.Delete(c.regions, i, i+1)
			c.bytes -= size
			return r.mr
		}
	}
	return nil
}

// put caches a region, or closes it if it is above the limit.
func (c *cache) put(a *arena, mr *uverbs.MR, readable bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if mr.Len() > c.limit {
		a.close(mr)
		return
	}
	c.evict(func(*cached) bool { return c.bytes+mr.Len() > c.limit })
	r := &cached{a: a, mr: mr, readable: readable}
	r.expiry = time.AfterFunc(cacheTime, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.evict(func(x *cached) bool { return x == r })
	})
	c.regions = append(c.regions, r)
	c.bytes += mr.Len()
}

func (c *cache) drop(a *arena) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.evict(func(r *cached) bool { return r.a == a })
}

// evict closes the regions for which which returns true, from the oldest on.
func (c *cache) evict(which func(*cached) bool) {
	c.regions = slices.DeleteFunc(c.regions, func(r *cached) bool {
		if !which(r) {
			return false
		}
		r.expiry.Stop()
		c.bytes -= r.mr.Len()
		r.a.close(r.mr)
		return true
	})
}
