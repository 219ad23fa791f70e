//go:build linux

package uverbs_test

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rdmatest"
	"github.com/goverbs/verbs/uverbs"
)

// kernelObjects returns the number of RDMA objects in the kernel.
func kernelObjects(t *testing.T) (n int) {
	t.Helper()
	for _, counts := range labtest.Must(labtest.Resources())(t) {
		for _, c := range counts {
			n += c
		}
	}
	return n
}

// TestUnreachableClosed drops objects without closing them: collections release all of
// them, in an order that the kernel accepts.
func TestUnreachableClosed(t *testing.T) {
	labtest.RequireBoth(t)
	before := kernelObjects(t)
	makeObjects := func() []any {
		ctx := labtest.Must(uverbs.Open(""))(t)
		pd := labtest.Must(ctx.AllocPD())(t)
		ch := labtest.Must(ctx.CreateCompChannel())(t)
		cq := labtest.Must(ctx.CreateCQ(uverbs.CQOptions{Depth: 10, Channel: ch}))(t)
		labtest.Must(pd.AllocMR(4096, verbs.AccessAll, uverbs.MROptions{}))(t)
		labtest.Must(pd.RegisterMR(make([]byte, 10000), verbs.AccessAll, uverbs.MROptions{}))(t)
		qp := labtest.Must(pd.CreateQP(uverbs.QPOptions{SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1}}))(t)
		return []any{qp}
	}
	var reachable [][]any
	n := labtest.Rounds(10, 3)
	for range n {
		reachable = append(reachable, makeObjects())
	}
	if kernelObjects(t) < before+n*6 {
		t.Error("the kernel does not count what was made")
	}
	runtime.KeepAlive(reachable)
	reachable = nil
	labtest.Until(t, "the release of the objects", func() bool {
		runtime.GC()
		return kernelObjects(t) == before
	})
}

// TestUnreachableMRStaysOpen checks that a region without pointers to it lives as long as
// its PD: a peer may be using it.
func TestUnreachableMRStaysOpen(t *testing.T) {
	a, b := labtest.NewPair(t, "", rdmatest.PairOptions{})
	pd := labtest.Must(b.PD.Context().AllocPD())(t)
	before := kernelObjects(t)
	func() { labtest.Must(pd.AllocMR(4096, verbs.AccessAll, uverbs.MROptions{}))(t) }()
	labtest.Collect()
	if n := kernelObjects(t); n != before+1 {
		t.Errorf("the kernel has %d objects, want %d", n, before+1)
	}
	if err := pd.Close(); !errors.Is(err, verbs.ErrInUse) {
		t.Errorf("closing the PD: %v", err)
	}
	runtime.KeepAlive(pd)
	pd = nil // the region is released with it
	labtest.Until(t, "the release of the region", func() bool {
		runtime.GC()
		return kernelObjects(t) == before-1
	})
	runtime.KeepAlive(a)
}

// TestRemoteWriteAlone checks the error for a region whose access lacks AccessLocalWrite.
func TestRemoteWriteAlone(t *testing.T) {
	labtest.RequireBoth(t)
	labtest.Each(t, func(t *testing.T, device string) {
		ctx := labtest.OpenDevice(t, device)
		pd := labtest.Made(ctx.AllocPD())(t)
		for _, access := range []verbs.Access{verbs.AccessRemoteWrite, verbs.AccessRemoteAtomic | verbs.AccessRemoteRead} {
			_, err := pd.AllocMR(4096, access, uverbs.MROptions{})
			if !errors.Is(err, unix.EINVAL) || !strings.Contains(err.Error(), "need AccessLocalWrite") {
				t.Errorf("access %v: %v", access, err)
			}
		}
	})
}

// TestCallerMemory moves data between slices of the Go heap.
func TestCallerMemory(t *testing.T) {
	labtest.RequireBoth(t)
	a, b := labtest.NewPair(t, "", rdmatest.PairOptions{})
	src, dst := []byte("from the Go heap, at any address"), make([]byte, 64)
	from := labtest.Must(a.PD.RegisterMR(src, 0, uverbs.MROptions{}))(t)
	defer from.Close()
	to := labtest.Must(b.PD.RegisterMR(dst[3:], verbs.AccessAll, uverbs.MROptions{}))(t)
	defer to.Close()
	runtime.GC()
	send(t, a.QP, verbs.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, RemoteAddr: to.Addr(), RKey: to.RKey(), SGL: []verbs.SGE{from.SGE(0, len(src))}})
	next(t, a.SendCQ)
	if got := string(dst[3 : 3+len(src)]); got != string(src) || dst[2] != 0 {
		t.Errorf("got %q", got)
	}
}

// TestStates moves a QP through all states and compares them with the kernel's.
func TestStates(t *testing.T) {
	labtest.RequireBoth(t)
	a, b := labtest.NewPair(t, "", rdmatest.PairOptions{RC: uverbs.ConnectOptions{Timeout: 13, RetryCount: 5, RNRRetry: 3, MinRNRTimer: 9, MaxRDAtomic: 4, MaxDestRDAtomic: 4}})
	query := func(want verbs.QPState) verbs.QPAttr {
		t.Helper()
		attr, err := a.QP.Query()
		if err != nil {
			t.Fatal(err)
		}
		if attr.State != want {
			t.Errorf("the QP is in %v, want %v", attr.State, want)
		}
		return attr
	}
	attr := query(verbs.StateRTS)
	self := labtest.Must(b.QP.Addr(1))(t)
	if attr.DestQPNum != b.QP.Num() || attr.RQPSN != 0xfffff0 || attr.SQPSN != 0x123456 || attr.Timeout != 13 || attr.RetryCount != 5 ||
		attr.RNRRetry != 3 || attr.MinRNRTimer != 9 || attr.MaxRDAtomic != 4 || attr.MaxDestRDAtomic != 4 ||
		attr.Access|verbs.AccessLocalWrite != verbs.AccessAll || // mlx5_ib returns the remote rights
		attr.PathMTU != labtest.Must(a.PD.Context().QueryPort(1))(t).ActiveMTU || attr.Port != 1 || !attr.AV.Global || attr.AV.DGID != self.GID || attr.Cap.MaxSendWR > a.QP.Cap().MaxSendWR {
		t.Errorf("attributes: %+v", attr)
	}
	move := func(attr verbs.QPAttr, mask verbs.QPAttrMask) {
		t.Helper()
		if err := a.QP.Modify(attr, mask|verbs.MaskState); err != nil {
			t.Fatal(err)
		}
		query(attr.State)
	}
	if a.PD.Context().Device().Name == labtest.MLX5 { // mlx5_ib has no command for it (optab of __mlx5_ib_modify_qp)
		if err := a.QP.Modify(verbs.QPAttr{State: verbs.StateSQD}, verbs.MaskState); !errors.Is(err, unix.EINVAL) {
			t.Errorf("to SQD: %v", err)
		}
	} else {
		move(verbs.QPAttr{State: verbs.StateSQD, SQDAsyncNotify: true}, verbs.MaskSQDAsyncNotify)
		labtest.Until(t, "an empty queue, which SQD cannot leave before", func() bool { return !query(verbs.StateSQD).SQDraining })
		move(verbs.QPAttr{State: verbs.StateRTS}, 0)
	}
	recv(t, b.QP, verbs.RecvWR{SGL: []verbs.SGE{b.MR.SGE(0, 8)}})
	send(t, a.QP, verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled, Inline: []byte("alive")})
	next(t, b.RecvCQ)
	next(t, a.SendCQ) // acknowledged: nothing of it is left for ERR to flush

	recv(t, a.QP, verbs.RecvWR{ID: 5})
	move(verbs.QPAttr{State: verbs.StateErr}, 0)
	if wc := nextAny(t, a.RecvCQ); wc.ID != 5 || wc.Status != verbs.WCFlushErr {
		t.Errorf("receive posted before ERR: %+v", wc)
	}
	move(verbs.QPAttr{State: verbs.StateReset}, 0)
	if _, err := a.QP.PostSend(verbs.SendWR{Opcode: verbs.OpSend}); !errors.Is(err, verbs.ErrState) {
		t.Errorf("post in RESET: %v", err)
	}

	// Connect again from RESET.
	if err := b.QP.Modify(verbs.QPAttr{State: verbs.StateReset}, verbs.MaskState); err != nil {
		t.Fatal(err)
	}
	ea, eb := labtest.Must(a.QP.Addr(1))(t), labtest.Must(b.QP.Addr(1))(t)
	again := uverbs.ConnectOptions{Access: verbs.AccessAll, MaxDestRDAtomic: 4}
	if err := errors.Join(a.QP.Connect(ea, eb, again), b.QP.Connect(eb, ea, again)); err != nil {
		t.Fatal(err)
	}
	send(t, a.QP, verbs.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, RemoteAddr: b.MR.Addr(), RKey: b.MR.RKey(), Inline: []byte("again")})
	next(t, a.SendCQ)
	if got := string(b.MR.Bytes()[:5]); got != "again" {
		t.Errorf("after RESET, %q was written", got)
	}
}

func TestSignalAll(t *testing.T) {
	labtest.RequireBoth(t)
	a, b := labtest.NewPair(t, "", rdmatest.PairOptions{All: true})
	send(t, a.QP, verbs.SendWR{ID: 3, Opcode: verbs.OpRDMAWrite, RemoteAddr: b.MR.Addr(), RKey: b.MR.RKey(), Inline: []byte("x")})
	if wc := next(t, a.SendCQ); wc.ID != 3 {
		t.Errorf("%+v", wc)
	}
}

// TestSolicited arms for solicited completions only.
func TestSolicited(t *testing.T) {
	labtest.RequireBoth(t)
	labtest.Each(t, func(t *testing.T, device string) {
		a, b := labtest.NewPair(t, device, rdmatest.PairOptions{Events: true})
		recv(t, b.QP, verbs.RecvWR{SGL: []verbs.SGE{b.MR.SGE(0, 8)}}, verbs.RecvWR{SGL: []verbs.SGE{b.MR.SGE(0, 8)}})
		if err := b.RecvCQ.Arm(true); err != nil {
			t.Fatal(err)
		}
		one := verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled, Inline: []byte("x")}
		if !labtest.IWARP(t, device) { // on which any completion wakes
			send(t, a.QP, one)
			next(t, a.SendCQ)
			short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			if err := b.RecvCQ.Wait(short); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("an unsolicited completion woke: %v", err)
			}
		}
		one.Flags |= verbs.SendSolicited
		send(t, a.QP, one)
		if err := b.RecvCQ.Wait(labtest.Within(t, 20*time.Second)); err != nil {
			t.Errorf("a solicited completion did not wake: %v", err)
		}
	})
}

// TestSharedChannel waits for two CQs of one channel in two goroutines, and then takes the event of
// any of them.
func TestSharedChannel(t *testing.T) {
	labtest.RequireBoth(t)
	ctx := labtest.Open(t)
	pd := labtest.Made(ctx.AllocPD())(t)
	ch := labtest.Made(ctx.CreateCompChannel())(t)
	var qps [2]*uverbs.QP
	var cqs [2]*uverbs.CQ
	var eps [2]verbs.QPAddr
	for i := range qps {
		cqs[i] = labtest.Must(ctx.CreateCQ(uverbs.CQOptions{Depth: 100, Channel: ch}))(t)
		labtest.Close(t, cqs[i])
		qps[i] = labtest.Must(pd.CreateQP(uverbs.QPOptions{SendCQ: cqs[i], RecvCQ: cqs[i], Cap: verbs.QPCap{MaxSendWR: 10, MaxRecvWR: 10, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: 8}}))(t)
		labtest.Close(t, qps[i])
		eps[i] = labtest.Must(qps[i].Addr(1))(t)
	}
	for i := range qps {
		if err := qps[i].Connect(eps[i], eps[1-i], uverbs.ConnectOptions{Access: verbs.AccessAll}); err != nil {
			t.Fatal(err)
		}
	}
	mr := labtest.Made(pd.AllocMR(64, verbs.AccessAll, uverbs.MROptions{}))(t)
	write := verbs.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, RemoteAddr: mr.Addr(), RKey: mr.RKey(), Inline: []byte("x")}
	wait, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	for i := range qps {
		wg.Go(func() {
			for n := range 200 {
				if _, err := qps[i].PostSend(write); err != nil {
					t.Error(err)
					return
				}
				var wc [1]verbs.WC
				if _, err := cqs[i].PollWait(wait, wc[:]); err != nil || wc[0].Err() != nil || wc[0].QPNum != qps[i].Num() {
					t.Errorf("CQ %d, round %d: %v, %+v", i, n, err, wc[0])
					return
				}
			}
		})
	}
	wg.Wait()
	if err := cqs[1].Arm(false); err != nil {
		t.Fatal(err)
	}
	send(t, qps[1], write)
	labtest.Until(t, "the event of a CQ", func() bool {
		cq := labtest.Must(ch.TryWait())(t)
		return cq == cqs[1] && cq.Poll(make([]verbs.WC, 1)) == 1
	})
}

// TestAsyncEvents takes the link down and up.
func TestAsyncEvents(t *testing.T) {
	labtest.RequireKernel(t)
	ctx := labtest.OpenDevice(t, labtest.RXE) // of v1's peer
	wait, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	short, stop := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer stop()
	if _, err := ctx.NextAsyncEvent(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("an event out of nothing: %v", err)
	}
	if _, err := net.InterfaceByName("v1"); err != nil {
		t.Skipf("only where the link may go down: %v", err)
	}
	set := func(state string) {
		t.Helper()
		if out, err := exec.Command("ip", "link", "set", "v1", state).CombinedOutput(); err != nil {
			t.Fatalf("set v1 %s: %v: %s", state, err, out)
		}
	}
	expect := func(want verbs.AsyncEventType) {
		t.Helper()
		for {
			e, err := ctx.NextAsyncEvent(wait)
			if err != nil {
				t.Fatalf("waiting for %v: %v", want, err)
			}
			if e.Type == want {
				if e.Port != 1 {
					t.Errorf("%v of port %d", e.Type, e.Port)
				}
				return
			}
		}
	}
	set("down")
	expect(verbs.EventPortErr)
	set("up")
	expect(verbs.EventPortActive)
}

// TestCQOverflow overflows a CQ: an event reports it.
func TestCQOverflow(t *testing.T) {
	labtest.RequireBoth(t)
	ctx := labtest.Open(t)
	pd := labtest.Made(ctx.AllocPD())(t)
	cq := labtest.Made(ctx.CreateCQ(uverbs.CQOptions{Depth: 3}))(t)
	qp := labtest.Made(pd.CreateQP(uverbs.QPOptions{SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxRecvWR: 100, MaxRecvSGE: 1}}))(t)
	if err := qp.Modify(verbs.QPAttr{State: verbs.StateInit, Port: 1}, verbs.MaskState|verbs.MaskPort|verbs.MaskPKeyIndex|verbs.MaskAccess); err != nil {
		t.Fatal(err)
	}
	recv(t, qp, make([]verbs.RecvWR, 50)...)
	if err := qp.Modify(verbs.QPAttr{State: verbs.StateErr}, verbs.MaskState); err != nil {
		t.Fatal(err)
	}
	wait, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for {
		e, err := ctx.NextAsyncEvent(wait)
		if err != nil {
			t.Fatal(err)
		}
		if e.Type == verbs.EventCQErr {
			if e.CQ != cq {
				t.Errorf("the event names %p, not %p", e.CQ, cq)
			}
			return
		}
	}
}

// TestCloseRace closes a QP and its CQ while goroutines post, poll, wait, modify and
// query.
func TestCloseRace(t *testing.T) {
	labtest.Require(t)
	ctx := labtest.Open(t)
	for range 30 {
		pd := labtest.Must(ctx.AllocPD())(t)
		ch := labtest.Must(ctx.CreateCompChannel())(t)
		cq := labtest.Must(ctx.CreateCQ(uverbs.CQOptions{Depth: 1000, Channel: ch}))(t)
		mr := labtest.Must(pd.AllocMR(64, verbs.AccessAll, uverbs.MROptions{}))(t)
		qp := labtest.Must(pd.CreateQP(uverbs.QPOptions{SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 100, MaxRecvWR: 100, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: 8}}))(t)
		self := labtest.Must(qp.Addr(1))(t)
		if err := qp.Connect(self, self, uverbs.ConnectOptions{Access: verbs.AccessAll}); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		until := func(f func() error) {
			wg.Go(func() {
				for {
					err := f()
					if errors.Is(err, os.ErrClosed) {
						return
					}
					if err != nil && err != verbs.ErrQueueFull {
						t.Error(err)
						return
					}
				}
			})
		}
		until(func() error {
			_, err := qp.PostSend(verbs.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, RemoteAddr: mr.Addr(), RKey: mr.RKey(), Inline: []byte("x")})
			return err
		})
		until(func() error { _, err := qp.PostRecv(make([]verbs.RecvWR, 2)...); return err })
		until(func() error { _, err := qp.Query(); return err })
		until(func() error { return qp.Modify(verbs.QPAttr{MinRNRTimer: 3}, verbs.MaskMinRNRTimer) })
		for range 2 {
			until(func() error {
				_, err := cq.PollWait(context.Background(), make([]verbs.WC, 4))
				if errors.Is(err, verbs.ErrQueueFailed) { // requests are posted faster than polled
					return nil
				}
				return err
			})
		}
		time.Sleep(2 * time.Millisecond)
		for range 3 {
			wg.Go(func() {
				if err := qp.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		if err := qp.Close(); err != nil {
			t.Error(err)
		}
		for _, c := range []interface{ Close() error }{mr, cq, ch, pd} {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
		wg.Wait()
	}
}
