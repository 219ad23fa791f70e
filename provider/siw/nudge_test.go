//go:build linux

package siw

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/provider"
)

const (
	shortWait = 50 * time.Millisecond // enough for several WRITEs
	timeout   = 10 * time.Second
)

// newConnection makes the queues of a QP whose requests are all signaled, with two
// receives posted.
func newConnection(t *testing.T) (*completionQueue, *sendQueue, *recvQueue) {
	t.Helper()
	h := newFakeDevice(t)
	cq, _, err := h.createCQ(8)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cq.Release)
	sq, rq, err := h.createQP(cq, 8, 2, verbs.QPCap{MaxSendSGE: 2, MaxRecvSGE: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sq.Release)
	t.Cleanup(rq.Release)
	sq.State, rq.State, sq.SignalAll = verbs.StateRTS, verbs.StateRTS, true
	if n, err := rq.Post(make([]verbs.RecvWR, 2)); n != 2 || err != nil {
		t.Fatal(n, err)
	}
	return cq, sq, rq
}

// send posts one request, which the kernel takes if taken is set.
func send(t *testing.T, sq *sendQueue, taken bool) {
	t.Helper()
	if n, err := sq.Post([]verbs.SendWR{{ID: 1, Opcode: verbs.OpSend}}); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	if taken {
		sqeWord(sq.queue.at(0)).Store(0)
	}
}

// waitPosted reports whether the queue has had n requests within a time.
func waitPosted(sq *sendQueue, n uint32, atMost time.Duration) bool {
	for end := time.Now().Add(atMost); time.Now().Before(end); time.Sleep(time.Millisecond) {
		sq.Lock()
		put := sq.put
		sq.Unlock()
		if put >= n {
			return true
		}
	}
	return false
}

// TestNudge checks that the peer gets empty WRITEs if no message comes from it after the
// first request. The caller does not see that they fail.
func TestNudge(t *testing.T) {
	cq, sq, _ := newConnection(t)
	send(t, sq, true)
	if !waitPosted(sq, 2, timeout) {
		t.Fatal("the peer gets no WRITE")
	}
	sqe := sq.queue.at(1)
	if got, want := sqeWord(sqe).Load(), word(abi.SIW_WQE_VALID, 0, abi.SIW_OP_WRITE); got != want || sqe.Id != nudgeID {
		t.Errorf("request %#x with ID %#x, want %#x with %#x", got, sqe.Id, want, nudgeID)
	}
	if waitPosted(sq, 3, shortWait) {
		t.Error("a WRITE is posted behind one that is not taken")
	}
	sqeWord(sqe).Store(0)
	if !waitPosted(sq, 3, timeout) {
		t.Error("the peer gets no second WRITE")
	}
	sq.Suspend()
	sq.Settle(verbs.StateErr, true)
	for i, cqe := range []abi.SiwCqe{
		{Flags: abi.SIW_WQE_VALID, Opcode: abi.SIW_OP_WRITE, Status: abi.SIW_WC_WR_FLUSH_ERR, Id: nudgeID},
		{Flags: abi.SIW_WQE_VALID, Opcode: abi.SIW_OP_SEND, Status: abi.SIW_WC_WR_FLUSH_ERR, Id: 7},
		{Flags: abi.SIW_WQE_VALID, Opcode: abi.SIW_OP_WRITE, Id: 8},
	} {
		*cq.queue.at(uint32(i)) = cqe
	}
	var wcs [8]verbs.WC
	if n := provider.Poll(cq, wcs[:]); n != 2 || wcs[0].ID != 7 || wcs[0].Status != verbs.WCFlushErr || wcs[1].ID != 8 || wcs[1].Status != verbs.WCSuccess {
		t.Errorf("completions %+v", wcs[:n])
	}
}

// TestNoNudge checks that no WRITE is sent when a message has come, or while an earlier
// request has not been taken.
func TestNoNudge(t *testing.T) {
	for _, test := range []struct {
		name        string
		taken, used bool
	}{
		{"message has come", true, true},
		{"request not taken", false, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, sq, rq := newConnection(t)
			send(t, sq, test.taken)
			if test.used {
				rqeWord(rq.queue.at(0)).Store(0)
			}
			if waitPosted(sq, 2, shortWait) {
				t.Error("the peer gets a WRITE")
			}
		})
	}
}

// TestRoomBesideNudge checks that callers can fill the queue behind a WRITE that the kernel
// has not taken, and no more.
func TestRoomBesideNudge(t *testing.T) {
	_, sq, _ := newConnection(t)
	send(t, sq, true)
	if !waitPosted(sq, 2, timeout) {
		t.Fatal("the peer gets no WRITE")
	}
	wrs := make([]verbs.SendWR, sq.Cap()+1)
	for i := range wrs {
		wrs[i].Opcode = verbs.OpSend
	}
	if n, err := sq.Post(wrs); n != sq.Cap() || err != verbs.ErrQueueFull {
		t.Errorf("posted %d of %d, %v", n, sq.Cap(), err)
	}
	if n, err := sq.Post(wrs); n != 0 || err != verbs.ErrQueueFull {
		t.Errorf("posted %d to a full queue, %v", n, err)
	}
	sqeWord(sq.queue.at(1)).Store(0) // the WRITE
	if n, err := sq.Post(wrs); n != 0 || err != verbs.ErrQueueFull {
		t.Errorf("posted %d to a full queue without WRITE, %v", n, err)
	}
	sqeWord(sq.queue.at(2)).Store(0)
	if n, err := sq.Post(wrs); n != 1 || err != verbs.ErrQueueFull {
		t.Errorf("posted %d to a queue with one free element, %v", n, err)
	}
}

// TestNudgeTaken posts to a queue that is full but for the element of a WRITE, which the
// kernel takes meanwhile. Only the race detector makes calls slow enough to meet that.
func TestNudgeTaken(t *testing.T) {
	_, sq, rq := newConnection(t)
	send(t, sq, true)
	if !waitPosted(sq, 2, timeout) {
		t.Fatal("the peer gets no WRITE")
	}
	rqeWord(rq.queue.at(0)).Store(0) // a message has come: nudge does nothing more
	sq.Lock()                        // waits for it
	write := sqeWord(sq.queue.at(1))
	valid, size := write.Load(), uint32(sq.Cap())
	sq.Unlock()
	wrs := []verbs.SendWR{{Opcode: verbs.OpSend}}
	var turn, taken atomic.Int64
	const turns = 100000
	go func() {
		for i := range int64(turns) {
			for turn.Load() <= i {
				runtime.Gosched()
			}
			for range i % 64 { // some time
				taken.Load()
			}
			write.Store(0)
			taken.Store(i + 1)
		}
	}()
	for i := range int64(turns) {
		sq.put = size + 1
		for n := uint32(1); n < sq.put; n++ {
			sqeWord(sq.queue.at(n)).Store(valid)
		}
		sqeWord(sq.queue.at(sq.put)).Store(0)
		turn.Store(i + 1)
		n, err := sq.Post(wrs)
		for taken.Load() <= i {
			runtime.Gosched()
		}
		if n != 1 || err != nil {
			t.Fatalf("posted %d after %d turns, %v", n, i, err)
		}
	}
}

// TestHold checks that the first request waits for a message, or until a time.
func TestHold(t *testing.T) {
	const wait = 50 * time.Millisecond
	for _, used := range []bool{false, true} {
		_, sq, rq := newConnection(t)
		if used {
			rqeWord(rq.queue.at(0)).Store(0)
		}
		start := time.Now()
		until := start.Add(time.Hour)
		if !used {
			until = start.Add(wait)
		}
		sq.Hold(until)
		send(t, sq, true)
		if took := time.Since(start); !used && took < wait {
			t.Errorf("posted after %v", took)
		}
	}
}

// TestLocksDuringNudge checks that the queues of a single-threaded QP use their locks as
// long as a WRITE may be sent, and no longer.
func TestLocksDuringNudge(t *testing.T) {
	_, sq, rq := newConnection(t)
	sq.disableLocksLater = true
	send(t, sq, true)
	if !waitPosted(sq, 2, timeout) {
		t.Fatal("the peer gets no WRITE")
	}
	sqeWord(sq.queue.at(1)).Store(0)
	if n, err := sq.Post([]verbs.SendWR{{ID: 2, Opcode: verbs.OpSend}}); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	if sq.SingleThreaded || rq.SingleThreaded {
		t.Fatal("the locks are disabled while a WRITE may be sent")
	}
	sqeWord(sq.queue.at(2)).Store(0)
	rqeWord(rq.queue.at(0)).Store(0) // a message has come
	for end := time.Now().Add(timeout); !sq.SingleThreaded; {
		if n, err := sq.Post(nil); n != 0 || err != nil || time.Now().After(end) {
			t.Fatal("the locks are never disabled", n, err)
		}
	}
	put := sq.put
	time.Sleep(shortWait)
	if !rq.SingleThreaded || sq.put != put {
		t.Errorf("receives without a lock: %t, %d WRITEs", rq.SingleThreaded, sq.put-put)
	}
}
