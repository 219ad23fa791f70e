package syscalls

import (
	"fmt"
	"maps"
	"runtime"
	"runtime/debug"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rdmatest"
	"github.com/goverbs/verbs/tests/bench/deaf"
	"github.com/goverbs/verbs/uverbs"
)

// expect runs f times times and fails unless it makes the calls in want. If the scheduler
// preempts the thread it adds calls of its own, but it never removes any, so it is enough
// if one of several measurements is exact.
func expect(t *testing.T, c *Counter, what string, times int, want Calls, f func()) {
	t.Helper()
	var calls Calls
	for range 50 {
		var err error
		calls, err = c.During(func() {
			for range times {
				f()
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		delete(calls, unix.SYS_RT_SIGRETURN) // of the preemption signal
		if maps.Equal(calls, want) {
			return
		}
	}
	t.Errorf("%s, %d times, made calls %v, want %v", what, times, calls, want)
}

// TestCounter checks that the counter counts: otherwise a test that expects no calls
// proves nothing.
func TestCounter(t *testing.T) {
	labtest.RequireKernel(t)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	c := newCounter(t)
	expect(t, c, "getppid", 1000, Calls{unix.SYS_GETPPID: 1000}, func() { unix.Getppid() })
	expect(t, c, "nothing", 1000, Calls{}, func() {})
}

func newCounter(t *testing.T) *Counter {
	c := labtest.Must(NewCounter())(t)
	t.Cleanup(func() { c.Close() })
	// A garbage collection would make system calls, such as futex, on the thread.
	gc := debug.SetGCPercent(-1)
	t.Cleanup(func() { debug.SetGCPercent(gc) })
	return c
}

func TestFastPath(t *testing.T) {
	labtest.RequireKernel(t)
	labtest.Each(t, fastPath)
}

func fastPath(t *testing.T, device string) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	c := newCounter(t)
	const depth = 1000
	doorbell := Calls{unix.SYS_WRITE: 1}
	if labtest.PinsQueues(t, device) {
		doorbell = Calls{} // a store to a page of the device
	}
	a, b := labtest.NewPair(t, device, rdmatest.PairOptions{Cap: verbs.QPCap{MaxSendWR: depth, MaxRecvWR: 4 * depth, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: 64}})

	recv := []verbs.RecvWR{{SGL: []verbs.SGE{b.MR.SGE(0, 4096)}}}
	expect(t, c, "post_recv", depth/2, Calls{}, func() {
		if n, err := b.QP.PostRecv(recv...); n != 1 || err != nil {
			panic(err)
		}
	})
	// Fill the queue for the tests below.
	for n := 1; n == 1; {
		n, _ = b.QP.PostRecv(recv...)
	}

	wcs := make([]verbs.WC, 16)
	drain := func(cq *uverbs.CQ, want int) {
		for got := 0; got < want; {
			n := cq.Poll(wcs)
			for i := range wcs[:n] {
				if wcs[i].Status != verbs.WCSuccess {
					panic(wcs[i].Err())
				}
			}
			got += n
		}
	}
	for _, batch := range []int{1, 2, 16, 100} {
		wrs := make([]verbs.SendWR, batch)
		for i := range wrs {
			wrs[i] = verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled, SGL: []verbs.SGE{a.MR.SGE(0, 64)}}
			if i%2 == 1 {
				wrs[i].SGL, wrs[i].Inline = nil, []byte("inline")
			}
		}
		// Polling for all completions and posting receives make no call, so the
		// only one is that of posting sends.
		expect(t, c, fmt.Sprintf("post_send of %d, polling and post_recv", batch), 1, doorbell, func() {
			if n, err := a.QP.PostSend(wrs...); n != batch || err != nil {
				panic(err)
			}
			drain(a.SendCQ, batch)
			drain(b.RecvCQ, batch)
			for range batch { // to replace the consumed ones
				if n, err := b.QP.PostRecv(recv...); n != 1 || err != nil {
					panic(err)
				}
			}
		})
	}
	expect(t, c, "polling an empty CQ", 1000, Calls{}, func() { a.SendCQ.Poll(wcs) })
	if device == labtest.SIW {
		skipped(t, c, a, b)
	}
}

// TestMLX5 checks that mlx5 makes no call and allocates nothing, without an adapter.
func TestMLX5(t *testing.T) {
	labtest.RequireKernel(t)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	c := newCounter(t)
	const depth = 256
	dev, ctx, err := deaf.Open("deaf")
	if err != nil {
		t.Fatal(err)
	}
	labtest.Close(t, ctx)
	pd := labtest.Made(ctx.AllocPD())(t)
	cq := labtest.Made(ctx.CreateCQ(uverbs.CQOptions{Depth: 2 * depth}))(t)
	qp := labtest.Made(pd.CreateQP(uverbs.QPOptions{SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: depth, MaxRecvWR: depth, MaxSendSGE: 2, MaxRecvSGE: 2, MaxInline: 64}}))(t)
	for s := verbs.StateInit; s <= verbs.StateRTS; s++ {
		labtest.Check(t, qp.Modify(verbs.QPAttr{State: s}, verbs.MaskState))
	}
	var sent, received uint16
	wcs := make([]verbs.WC, 16)
	sgl := []verbs.SGE{{Addr: 1 << 20, Length: 64}, {Addr: 1 << 21, Length: 64}}
	for _, batch := range []int{1, 2, 16, 100} {
		sends, recvs := make([]verbs.SendWR, batch), make([]verbs.RecvWR, batch)
		for i := range sends {
			sends[i] = verbs.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGL: sgl[:1+i/2%2]}
			if i%2 == 1 {
				sends[i].SGL, sends[i].Inline = nil, []byte("inline")
			}
			recvs[i].SGL = sgl[:1+i%2]
		}
		work := func() {
			if n, err := qp.PostSend(sends...); n != batch || err != nil {
				panic(err)
			}
			if n, err := qp.PostRecv(recvs...); n != batch || err != nil {
				panic(err)
			}
			dev.CQs[0].Complete(batch, deaf.Request, deaf.Write, sent, 64)
			dev.CQs[0].Complete(batch, deaf.Receive, 0, received, 64)
			sent, received = sent+uint16(batch), received+uint16(batch)
			for got := 0; got < 2*batch; {
				n := cq.Poll(wcs)
				if n == 0 {
					panic("no completion")
				}
				got += n
			}
			cq.Poll(wcs)
		}
		expect(t, c, fmt.Sprintf("posting and polling %d", batch), 100, Calls{}, work)
		if n := testing.AllocsPerRun(100, work); n != 0 {
			t.Errorf("posting and polling %d allocates %v times", batch, n)
		}
	}
}

// skipped checks that posts to siw make no call while the kernel still processes the queue:
// a batch that it does not finish in its call saves the calls of the posts that follow.
func skipped(t *testing.T, c *Counter, a, b *rdmatest.Endpoint) {
	const posts = 100
	long := make([]verbs.SendWR, 300)
	for i := range long {
		long[i] = verbs.SendWR{Opcode: verbs.OpRDMAWrite, SGL: []verbs.SGE{a.MR.SGE(0, 64<<10)}, RemoteAddr: b.MR.Addr(), RKey: b.MR.RKey()}
	}
	last := slices.Clone(long[:1])
	last[0].Flags = verbs.SendSignaled
	post := func(wrs []verbs.SendWR) {
		if n, err := a.QP.PostSend(wrs...); n != len(wrs) || err != nil {
			panic(err)
		}
	}
	var fewest uint64 = posts
	for range 20 {
		calls, err := c.During(func() {
			post(long)
			for range posts {
				post(last[:1])
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		for got := 0; got < posts; {
			got += a.SendCQ.Poll(make([]verbs.WC, posts))
		}
		if n := calls[unix.SYS_WRITE]; n > posts+1 {
			t.Fatalf("%d posts made %d doorbells", posts+1, n)
		} else if fewest = min(fewest, n-1); fewest < posts/2 {
			break
		}
	}
	t.Logf("%d posts to a busy queue made %d doorbells", posts, fewest)
	if fewest >= posts {
		t.Error("none was spared")
	}
}

// TestAllocs is here, and not next to the code, to run on the same objects.
func TestAllocs(t *testing.T) {
	labtest.RequireBoth(t)
	labtest.Each(t, allocs)
}

func allocs(t *testing.T, device string) {
	const depth = 1 << 12
	withImm := verbs.OpSendImm
	if !labtest.Has(t, device, uverbs.FeatureImmediates) {
		withImm = verbs.OpSend
	}
	parts := min(2, labtest.Must(labtest.OpenDevice(t, device).QueryDevice())(t).MaxSGE) // of a receive
	a, b := labtest.NewPair(t, device, rdmatest.PairOptions{Cap: verbs.QPCap{MaxSendWR: depth, MaxRecvWR: depth, MaxSendSGE: 4, MaxRecvSGE: parts, MaxInline: 64}})
	if n := testing.AllocsPerRun(1000, func() {
		sgl := []verbs.SGE{b.MR.SGE(0, 64), b.MR.SGE(64, 64)}
		if _, err := b.QP.PostRecv(verbs.RecvWR{ID: 1, SGL: sgl[:parts]}); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("post_recv allocates %v times", n)
	}
	if n := testing.AllocsPerRun(400, func() {
		_, err := a.QP.PostSend([]verbs.SendWR{
			{ID: 1, Opcode: verbs.OpSend, Flags: verbs.SendSignaled, SGL: []verbs.SGE{a.MR.SGE(0, 8), a.MR.SGE(8, 8)}},
			{ID: 2, Opcode: withImm, Imm: 3, Inline: []byte("abc"), Args: &verbs.SendArgs{InlineList: [][]byte{[]byte("def")}}},
			{ID: 3, Opcode: verbs.OpRDMAWrite, RemoteAddr: b.MR.Addr(), RKey: b.MR.RKey(), SGL: []verbs.SGE{a.MR.SGE(0, 8)}},
			{ID: 4, Opcode: verbs.OpRDMARead, RemoteAddr: b.MR.Addr(), RKey: b.MR.RKey(), SGL: []verbs.SGE{a.MR.SGE(0, 8)}},
		}...)
		if err != nil {
			t.Fatal(err)
		}
		var wcs [4]verbs.WC // on the stack
		for n := 0; n < 1; {
			n += a.SendCQ.Poll(wcs[:])
		}
	}); n != 0 && !labtest.Allocates {
		t.Errorf("post_send and poll allocate %v times", n)
	}
	full := make([]verbs.RecvWR, 4*depth)
	if n := testing.AllocsPerRun(10, func() {
		if _, err := b.QP.PostRecv(full...); err != verbs.ErrQueueFull {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("a full queue allocates %v times", n)
	}
}
