package syscalls

import (
	"runtime"
	"runtime/debug"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

// during runs f many times and returns the calls it made.
func during(t *testing.T, c *Counter, times int, f func()) Calls {
	t.Helper()
	calls, err := c.During(func() {
		for range times {
			f()
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return calls
}

// TestCounter shows that the instrument sees what is there: a test of zero
// calls needs one that can count.
func TestCounter(t *testing.T) {
	labtest.Require(t)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	c := newCounter(t)
	calls := during(t, c, 1000, func() { unix.Getppid() })
	if calls[unix.SYS_GETPPID] != 1000 || calls.Total() != 1000 {
		t.Errorf("1000 calls of getppid were counted as %v", calls)
	}
	if calls := during(t, c, 1000, func() {}); calls.Total() != 0 {
		t.Errorf("nothing was counted as %v", calls)
	}
}

func newCounter(t *testing.T) *Counter {
	c, err := NewCounter()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	// A collection would make the thread call futex and the like for reasons
	// of its own.
	gc := debug.SetGCPercent(-1)
	t.Cleanup(func() { debug.SetGCPercent(gc) })
	return c
}

func TestFastPath(t *testing.T) {
	labtest.Require(t)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	c := newCounter(t)
	const depth = 1000
	a, b := labtest.NewPair(t, labtest.PairOptions{Cap: uverbs.QPCap{MaxSendWR: depth, MaxRecvWR: depth, MaxSendSGE: 2, MaxRecvSGE: 2, MaxInline: 64}})

	recv := []uverbs.RecvWR{{SGL: []uverbs.SGE{b.MR.SGE(0, 4096)}}}
	calls := during(t, c, depth, func() {
		if n, err := b.QP.PostRecv(recv); n != 1 || err != nil {
			panic(err)
		}
	})
	if calls.Total() != 0 {
		t.Errorf("%d times post_recv made calls: %v", depth, calls)
	}

	wcs := make([]uverbs.WC, 16)
	poll := func(cq *uverbs.CQ, want int) {
		t.Helper()
		got := 0
		calls := during(t, c, 1, func() {
			for got < want {
				n := cq.Poll(wcs)
				for i := range wcs[:n] {
					if wcs[i].Status != uverbs.WCSuccess {
						panic(wcs[i].Err())
					}
				}
				got += n
			}
		})
		if calls.Total() != 0 {
			t.Errorf("polling %d completions made calls: %v", want, calls)
		}
	}
	for _, batch := range []int{1, 2, 16, 100} {
		wrs := make([]uverbs.SendWR, batch)
		for i := range wrs {
			wrs[i] = uverbs.SendWR{Opcode: uverbs.OpSend, Flags: uverbs.SendSignaled, SGL: []uverbs.SGE{a.MR.SGE(0, 64)}}
			if i%2 == 1 {
				wrs[i].SGL, wrs[i].Inline = nil, []byte("inline")
			}
		}
		const times = 2
		calls := during(t, c, times, func() {
			if n, err := a.QP.PostSend(wrs); n != batch || err != nil {
				panic(err)
			}
		})
		if calls[unix.SYS_WRITE] != times || calls.Total() != times {
			t.Errorf("%d times post_send of %d made calls: %v", times, batch, calls)
		}
		poll(a.SendCQ, times*batch)
		poll(b.RecvCQ, times*batch)
	}
	if calls := during(t, c, 1000, func() { a.SendCQ.Poll(wcs) }); calls.Total() != 0 {
		t.Errorf("polling an empty CQ made calls: %v", calls)
	}
}

// TestAllocs is here, and not beside the code, to run on the same objects.
func TestAllocs(t *testing.T) {
	const depth = 1 << 12
	a, b := labtest.NewPair(t, labtest.PairOptions{Cap: uverbs.QPCap{MaxSendWR: depth, MaxRecvWR: depth, MaxSendSGE: 4, MaxRecvSGE: 4, MaxInline: 64}})
	if n := testing.AllocsPerRun(1000, func() {
		if _, err := b.QP.PostRecv([]uverbs.RecvWR{{ID: 1, SGL: []uverbs.SGE{b.MR.SGE(0, 64), b.MR.SGE(64, 64)}}}); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("post_recv allocates %v times", n)
	}
	if n := testing.AllocsPerRun(400, func() {
		_, err := a.QP.PostSend([]uverbs.SendWR{
			{ID: 1, Opcode: uverbs.OpSend, Flags: uverbs.SendSignaled, SGL: []uverbs.SGE{a.MR.SGE(0, 8), a.MR.SGE(8, 8)}},
			{ID: 2, Opcode: uverbs.OpSendImm, Imm: 3, Inline: []byte("abc"), InlineList: [][]byte{[]byte("def")}},
			{ID: 3, Opcode: uverbs.OpRDMAWrite, RemoteAddr: b.MR.Addr(), RKey: b.MR.RKey(), SGL: []uverbs.SGE{a.MR.SGE(0, 8)}},
			{ID: 4, Opcode: uverbs.OpRDMARead, RemoteAddr: b.MR.Addr(), RKey: b.MR.RKey(), SGL: []uverbs.SGE{a.MR.SGE(0, 8)}},
		})
		if err != nil {
			t.Fatal(err)
		}
		var wcs [4]uverbs.WC // on the stack
		for n := 0; n < 1; {
			n += a.SendCQ.Poll(wcs[:])
		}
	}); n != 0 {
		t.Errorf("post_send and poll allocate %v times", n)
	}
	full := make([]uverbs.RecvWR, 4*depth)
	if n := testing.AllocsPerRun(10, func() {
		if _, err := b.QP.PostRecv(full); err != uverbs.ErrQueueFull {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("a full queue allocates %v times", n)
	}
}
