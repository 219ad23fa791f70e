//go:build linux

package siw

import (
	"errors"
	"math"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/provider"
	"github.com/goverbs/verbs/providertest"
)

// take frees the elements of requests that the kernel has processed.
func take(sq *sendQueue, from, to uint32) {
	for ; from != to; from++ {
		sqeWord(sq.queue.at(from)).Store(0)
	}
}

// putOf returns how many requests a queue has had.
func putOf(sq *sendQueue) uint32 {
	sq.Lock()
	defer sq.Unlock()
	return sq.put
}

var twoSends = []verbs.SendWR{{ID: 1, Opcode: verbs.OpSend}, {ID: 2, Opcode: verbs.OpRDMAWrite}}

// TestDoorbellWhenIdle checks that a doorbell is rung unless the kernel has an earlier request before it.
func TestDoorbellWhenIdle(t *testing.T) {
	h, _, sq, _ := newQueues(t)
	for i, want := range []int{1, 1, 2, 3} {
		if i >= 2 {
			take(sq, 0, sq.put)
		}
		if n, err := sq.Post(twoSends); n != 2 || err != nil || h.doorbells != want || sq.put != uint32(2*i+2) {
			t.Fatalf("post %d: %d of %d, %v, with %d doorbells, not %d", i, n, sq.put, err, h.doorbells, want)
		}
	}
}

// TestDoorbellRefused has the kernel refuse doorbells: the requests that it has not taken are taken back or completed, as
// the QP's state and the error say.
func TestDoorbellRefused(t *testing.T) {
	for name, test := range map[string]struct {
		errno  syscall.Errno
		state  verbs.QPState
		taken  uint32
		posted int
		err    error
		queued uint32 // requests in the queue then
		flush  int    // requests that complete
		moves  int    // of the QP to ERR
	}{
		"request refused":         {syscall.EINVAL, verbs.StateRTS, 0, 0, syscall.EINVAL, 0, 0, 0},
		"second request refused":  {syscall.EINVAL, verbs.StateRTS, 1, 1, syscall.EINVAL, 1, 0, 0},
		"all taken":               {syscall.EINVAL, verbs.StateRTS, 2, 2, nil, 2, 0, 0},
		"not connected":           {syscall.ENOTCONN, verbs.StateInit, 0, 0, verbs.ErrState, 0, 0, 0},
		"connection has ended":    {syscall.ENOTCONN, verbs.StateErr, 0, 2, nil, 2, 2, 1},
		"one flushed by the end":  {syscall.ENOTCONN, verbs.StateErr, 1, 2, nil, 2, 1, 1},
		"driver not reached":      {syscall.EACCES, verbs.StateRTS, 0, 2, nil, 2, 2, 1},
		"busy":                    {0, verbs.StateRTS, 0, 2, nil, 2, 0, 0},
		"taken, but QP has ended": {0, verbs.StateErr, 0, 2, nil, 2, 2, 1},
	} {
		h, cq, sq, _ := newQueues(t)
		h.state = test.state
		h.ring = func() syscall.Errno {
			take(sq, 0, test.taken)
			return test.errno
		}
		n, err := sq.Post(twoSends)
		if refused, ok := errors.AsType[*verbs.PostError](err); n != test.posted || !errors.Is(err, test.err) || ok && refused.ID != twoSends[n].ID {
			t.Errorf("%s: posted %d: %v", name, n, err)
		}
		valid := 0
		for i := range sq.queue.mask + 1 {
			if isValid(sqeWord(sq.queue.at(i)).Load()) {
				valid++
			}
		}
		if want := int(test.queued) - int(test.taken) - test.flush; sq.put != test.queued || valid != want || h.moves != test.moves {
			t.Errorf("%s: %d requests of %d, %d moves; want %d of %d, %d", name, valid, sq.put, h.moves, want, test.queued, test.moves)
		}
		want := []verbs.WC{{ID: 1, Status: verbs.WCFlushErr, Opcode: verbs.WCSend, QPNum: 5}, {ID: 2, Status: verbs.WCFlushErr, Opcode: verbs.WCRDMAWrite, QPNum: 5}}
		var wcs [4]verbs.WC
		if got := provider.Poll(cq, wcs[:]); !slices.Equal(wcs[:got], want[len(want)-test.flush:]) {
			t.Errorf("%s: completions %+v", name, wcs[:got])
		}
		if (sq.State == verbs.StateErr) != (test.moves > 0) {
			t.Errorf("%s: the queue is in %v", name, sq.State)
		}
	}
}

// TestDoorbellRetried has the kernel refuse doorbells of a QP in RTS, whose connection is beginning or ending: for a time
// the doorbell is rung again. Linux 6.1 says RESET for each state.
func TestDoorbellRetried(t *testing.T) {
	for name, test := range map[string]struct {
		state verbs.QPState
		first bool          // there have been no requests
		after time.Duration // the kernel takes requests; never if it is 0
		limit time.Duration
	}{
		"RTS": {verbs.StateRTS, false, 500 * time.Millisecond, 0}, "SQE": {verbs.StateSQE, false, 500 * time.Millisecond, 0},
		"6.1": {verbs.StateReset, false, 500 * time.Millisecond, 0}, "first on 6.1": {verbs.StateReset, true, 5 * time.Millisecond, 0},
		"never": {verbs.StateRTS, false, 0, time.Second}, "never on 6.1": {verbs.StateReset, false, 0, time.Second},
		"not connected on 6.1": {verbs.StateReset, true, 0, 10 * time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			h, _, sq, _ := newQueues(t)
			start := time.Now()
			h.state, sq.begun = test.state, !test.first
			h.ring = func() syscall.Errno {
				if test.after == 0 || time.Since(start) < test.after {
					return syscall.ENOTCONN
				}
				take(sq, 0, 2)
				return 0
			}
			n, err := sq.Post(twoSends)
			took, limit, want, wantErr := time.Since(start), test.after, 2, error(nil)
			if test.after == 0 {
				limit, want, wantErr = test.limit, 0, verbs.ErrState
			}
			if n != want || !errors.Is(err, wantErr) || took < limit || took > limit+time.Millisecond {
				t.Errorf("%s: posted %d after %v: %v", name, n, took, err)
			}
		})
	}
}

// TestNudgeBacksOff counts the WRITEs to a peer that never sends: each comes four times as long after the last, until
// that would be 10 seconds.
func TestNudgeBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, _, sq, rq := newQueues(t)
		rq.put, rq.taken = 0, 0
		h.ring = func() syscall.Errno {
			take(sq, 0, sq.put)
			return 0
		}
		start := time.Now()
		send := func() {
			if n, err := sq.Post(twoSends[:1]); n != 1 || err != nil {
				t.Fatal(n, err)
			}
		}
		send()
		for i, at := range []int{1, 5, 21, 85, 341, 1365, 5461} {
			time.Sleep(time.Until(start.Add(time.Duration(at)*time.Millisecond)) - time.Microsecond)
			synctest.Wait()
			if put := putOf(sq); put != uint32(i+1) {
				t.Fatalf("%d requests before %d ms", put, at)
			}
			time.Sleep(2 * time.Microsecond)
			synctest.Wait()
			if put := putOf(sq); put != uint32(i+2) {
				t.Fatalf("%d requests after %d ms", put, at)
			}
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if putOf(sq) != 8 || sq.nudgePending {
			t.Errorf("%d requests; another will come: %t", sq.put, sq.nudgePending)
		}
	})
}

// TestNudgeEnds checks that no WRITE comes after the doorbell of one has failed, nor once the QP has failed or is closed.
func TestNudgeEnds(t *testing.T) {
	for name, end := range map[string]func(*fakeDevice, *sendQueue){
		"doorbell refused": func(h *fakeDevice, sq *sendQueue) {
			sq.Lock()
			h.ring = func() syscall.Errno { return syscall.EINVAL }
			sq.Unlock()
		},
		"QP failed": func(h *fakeDevice, sq *sendQueue) { sq.Suspend(); sq.Settle(verbs.StateErr, true) },
		"closed":    func(h *fakeDevice, sq *sendQueue) { sq.Stop(true) },
	} {
		synctest.Test(t, func(t *testing.T) {
			h, _, sq, rq := newQueues(t)
			rq.put, rq.taken = 0, 0
			if n, err := sq.Post(twoSends[:1]); n != 1 || err != nil {
				t.Fatal(n, err)
			}
			take(sq, 0, sq.put)
			end(h, sq)
			time.Sleep(time.Minute)
			synctest.Wait()
			if putOf(sq) != 1 || h.doorbells > 2 {
				t.Errorf("%s: %d requests, %d doorbells", name, sq.put, h.doorbells)
			}
		})
	}
}

// TestHoldEnds checks that the first request of a QP waits for the time of Hold, and no others do, nor one of a QP that
// has received, or cannot tell.
func TestHoldEnds(t *testing.T) {
	for name, test := range map[string]struct {
		received, srq bool
		waits         bool
	}{"nothing received": {waits: true}, "received": {received: true}, "SRQ": {srq: true}} {
		synctest.Test(t, func(t *testing.T) {
			h, _, sq, rq := newQueues(t)
			if !test.received {
				rq.put, rq.taken = 0, 0
			}
			if test.srq {
				sq.recv = nil
			}
			for i := range 2 {
				start := time.Now()
				sq.Hold(start.Add(time.Second))
				if n, err := sq.Post(twoSends[:1]); n != 1 || err != nil {
					t.Fatal(n, err)
				}
				if took := time.Since(start); (took >= time.Second) != (test.waits && i == 0) {
					t.Errorf("%s: request %d waited %v", name, i, took)
				}
			}
			if sq.nudgePending == test.received || h.doorbells == 0 {
				t.Errorf("%s: WRITEs will come: %t", name, sq.nudgePending)
			}
		})
	}
}

// TestNudgeOnce posts so many requests that their count wraps: the queue has begun long ago.
func TestNudgeOnce(t *testing.T) {
	_, _, sq, _ := newQueues(t)
	sq.put, sq.taken, sq.begun, sq.recv, sq.nudgePending = math.MaxUint32, math.MaxUint32, true, nil, false
	for range 2 {
		if n, err := sq.Post(twoSends[:1]); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		take(sq, sq.put-1, sq.put)
	}
	if sq.put != 1 || sq.nudgePending {
		t.Errorf("at %d, another WRITE will come: %t", sq.put, sq.nudgePending)
	}
}

// TestFlushedSends posts to a QP in state ERR, and one that gets there with requests in the queue: all complete, and the
// waiter of an armed CQ wakes.
func TestFlushedSends(t *testing.T) {
	_, cq, sq, _ := newQueues(t)
	woken := 0
	cq.wake = func() { woken++ }
	for i := range 3 { // the second time the queue has wrapped
		if n, err := sq.Post(slices.Repeat(twoSends, 4)); n != 8 || err != nil {
			t.Fatal(n, err)
		}
		if i < 2 {
			take(sq, sq.put-8, sq.put)
		}
	}
	take(sq, sq.put-8, sq.put-2)
	*sq.queue.at(sq.put) = abi.SiwSqe{Id: nudgeID, Flags: abi.SIW_WQE_VALID}
	sq.put++
	if err := cq.Arm(false); err != nil {
		t.Fatal(err)
	}
	sq.Suspend()
	sq.Settle(verbs.StateErr, true)
	n, err := sq.Post([]verbs.SendWR{{ID: 3, Opcode: verbs.OpSend, SGL: []verbs.SGE{{Length: 100}}}})
	if n != 1 || err != nil || woken != 1 || cq.arm.Load() != abi.SIW_NOTIFY_NOT {
		t.Errorf("posted %d: %v; woken %d times", n, err, woken)
	}
	var wcs [8]verbs.WC
	want := []verbs.WC{
		{ID: 1, Status: verbs.WCFlushErr, Opcode: verbs.WCSend, QPNum: 5}, {ID: 2, Status: verbs.WCFlushErr, Opcode: verbs.WCRDMAWrite, QPNum: 5},
		{ID: 3, Status: verbs.WCFlushErr, QPNum: 5},
	}
	if n := provider.Poll(cq, wcs[:]); !slices.Equal(wcs[:n], want) {
		t.Errorf("%+v", wcs[:n])
	}
	for i := range sq.queue.mask + 1 {
		if isValid(sqeWord(sq.queue.at(i)).Load()) {
			t.Errorf("element %d is still valid", i)
		}
	}
}

// TestSettleOfOthers checks that queues complete nothing when a QP gets to another state, stays where it is, or is closed.
func TestSettleOfOthers(t *testing.T) {
	for name, test := range map[string]struct {
		state         verbs.QPState
		moved, closed bool
	}{"RTS": {verbs.StateRTS, true, false}, "not moved": {verbs.StateErr, false, false}, "closed": {verbs.StateErr, true, true}} {
		_, cq, sq, rq := newQueues(t)
		if _, err := sq.Post(twoSends); err != nil {
			t.Fatal(err)
		}
		if _, err := rq.Post(make([]verbs.RecvWR, 2)); err != nil {
			t.Fatal(err)
		}
		for _, q := range []interface {
			provider.Stateful
			Stop(bool)
		}{sq, rq} {
			if test.closed {
				q.Stop(true)
			}
			q.Suspend()
			q.Settle(test.state, test.moved)
		}
		var wcs [4]verbs.WC
		if n := provider.Poll(cq, wcs[:]); n != 0 {
			t.Errorf("%s: %+v", name, wcs[:n])
		}
	}
}

// TestFlushedReceives lets a QP get to state ERR with receives in a queue that has wrapped.
func TestFlushedReceives(t *testing.T) {
	_, cq, _, rq := newQueues(t)
	for range 2 {
		if n, err := rq.Post(make([]verbs.RecvWR, 10)); n != 10 || err != nil {
			t.Fatal(n, err)
		}
		for i := range uint32(10) {
			rqeWord(rq.queue.at(rq.put - 1 - i)).Store(0)
		}
	}
	if n, err := rq.Post([]verbs.RecvWR{{ID: 1}, {ID: 2}}); n != 2 || err != nil {
		t.Fatal(n, err)
	}
	rqeWord(rq.queue.at(rq.put - 2)).Store(0)
	rq.Suspend()
	rq.Settle(verbs.StateErr, true)
	var wcs [4]verbs.WC
	if n := provider.Poll(cq, wcs[:]); n != 1 || wcs[0] != (verbs.WC{ID: 2, Status: verbs.WCFlushErr, Opcode: verbs.WCRecv, QPNum: 5}) {
		t.Errorf("%+v", wcs[:n])
	}
	if isValid(rqeWord(rq.queue.at(rq.put - 1)).Load()) {
		t.Error("the element is still valid")
	}
}

// TestHasReceived checks what receives tell of a first message.
func TestHasReceived(t *testing.T) {
	_, _, _, rq := newQueues(t)
	check := func(what string, want bool) {
		t.Helper()
		if got := rq.hasReceived(); got != want {
			t.Errorf("%s: %t", what, got)
		}
	}
	rq.put, rq.taken = 0, 0
	check("nothing posted", false)
	if n, err := rq.Post(make([]verbs.RecvWR, 16)); n != 16 || err != nil {
		t.Fatal(n, err)
	}
	check("posted", false)
	rq.Lock()
	check("locked", false)
	rq.Unlock()
	rqeWord(rq.queue.at(0)).Store(0)
	check("used", true)
	if n, err := rq.Post(make([]verbs.RecvWR, 1)); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	check("posted again", true)
	rq.Stop(true)
	check("closed", false)
	rq.Stop(false)
	check("opened again", true) // and the lock is free
}

// TestCompletions takes completions of all operations and statuses, across the end of the queue.
func TestCompletions(t *testing.T) {
	_, cq, _, _ := newQueues(t)
	put := uint32(0)
	ops := map[uint8]verbs.WCOpcode{
		abi.SIW_OP_WRITE: verbs.WCRDMAWrite, abi.SIW_OP_READ: verbs.WCRDMARead, abi.SIW_OP_READ_LOCAL_INV: verbs.WCRDMARead,
		abi.SIW_OP_SEND: verbs.WCSend, abi.SIW_OP_SEND_WITH_IMM: verbs.WCSend, abi.SIW_OP_SEND_REMOTE_INV: verbs.WCSend,
		abi.SIW_OP_RECEIVE: verbs.WCRecv, abi.SIW_OP_INVAL_STAG: verbs.WCLocalInv, 12: 0, 255: 0,
	}
	statuses := map[uint16]verbs.WCStatus{
		0: verbs.WCSuccess, 1: verbs.WCLocLenErr, 2: verbs.WCLocProtErr, 3: verbs.WCLocQPOpErr, 4: verbs.WCFlushErr,
		5: verbs.WCBadRespErr, 6: verbs.WCLocAccessErr, 7: verbs.WCRemAccessErr, 8: verbs.WCRemInvReqErr, 9: verbs.WCGeneralErr, 10: verbs.WCGeneralErr, 999: verbs.WCGeneralErr,
	}
	for op, opcode := range ops {
		for code, status := range statuses {
			cqe := cq.queue.at(put)
			*cqe = abi.SiwCqe{Id: 1<<63 + uint64(put), Flags: abi.SIW_WQE_VALID, Opcode: op, Status: code, Bytes: 1<<31 + put}
			*cqe.QpId() = 0x123456
			var wcs [2]verbs.WC
			want := verbs.WC{ID: 1<<63 + uint64(put), Opcode: opcode, Status: status, ByteLen: 1<<31 + put, QPNum: 0x123456}
			if !cq.HasCompletions() {
				t.Fatalf("none at %d", put)
			}
			if n := provider.Poll(cq, wcs[:]); n != 1 || wcs[0] != want {
				t.Fatalf("opcode %d, status %d: %+v, want %+v", op, code, wcs[:n], want)
			}
			if put++; cq.HasCompletions() || cqeWord(cqe).Load() != 0 {
				t.Fatalf("still there at %d", put-1)
			}
		}
	}
}

// TestPollsInPart polls a full queue with less room.
func TestPollsInPart(t *testing.T) {
	_, cq, _, _ := newQueues(t)
	for i := range uint32(8) {
		*cq.queue.at(i) = abi.SiwCqe{Id: uint64(i), Flags: abi.SIW_WQE_VALID}
	}
	var ids []uint64
	wcs := make([]verbs.WC, 3)
	for _, want := range []int{3, 3, 2, 0} {
		n := provider.Poll(cq, wcs)
		if n != want {
			t.Fatalf("polled %d, not %d", n, want)
		}
		for i := range n {
			ids = append(ids, wcs[i].ID)
		}
	}
	if !slices.Equal(ids, []uint64{0, 1, 2, 3, 4, 5, 6, 7}) {
		t.Error(ids)
	}
}

// TestArm checks the word behind the queue, which the kernel reads, and the reuse of an armed CQ with completions.
func TestArm(t *testing.T) {
	h, cq, _, _ := newQueues(t)
	word := (*uint32)(unsafe.Pointer(&h.file[8*unsafe.Sizeof(abi.SiwCqe{})]))
	woken := 0
	cq.wake = func() { woken++ }
	cq.flush(1, 2, verbs.WCSend)
	if woken != 0 {
		t.Error("woken, but not armed")
	}
	for _, solicited := range []bool{true, false} {
		if err := cq.Arm(solicited); err != nil || *word != abi.SIW_NOTIFY_ALL {
			t.Errorf("solicited %t: %d, %v", solicited, *word, err)
		}
	}
	for i := range uint32(3) {
		*cq.queue.at(i) = abi.SiwCqe{Flags: abi.SIW_WQE_VALID}
	}
	next := cq.Recycle().(*completionQueue)
	if *word != abi.SIW_NOTIFY_NOT || next.get != 3 || isValid(next.Word.Load()) || next.HasCompletions() {
		t.Errorf("armed %d, next completion %d", *word, next.get)
	}
	*next.queue.at(3) = abi.SiwCqe{Id: 7, Flags: abi.SIW_WQE_VALID}
	var wcs [2]verbs.WC
	if n := provider.Poll(next, wcs[:]); n != 1 || wcs[0].ID != 7 {
		t.Errorf("%+v", wcs[:n])
	}
	next.Arm(false)
	next.flush(1, 2, verbs.WCSend)
	if woken != 1 {
		t.Errorf("woken %d times", woken)
	}
	if err := cq.Arm(false); !errors.Is(err, verbs.ErrClosed) || *word != abi.SIW_NOTIFY_NOT {
		t.Errorf("a queue that is used again: %v", err)
	}
}

// TestSpareElements checks how many elements a QP asks the kernel for, and how many requests it then holds.
func TestSpareElements(t *testing.T) {
	for _, test := range []struct{ sends, recvs, wantSends, wantRecvs int }{
		{0, 0, 0, 0}, {1, 1, 3, 2}, {7, 8, 9, 9}, {1 << 15, 1 << 15, 1 << 15, 1 << 15}, {1<<15 - 1, 1<<15 - 1, 1 << 15, 1 << 15},
	} {
		h := newFakeDevice(t)
		init := &provider.QPInit{Type: verbs.RC, Cap: verbs.QPCap{MaxSendWR: test.sends, MaxRecvWR: test.recvs}}
		var asked verbs.QPCap
		sq, rq, err := context{h.dev}.CreateQP(init, func(u provider.UHW) (provider.QPInfo, error) {
			asked = init.Cap
			rqes := uint32(16)
			if test.recvs == 0 {
				rqes = 0
			}
			copy(u.Out, mmap.Bytes(&abi.SiwUrespCreateQp{NumSqe: 16, NumRqe: rqes, SqKey: queueSpace, RqKey: 2 * queueSpace}))
			return provider.QPInfo{Cap: verbs.QPCap{MaxSendSGE: 99, MaxRecvSGE: 99, MaxInline: 9999}}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if asked.MaxSendWR != test.wantSends || asked.MaxRecvWR != test.wantRecvs || asked.MaxSendSGE != 2 {
			t.Errorf("%+v: %+v", test, asked)
		}
		if s, r := sq.Cap(), rq.Cap(); s != min(test.sends, 16) || r != min(test.recvs, 16) {
			t.Errorf("%+v: room for %d and %d", test, s, r)
		}
		s, r := sq.(*sendQueue), rq.(*recvQueue)
		if s.recv != r || s.MaxSGE != abi.SIW_MAX_SGE || r.MaxSGE != abi.SIW_MAX_SGE || s.MaxInline != 80 || (context{}).MaxInline() != 80 {
			t.Errorf("%d and %d SGEs, %d bytes inline", s.MaxSGE, r.MaxSGE, s.MaxInline)
		}
		sq.Release()
		rq.Release()
	}
}

// TestCreateFails makes objects that the kernel refuses, or whose queues cannot be mapped.
func TestCreateFails(t *testing.T) {
	h := newFakeDevice(t)
	for name, fail := range map[string]error{"refused": syscall.ENOMEM, "not mapped": nil} {
		for step := range 4 {
			qp := abi.SiwUrespCreateQp{NumSqe: 16, NumRqe: 16, SqKey: queueSpace, RqKey: 2 * queueSpace}
			var err error
			switch c := (context{h.dev}); step {
			case 0:
				_, err = c.CreateCQ(&provider.CQInit{}, func(u provider.UHW) (provider.CQInfo, error) {
					copy(u.Out, mmap.Bytes(&abi.SiwUrespCreateCq{NumCqe: 6}))
					return provider.CQInfo{}, fail
				})
			case 1:
				_, err = c.CreateSRQ(&provider.SRQInit{}, func(u provider.UHW) (provider.SRQInfo, error) {
					copy(u.Out, mmap.Bytes(&abi.SiwUrespCreateSrq{NumRqe: 0}))
					return provider.SRQInfo{}, fail
				})
			case 2, 3:
				if step == 2 {
					qp.SqKey = 1 << 40
				} else {
					qp.RqKey = 1 << 40
				}
				_, _, err = c.CreateQP(&provider.QPInit{}, func(u provider.UHW) (provider.QPInfo, error) {
					copy(u.Out, mmap.Bytes(&qp))
					return provider.QPInfo{}, fail
				})
			}
			if err == nil || fail != nil && err != fail {
				t.Errorf("%s, object %d: %v", name, step, err)
			}
		}
	}
}

// TestSRQ makes an SRQ, and a QP that uses it.
func TestSRQ(t *testing.T) {
	h := newFakeDevice(t)
	q, err := context{h.dev}.CreateSRQ(&provider.SRQInit{}, func(u provider.UHW) (provider.SRQInfo, error) {
		copy(u.Out, mmap.Bytes(&abi.SiwUrespCreateSrq{NumRqe: 8, SrqKey: 2 * queueSpace}))
		return provider.SRQInfo{Handle: 9, MaxSGE: 99}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Release()
	if n, err := q.Post(make([]verbs.RecvWR, 9)); n != 8 || err != verbs.ErrQueueFull || q.Cap() != 8 || q.(*recvQueue).MaxSGE != abi.SIW_MAX_SGE {
		t.Errorf("posted %d to a queue of %d: %v", n, q.Cap(), err)
	}
	sq, rq, err := context{h.dev}.CreateQP(&provider.QPInit{SRQ: q}, func(u provider.UHW) (provider.QPInfo, error) {
		copy(u.Out, mmap.Bytes(&abi.SiwUrespCreateQp{NumSqe: 8, SqKey: queueSpace}))
		return provider.QPInfo{}, nil
	})
	if err != nil || rq != nil {
		t.Fatal(rq, err)
	}
	sq.Release()
}

// TestRegisterMR refuses what siw would ignore: an address of remote peers that is not the memory's.
func TestRegisterMR(t *testing.T) {
	for name, test := range map[string]struct {
		init provider.MRInit
		ok   bool
	}{
		"own address": {provider.MRInit{Start: 4096, IOVA: 4096}, true}, "other address": {provider.MRInit{Start: 4096}, false},
		"zero based": {provider.MRInit{Access: abi.IB_UVERBS_ACCESS_ZERO_BASED}, false},
		"access":     {provider.MRInit{Access: abi.IB_UVERBS_ACCESS_LOCAL_WRITE}, true},
	} {
		registered := false
		_, err := context{}.RegisterMR(&test.init, func(u provider.UHW) error {
			registered = len(u.In) == int(unsafe.Sizeof(abi.SiwUreqRegMr{})) && len(u.Out) == int(unsafe.Sizeof(abi.SiwUrespRegMr{}))
			return nil
		})
		if registered != test.ok || (err == nil) != test.ok || err != nil && !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%s: %t, %v", name, registered, err)
		}
	}
}

// TestFailedQueuesFill posts to a QP in state ERR until its queues are full, which they are until completions are polled.
func TestFailedQueuesFill(t *testing.T) {
	_, cq, sq, rq := newQueues(t)
	providertest.SetState(sq, rq, verbs.StateErr)
	for range 2 {
		n, serr := sq.Post(make([]verbs.SendWR, sq.Cap()+1))
		m, rerr := rq.Post(make([]verbs.RecvWR, rq.Cap()+1))
		if n != sq.Cap() || m != rq.Cap() || serr != verbs.ErrQueueFull || rerr != verbs.ErrQueueFull {
			t.Fatalf("%d of %d sends: %v; %d of %d receives: %v", n, sq.Cap(), serr, m, rq.Cap(), rerr)
		}
		if got := provider.Poll(cq, make([]verbs.WC, 100)); got != n+m {
			t.Fatalf("%d completions of %d requests", got, n+m)
		}
	}
}
