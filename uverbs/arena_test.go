//go:build linux

package uverbs_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/rdmatest"
	"github.com/goverbs/verbs/uverbs"
)

// TestArenaTransfer writes from a block in one protection domain to a block of the same arena in
// another one: each block has the keys of both.
func TestArenaTransfer(t *testing.T) {
	labtest.RequireBoth(t)
	labtest.Each(t, func(t *testing.T, device string) {
		a, b := labtest.NewPair(t, device, rdmatest.PairOptions{Events: true})
		arena := labtest.Made(a.PD.AllocArena(256<<10, verbs.AccessLocalWrite|verbs.AccessRemoteWrite, uverbs.ArenaOptions{Rails: []*uverbs.PD{b.PD}, Part: 64 << 10}))(t)
		const n = 40000 // one in each part
		from, to := get(t, arena, n), get(t, arena, n)
		copy(from.Bytes(), labtest.RandomBytes(1, n))
		mr, off := to.MR(b.PD)
		if mr.Addr()+uint64(off) != to.Addr() {
			t.Errorf("the block is at %#x, its region at %#x+%d", to.Addr(), mr.Addr(), off)
		}
		_, err := a.QP.PostSend(verbs.SendWR{
			Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGL: []verbs.SGE{from.SGE(a.PD, 0, n)}, RemoteAddr: to.Addr(), RKey: mr.RKey(),
		})
		labtest.Check(t, err)
		if wc, err := a.SendCQ.Next(labtest.Within(t, 10*time.Second)); err != nil || wc.Status != verbs.WCSuccess {
			t.Fatal(wc, err)
		}
		if !bytes.Equal(from.Bytes(), to.Bytes()) {
			t.Error("the memory differs")
		}
		from.Put()
		to.Put()
	})
}

func get(t testing.TB, a *uverbs.Arena, n int) *uverbs.Block {
	t.Helper()
	return labtest.Must(a.Get(labtest.Within(t, 10*time.Second), n))(t)
}

func newArena(t testing.TB, size int, opt uverbs.ArenaOptions) *uverbs.Arena {
	t.Helper()
	pd := labtest.Made(labtest.Open(t).AllocPD())(t)
	return labtest.Made(pd.AllocArena(size, verbs.AccessLocalWrite, opt))(t)
}

// TestArenaBlocks takes and returns blocks of random sizes in several goroutines, each of which
// finds in its blocks what it has written there.
func TestArenaBlocks(t *testing.T) {
	arena := newArena(t, 1<<20, uverbs.ArenaOptions{Part: 256 << 10})
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 1))
			held := map[*uverbs.Block]byte{}
			for round := range 400 {
				size := 1 + r.IntN(1<<r.IntN(17))
				if b, err := arena.TryGet(size); err != nil {
					t.Error(err)
				} else if b != nil {
					if len(b.Bytes()) != size || cap(b.Bytes()) < size || b.Addr()%64 != 0 {
						t.Errorf("block of %d bytes: %d, capacity %d, at %#x", size, len(b.Bytes()), cap(b.Bytes()), b.Addr())
					}
					held[b] = byte(i<<4 | round&15)
					for j := range b.Bytes() {
						b.Bytes()[j] = held[b]
					}
				}
				for b, x := range held {
					if r.IntN(4) == 0 {
						if n := bytes.Count(b.Bytes(), []byte{x}); n != len(b.Bytes()) {
							t.Errorf("%d of %d bytes are others'", len(b.Bytes())-n, len(b.Bytes()))
						}
						b.Put()
						b.Put() // does nothing
						delete(held, b)
					}
				}
			}
			for b := range held {
				b.Put()
			}
		})
	}
	wg.Wait()
	if s := arena.Stats(); s != (uverbs.ArenaStats{Size: 1 << 20}) {
		t.Errorf("in the end: %+v", s)
	}
	for range 4 { // nothing is left between the free runs
		t.Cleanup(get(t, arena, 256<<10).Put)
	}
	if b, err := arena.TryGet(1); b != nil || err != nil {
		t.Error("the arena had more room than it has:", b, err)
	}
}

// TestArenaWaits: calls of Get are served in their order, and one that gives up lets those behind
// it pass.
func TestArenaWaits(t *testing.T) {
	arena := newArena(t, 64<<10, uverbs.ArenaOptions{})
	all := get(t, arena, 64<<10)
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := arena.Get(short, 100)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "waiting for 100 bytes, while 1 blocks have 65536 of 65536") {
		t.Error(err)
	}

	why := errors.New("no longer needed")
	long, giveUp := context.WithCancelCause(t.Context())
	type result struct {
		name  string
		block *uverbs.Block
		err   error
	}
	results := make(chan result, 3)
	wait := func(ctx context.Context, name string, n, waiting int) {
		go func() {
			b, err := arena.Get(ctx, n)
			results <- result{name, b, err}
		}()
		labtest.Until(t, name, func() bool { return arena.Stats().Waiting == waiting })
	}
	wait(long, "long", 64<<10, 1)
	wait(t.Context(), "half", 32<<10, 2)
	if b, err := arena.TryGet(1); b != nil || err != nil {
		t.Error("TryGet overtakes calls of Get:", b, err)
	}
	all.Put()
	first := <-results
	if first.name != "long" || first.err != nil {
		t.Fatal("first is", first)
	}
	wait(long, "long", 64<<10, 2)
	wait(t.Context(), "small", 100, 3)
	first.block.Put() // half has its place; small waits behind long
	half := <-results
	if half.name != "half" || half.err != nil {
		t.Fatal("second is", half)
	}
	if n := arena.Stats().Waiting; n != 2 {
		t.Errorf("%d wait, not the long one and the small one behind it", n)
	}
	giveUp(why)
	got := []result{<-results, <-results}
	slices.SortFunc(got, func(a, b result) int { return strings.Compare(a.name, b.name) })
	if !errors.Is(got[0].err, why) || !errors.Is(got[0].err, context.Canceled) || got[1].err != nil {
		t.Error(got)
	}
	half.block.Put()
	got[1].block.Put()
}

// TestArenaClose: an arena whose blocks are in use stays as it is; calls that wait end with it.
func TestArenaClose(t *testing.T) {
	ctx := labtest.Open(t)
	pd := labtest.Made(ctx.AllocPD())(t)
	arena := labtest.Made(pd.AllocArena(64<<10, 0, uverbs.ArenaOptions{}))(t)
	b := get(t, arena, 100)
	if err := arena.Close(); !errors.Is(err, verbs.ErrInUse) || !strings.Contains(err.Error(), "1 blocks with 128 bytes are not returned") {
		t.Error(err)
	}
	if err := pd.Close(); !errors.Is(err, verbs.ErrInUse) {
		t.Error("closing its protection domain:", err)
	}
	get(t, arena, 8).Put()
	b.Put()
	if b.Bytes() != nil {
		t.Error("a returned block has memory")
	}
	other := labtest.Must(pd.AllocArena(64<<10, 0, uverbs.ArenaOptions{}))(t)
	labtest.Check(t, other.Close(), other.Close())
	if _, err := other.Get(t.Context(), 1); !errors.Is(err, verbs.ErrClosed) {
		t.Error(err)
	}
	if err := (*uverbs.Arena)(nil).Close(); !errors.Is(err, verbs.ErrClosed) {
		t.Error(err)
	}
}

// TestArenaAlign: addresses of blocks are multiples of an Align that is larger than a page, in every
// part.
func TestArenaAlign(t *testing.T) {
	const align = 4 << 20
	for range 2 {
		arena := newArena(t, 2*align, uverbs.ArenaOptions{Align: align, Part: align})
		for range 2 {
			b := get(t, arena, 100)
			defer b.Put()
			if at := mmap.Addr(b.Bytes()); at != b.Addr() || at%align != 0 {
				t.Errorf("a block at %#x, which has %#x: want multiples of %#x", b.Addr(), at, align)
			}
		}
		if s := arena.Stats(); s.Size != 2*align || s.InUse != 2*align {
			t.Errorf("%+v", s)
		}
		between := labtest.Must(mmap.NewBuffer(2<<20, mmap.BufferOptions{}))(t) // what comes next begins elsewhere
		defer between.Close()
	}
}

// TestArenaRefusals: options that cannot be are refused with their limits, and a part that cannot be
// registered leaves nothing behind.
func TestArenaRefusals(t *testing.T) {
	ctx := labtest.Open(t)
	pd := labtest.Made(ctx.AllocPD())(t)
	closed := labtest.Must(ctx.AllocPD())(t)
	labtest.Check(t, closed.Close())
	for _, c := range []struct {
		size int
		opt  uverbs.ArenaOptions
		want error
		text string
	}{
		{0, uverbs.ArenaOptions{}, syscall.EINVAL, "size of 0 bytes"},
		{4096, uverbs.ArenaOptions{Align: 48}, syscall.EINVAL, "alignment 48 is no power of two"},
		{4096, uverbs.ArenaOptions{Part: 4100}, syscall.EINVAL, "part of 4100 bytes is no multiple of 4096"},
		{4096, uverbs.ArenaOptions{Parallel: -1}, syscall.EINVAL, "-1 registrations at a time"},
		{4096, uverbs.ArenaOptions{PageSize: 4096}, syscall.EINVAL, "0, 2 MiB and 1 GiB"},
		{1 << 20, uverbs.ArenaOptions{Part: 64 << 10, Rails: []*uverbs.PD{closed}}, verbs.ErrClosed, ""},
		{4096, uverbs.ArenaOptions{Rails: []*uverbs.PD{closed, closed, closed, closed}}, verbs.ErrClosed, ""}, // several registrations fail at a time
	} {
		a, err := pd.AllocArena(c.size, 0, c.opt)
		if !errors.Is(err, c.want) || !strings.Contains(fmt.Sprint(err), c.text) {
			t.Errorf("%+v: %v", c.opt, err)
		}
		if err == nil {
			a.Close()
		}
	}
	arena := labtest.Made(pd.AllocArena(3<<20, 0, uverbs.ArenaOptions{Part: 1 << 20}))(t)
	for _, n := range []int{-1, 0, 1<<20 + 1} {
		if _, err := arena.Get(t.Context(), n); !errors.Is(err, verbs.ErrRange) || !strings.Contains(err.Error(), "a block has 1 to 1048576") {
			t.Errorf("%d: %v", n, err)
		}
	}
	labtest.Check(t, arena.Close(), pd.Close()) // which no MR of a refused arena hinders
}

var arenaSize = flag.Int("arena", 1<<30, "bytes that BenchmarkAllocArena registers")

// BenchmarkAllocArena registers memory by 1, 2 and 4 goroutines.
func BenchmarkAllocArena(b *testing.B) {
	pd := labtest.Made(labtest.Open(b).AllocPD())(b)
	for _, parallel := range []int{1, 2, 4} {
		b.Run(fmt.Sprint(parallel), func(b *testing.B) {
			for b.Loop() {
				a := labtest.Must(pd.AllocArena(*arenaSize, verbs.AccessLocalWrite, uverbs.ArenaOptions{Part: 64 << 20, Parallel: parallel}))(b)
				labtest.Check(b, a.Close())
			}
		})
	}
}

// BenchmarkArena takes and returns a block, among 1,000 of mixed sizes.
func BenchmarkArena(b *testing.B) {
	arena := newArena(b, 64<<20, uverbs.ArenaOptions{})
	for i := range 1000 {
		x := get(b, arena, 1+i*37%30000)
		if i%3 == 0 {
			defer x.Put()
			continue
		}
		b.Cleanup(x.Put)
	}
	b.ReportAllocs()
	for b.Loop() {
		x, _ := arena.TryGet(8 << 10)
		x.Put()
	}
}
