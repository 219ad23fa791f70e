//go:build linux

package erdma

import (
	"errors"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/provider"
	"github.com/goverbs/verbs/providertest"
)

var (
	_ provider.Flusher       = (*sendQueue)(nil)
	_ provider.Flusher       = (*recvQueue)(nil)
	_ provider.InlineLimiter = (*context)(nil)
	_ provider.SGELimiter    = (*context)(nil)
	_ provider.EventCounter  = (*completionQueue)(nil)
)

func small() verbs.QPCap {
	return verbs.QPCap{MaxSendWR: 8, MaxSendSGE: 6, MaxRecvWR: 8, MaxRecvSGE: 1, MaxInline: 96}
}

// TestRegisters: a QP rings the registers that its number and its context's kind of page name, and a
// CQ that of its number.
func TestRegisters(t *testing.T) {
	for _, test := range []struct {
		kind, offset uint32
		send         int
	}{
		{0, 0, fakeQPN % 32 * 128}, {1, 0, 0}, {1, 3, 3 * 256}, {1, 15, 15 * 256}, {2, 3, fakeQPN % 32 * 128},
	} {
		f := newFake(t, true, test.kind, test.offset)
		cq := f.cq(t, provider.CQInit{Depth: 100}, 0x5203)
		if got, want := le.Uint64(cq.mem), uint64(0xff<<56|0x5203<<32|3<<28); got != want {
			t.Errorf("record of a new CQ %#x, want %#x", got, want)
		}
		p := f.qp(t, cq, small())
		if n, err := p.send.Post([]verbs.SendWR{{Opcode: verbs.OpRDMARead, SGL: []verbs.SGE{{Length: 1}}}}); n != 1 {
			t.Fatal(err)
		}
		if n, err := p.recv.Post(make([]verbs.RecvWR, 3)); n != 3 {
			t.Fatal(err)
		}
		if err := cq.Arm(true); err != nil {
			t.Fatal(err)
		}
		if got, want := f.register(0, test.send), uint64(fakeQPN<<32|2); got != want || le.Uint64(p.record) != want {
			t.Errorf("kind %d, offset %d: doorbell of sends %#x and record %#x, want %#x", test.kind, test.offset, got, p.record[:8], want)
		}
		if got, want := f.register(1, fakeQPN%128*32), uint64(fakeQPN<<32|3); got != want || le.Uint64(p.record[8:]) != want {
			t.Errorf("doorbell of receives %#x and record %#x, want %#x", got, p.record[8:16], want)
		}
		if got, want := f.register(2, 0x203%512*8), uint64(0x5203<<32|3<<30); got != want || le.Uint64(cq.mem) != want {
			t.Errorf("doorbell of the CQ %#x and record %#x, want %#x", got, cq.mem[:8], want)
		}
	}
}

// TestBadAnswers: the driver refuses what it could not use, and frees what it has made.
func TestBadAnswers(t *testing.T) {
	dev := &provider.Device{FD: -1}
	for offset, what := range map[uint32]string{16: "entry 16 of a page with 16", 0: "mmap"} {
		_, err := Driver{}.GetContext(dev, func(u provider.UHW) error {
			copy(u.Out, mmap.Bytes(&abi.ErdmaUrespAllocCtx{SdbType: 1, SdbOffset: offset}))
			return nil
		})
		if errors.Is(err, errors.ErrUnsupported) {
			t.Skip(err)
		}
		if err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("entry %d: %v", offset, err)
		}
	}
	if _, err := (Driver{}).GetContext(dev, func(provider.UHW) error { return syscall.EPERM }); !errors.Is(err, syscall.EPERM) || !strings.Contains(err.Error(), "CAP_SYS_RAWIO") {
		t.Error(err)
	}
	if _, err := (Driver{}).ImportContext(dev, nil); !errors.Is(err, errors.ErrUnsupported) {
		t.Error(err)
	}
	f := newFake(t, true, 0, 0)
	cq := f.cq(t, provider.CQInit{Depth: 8}, 1)
	free := f.records.Free()
	init := func() *provider.QPInit {
		return &provider.QPInit{Type: verbs.RC, Cap: small(), SendCQ: cq.completionQueue, RecvCQ: cq.completionQueue}
	}
	good := abi.ErdmaUrespCreateQp{QpId: 7, NumSqe: 32, NumRqe: 8, RqOffset: 4096}
	for name, spoil := range map[string]func(*abi.ErdmaUrespCreateQp){
		"number":  func(r *abi.ErdmaUrespCreateQp) { r.QpId = 8 },
		"sends":   func(r *abi.ErdmaUrespCreateQp) { r.NumSqe = 64 },
		"recvs":   func(r *abi.ErdmaUrespCreateQp) { r.NumRqe = 16 },
		"offset":  func(r *abi.ErdmaUrespCreateQp) { r.RqOffset = 1024 },
		"nothing": nil,
	} {
		_, _, err := f.CreateQP(init(), func(u provider.UHW) (provider.QPInfo, error) {
			r := good
			if spoil == nil {
				return provider.QPInfo{}, os.ErrInvalid
			}
			spoil(&r)
			copy(u.Out, mmap.Bytes(&r))
			return provider.QPInfo{QPNum: 7}, nil
		})
		if err == nil || f.records.Free() != free {
			t.Errorf("%s: %v; %d records of %d", name, err, f.records.Free(), free)
		}
	}
	for _, bad := range []func(*provider.QPInit){
		func(i *provider.QPInit) { i.Type = verbs.UD }, func(i *provider.QPInit) { i.SendCQ = nil },
		func(i *provider.QPInit) { i.Cap.MaxSendSGE = 7 }, func(i *provider.QPInit) { i.Cap.MaxRecvSGE = 2 },
		func(i *provider.QPInit) { i.Cap.MaxInline = 97 }, func(i *provider.QPInit) { i.Cap.MaxSendWR = 8193 }, func(i *provider.QPInit) { i.Cap.MaxRecvWR = 1<<15 + 1 },
	} {
		i := init()
		bad(i)
		if _, err := f.newQP(i, 7); !errors.Is(err, syscall.EINVAL) && !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%+v: %v", i.Cap, err)
		}
	}
	for _, n := range []uint32{32, 128} {
		if _, err := f.CreateCQ(&provider.CQInit{Depth: 10}, func(u provider.UHW) (provider.CQInfo, error) {
			copy(u.Out, mmap.Bytes(&abi.ErdmaUrespCreateCq{NumCqe: n}))
			return provider.CQInfo{}, nil
		}); err == nil || f.records.Free() != free {
			t.Errorf("CQ of %d: %v; %d records of %d", n, err, f.records.Free(), free)
		}
	}
}

// TestPins: the kernel's request states the locked memory that a queue takes: the pages of both queues
// of a QP, each for itself, and one of doorbell records.
func TestPins(t *testing.T) {
	page := os.Getpagesize()
	for _, test := range []struct{ sends, at, recvs, want int }{
		{32 * 32, hardwarePage, 8 * 32, 3 * page},
		{4 * page, 4 * page, page, 6 * page},
		{2*page - 32, 2 * page, page + 32, 5 * page},
	} {
		if page > hardwarePage && test.at%page != 0 {
			test.want = 3 * page // both are in one page, which is pinned twice
		}
		if got := pinsOfQP(test.sends, test.at, test.recvs); got != test.want {
			t.Errorf("%+v pins %d", test, got)
		}
	}
	f := newFake(t, true, 0, 0)
	var got int
	f.CreateCQ(&provider.CQInit{Depth: 1000}, func(u provider.UHW) (provider.CQInfo, error) {
		got = u.Pins
		return provider.CQInfo{}, os.ErrInvalid
	})
	if want := provider.Pins(1024 * cqeSize); got != want {
		t.Errorf("CQ of 1000 pins %d bytes, want %d", got, want)
	}
}

// TestSizes: the kernel is told where the queues of a QP are, and how long they are.
func TestSizes(t *testing.T) {
	f := newFake(t, true, 0, 0)
	cq := f.cq(t, provider.CQInit{Depth: 64}, 1)
	create := f.kernel.CreateQP
	var req abi.ErdmaUreqCreateQp
	var pins int
	f.kernel.CreateQP = func(qp *providertest.QP, u provider.UHW) error {
		req, pins = providertest.Request[abi.ErdmaUreqCreateQp](u), u.Pins
		return create(qp, u)
	}
	for _, test := range []struct{ sends, recvs, length int }{{1, 1, 4096 + 32}, {8, 8, 4096 + 256}, {32, 100, 4096 + 4096}, {33, 64, 8192 + 2048}} {
		p := f.qp(t, cq, verbs.QPCap{MaxSendWR: test.sends, MaxRecvWR: test.recvs})
		if int(req.QbufLen) != test.length || len(p.memory()) < test.length || req.QbufVa != p.buf.Addr() || req.DbRecordVa != mmap.Addr(p.record) {
			t.Errorf("%d and %d: %+v of %d bytes", test.sends, test.recvs, req, len(p.memory()))
		}
		sends, recvs := provider.RoundUp(test.sends*maxUnits)*unit, provider.RoundUp(test.recvs)*unit
		if want := pinsOfQP(sends, test.length-recvs, recvs); pins != want {
			t.Errorf("%d and %d: %d bytes pinned, want %d", test.sends, test.recvs, pins, want)
		}
	}
}

// TestStates: on iWARP a QP takes requests in any state but ERR, on RoCE as the specification says.
// A QP that has failed, as the program or a completion says, completes what is posted as flushed,
// and wakes an armed CQ.
func TestStates(t *testing.T) {
	for _, iwarp := range []bool{true, false} {
		f := newFake(t, iwarp, 0, 0)
		woken := 0
		cq := f.cq(t, provider.CQInit{Depth: 8, Wake: func() { woken++ }}, 1)
		p := f.qp(t, cq, small())
		post := func() (send, recv error) {
			_, send = p.send.Post([]verbs.SendWR{{ID: 1, Opcode: verbs.OpSend}})
			_, recv = p.recv.Post([]verbs.RecvWR{{ID: 2}})
			return send, recv
		}
		if !iwarp {
			for s, want := range map[verbs.QPState][2]error{
				verbs.StateReset: {verbs.ErrState, verbs.ErrState}, verbs.StateInit: {verbs.ErrState, nil}, verbs.StateRTR: {verbs.ErrState, nil}, verbs.StateRTS: {},
			} {
				p.settle(s)
				if send, recv := post(); !errors.Is(send, want[0]) || !errors.Is(recv, want[1]) {
					t.Errorf("%v: %v, %v", s, send, recv)
				}
				if _, err := p.send.Post(nil); !errors.Is(err, want[0]) {
					t.Errorf("%v: no sends: %v", s, err)
				}
			}
			p.settle(verbs.StateReset)
			p.settle(verbs.StateRTS)
		}
		if send, recv := post(); send != nil || recv != nil || len(cq.poll()) != 0 {
			t.Errorf("iWARP %v: %v, %v", iwarp, send, recv)
		}
		flushed := func(want int) {
			t.Helper()
			if err := cq.Arm(false); err != nil {
				t.Fatal(err)
			}
			bell := f.register(0, fakeQPN%32*128)
			send, recv := post()
			wcs := cq.poll()
			if send != nil || recv != nil || len(wcs) != 2 || wcs[0] != (verbs.WC{ID: 1, Status: verbs.WCFlushErr, QPNum: fakeQPN}) ||
				wcs[1] != (verbs.WC{ID: 2, Status: verbs.WCFlushErr, Opcode: verbs.WCRecv, QPNum: fakeQPN}) {
				t.Errorf("iWARP %v: %v, %v, %+v", iwarp, send, recv, wcs)
			}
			if f.register(0, fakeQPN%32*128) != bell || woken != want {
				t.Errorf("iWARP %v: the device hears of it, or the waiter has been woken %d times, not %d", iwarp, woken, want)
			}
		}
		cq.put(cqe{num: fakeQPN, syndrome: 10})
		cq.put(cqe{num: fakeQPN, syndrome: 15, recv: true})
		if wcs := cq.poll(); len(wcs) != 2 || wcs[0].Status != verbs.WCLocAccessErr || wcs[0].VendorErr != 0x30 || wcs[1].Status != verbs.WCFlushErr {
			t.Errorf("%+v", wcs)
		}
		flushed(1)
		p.settle(verbs.StateErr)
		flushed(2)
		p.settle(verbs.StateReset)
		if iwarp {
			flushed(3) // which the kernel does not do there
			continue
		}
		p.settle(verbs.StateRTS)
		if send, recv := post(); send != nil || recv != nil || p.send.put != 1 || p.recv.put != 1 || le.Uint64(p.record) != fakeQPN<<32|1 {
			t.Errorf("after a reset: %v, %v, %d and %d posted, record %x", send, recv, p.send.put, p.recv.put, p.record[:8])
		}
		cq.put(cqe{num: fakeQPN})
		cq.put(cqe{num: fakeQPN, recv: true, opcode: opRecv})
		if wcs := cq.poll(); len(wcs) != 2 || wcs[0].ID != 1 || wcs[1].ID != 2 {
			t.Errorf("after a reset: %+v", wcs)
		}
		for i := range 3 { // a reset frees all room
			n, serr := p.send.Post(slices.Repeat([]verbs.SendWR{{Opcode: verbs.OpSend}}, 9))
			m, rerr := p.recv.Post(make([]verbs.RecvWR, 9))
			if n != 8 || m != 8 || serr != verbs.ErrQueueFull || rerr != verbs.ErrQueueFull {
				t.Errorf("after %d resets: posted %d and %d: %v, %v", i+1, n, m, serr, rerr)
			}
			p.settle(verbs.StateReset)
			p.settle(verbs.StateRTS)
		}
	}
}

// TestFailedQueuesFill posts to a QP in the error state until its queues are full, which they are until completions are polled.
func TestFailedQueuesFill(t *testing.T) {
	f := newFake(t, true, 0, 0)
	cq := f.cq(t, provider.CQInit{Depth: 8}, 1)
	p := f.qp(t, cq, small())
	p.settle(verbs.StateErr)
	for range 2 {
		n, serr := p.send.Post(make([]verbs.SendWR, 9))
		m, rerr := p.recv.Post(make([]verbs.RecvWR, 9))
		if wcs := cq.poll(); n != 8 || m != 8 || serr != verbs.ErrQueueFull || rerr != verbs.ErrQueueFull || len(wcs) != 16 {
			t.Fatalf("%d sends: %v; %d receives: %v; %d completions", n, serr, m, rerr, len(wcs))
		}
	}
}

// TestFlushedInOrder: what is posted to a failed QP completes behind the requests that the device has yet to complete, all that
// are signaled. Those of another QP need not wait.
func TestFlushedInOrder(t *testing.T) {
	f := newFake(t, true, 0, 0)
	cq := f.cq(t, provider.CQInit{Depth: 8}, 1)
	p := f.qp(t, cq, small())
	other, err := f.newQP(&provider.QPInit{Type: verbs.RC, Cap: small(), SendCQ: cq.completionQueue, RecvCQ: cq.completionQueue}, fakeQPN+1)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { other.send.Release(); other.recv.Release() }()
	post := func(p *queuePair, id uint64, flags verbs.SendFlags) {
		t.Helper()
		if _, err := p.send.Post([]verbs.SendWR{{ID: id, Opcode: verbs.OpSend, Flags: flags}}); err != nil {
			t.Fatal(err)
		}
	}
	check := func(want ...uint64) {
		t.Helper()
		if cq.HasCompletions() != (len(want) > 0) {
			t.Errorf("it has completions: %v, and %d are expected", len(want) == 0, len(want))
		}
		for _, id := range want {
			var wcs [1]verbs.WC
			if n := provider.Poll(cq, wcs[:]); n != 1 || wcs[0].ID != id || wcs[0].Status != verbs.WCFlushErr {
				t.Errorf("%d: %+v, want %d", n, wcs, id)
			}
		}
		if wcs := cq.poll(); len(wcs) > 0 {
			t.Errorf("%+v", wcs)
		}
	}
	post(p, 1, 0)
	post(p, 2, verbs.SendSignaled)
	post(p, 3, verbs.SendSignaled)
	post(p, 4, 0)
	p.settle(verbs.StateErr)
	other.settle(verbs.StateErr)
	post(p, 5, 0)
	post(other, 6, 0)
	post(p, 7, 0)
	check(6)
	cq.put(cqe{num: fakeQPN, index: 1, syndrome: 15})
	check(2)
	cq.put(cqe{num: fakeQPN, index: 2, syndrome: 15})
	check(3, 5, 7)
	cq.put(cqe{num: fakeQPN, index: 3, syndrome: 15})
	post(p, 8, 0)
	check(4, 8)
}

// TestFlushedLate: what the program posts before it knows that the QP has failed, and the device ignores, completes a second
// later, behind what the device has flushed and before what is posted later. It wakes an armed CQ. A QP that is reset or
// closed meanwhile completes nothing.
func TestFlushedLate(t *testing.T) {
	for _, single := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake(t, false, 0, 0)
			woken := 0
			cq := f.cq(t, provider.CQInit{Depth: 64, SingleThreaded: single, Wake: func() { woken++ }}, 1)
			init := &provider.QPInit{Type: verbs.RC, Cap: small(), SendCQ: cq.completionQueue, RecvCQ: cq.completionQueue, SingleThreaded: single}
			p, err := f.newQP(init, fakeQPN)
			if err != nil {
				t.Fatal(err)
			}
			post := func(ids ...uint64) {
				t.Helper()
				for _, id := range ids {
					flags := verbs.SendSignaled
					if id == 4 { // the device may have executed it
						flags = 0
					}
					_, serr := p.send.Post([]verbs.SendWR{{ID: id, Opcode: verbs.OpSend, Flags: flags}})
					_, rerr := p.recv.Post([]verbs.RecvWR{{ID: id + 100}})
					if serr != nil || rerr != nil {
						t.Fatal(serr, rerr)
					}
				}
			}
			var got []uint64
			poll := func() {
				for _, wc := range cq.poll() {
					if got = append(got, wc.ID); wc.Status == verbs.WCSuccess {
						t.Errorf("%+v", wc)
					}
				}
			}
			check := func(want ...uint64) {
				t.Helper()
				if poll(); !slices.Equal(got, want) {
					t.Errorf("completed %v, not %v", got, want)
				}
				got = nil
			}
			wait := func(d time.Duration) {
				time.Sleep(d)
				synctest.Wait()
			}
			p.settle(verbs.StateRTS)
			post(1, 2, 3, 4)
			cq.put(cqe{num: fakeQPN, syndrome: 10})
			check(1)
			cq.put(cqe{num: fakeQPN, index: 1, syndrome: 15})
			cq.put(cqe{num: fakeQPN, syndrome: 15, recv: true})
			post(5)
			wait(flushTime + time.Millisecond) // completions of the device wait
			check(2, 101)
			wait(flushTime - 2*time.Millisecond)
			check()
			if err := cq.Arm(false); err != nil {
				t.Fatal(err)
			}
			wait(2 * time.Millisecond)
			if woken != 1 {
				t.Errorf("the waiter has been woken %d times", woken)
			}
			poll()
			slices.SortStableFunc(got, func(a, b uint64) int { return int(a/100) - int(b/100) }) // sends first
			check(3, 5, 102, 103, 104, 105)
			cq.put(cqe{num: fakeQPN, index: 2, syndrome: 15})
			check()

			p.settle(verbs.StateReset)
			p.settle(verbs.StateRTS)
			post(6)
			p.settle(verbs.StateErr)
			p.settle(verbs.StateReset)
			p.settle(verbs.StateRTS)
			post(7)
			wait(2 * flushTime)
			check()
			p.settle(verbs.StateErr)
			p.send.Release()
			p.recv.Release()
			wait(2 * flushTime)
			check()

			// Of two CQs one has a completion of the device.
			recvs := f.cq(t, provider.CQInit{Depth: 64, SingleThreaded: single}, 2)
			init.RecvCQ = recvs.completionQueue
			if p, err = f.newQP(init, fakeQPN); err != nil {
				t.Fatal(err)
			}
			p.settle(verbs.StateRTS)
			post(8, 9)
			p.settle(verbs.StateErr)
			recvs.put(cqe{num: fakeQPN, syndrome: 15, recv: true})
			wait(flushTime + time.Millisecond)
			check(8, 9)
			if wcs := recvs.poll(); len(wcs) != 1 || wcs[0].ID != 108 {
				t.Errorf("receives %+v", wcs)
			}
			wait(flushTime)
			if wcs := recvs.poll(); len(wcs) != 1 || wcs[0].ID != 109 {
				t.Errorf("late receives %+v", wcs)
			}
			p.send.Release()
			p.recv.Release()
		})
	}
}

// TestRefused: requests that the device would refuse, or do something else for, are not posted, and
// those before them are.
func TestRefused(t *testing.T) {
	f := newFake(t, true, 0, 0)
	cq := f.cq(t, provider.CQInit{Depth: 64}, 1)
	caps := small()
	caps.MaxSendSGE, caps.MaxInline = 3, 40
	p := f.qp(t, cq, caps)
	ok := verbs.SendWR{Opcode: verbs.OpRDMAWrite, SGL: make([]verbs.SGE, 1)}
	long := []verbs.SGE{{Length: 1<<32 - 1}, {Length: 1}}
	posted := uint32(0)
	for _, test := range []struct {
		wr   verbs.SendWR
		want error
	}{
		{verbs.SendWR{}, verbs.ErrNoOpcode},
		{verbs.SendWR{Opcode: verbs.OpLocalInv}, verbs.ErrOpcode},
		{verbs.SendWR{Opcode: verbs.OpBindMW}, verbs.ErrOpcode},
		{verbs.SendWR{Opcode: verbs.OpRDMAReadInv}, verbs.ErrOpcode},
		{verbs.SendWR{Opcode: 1000}, verbs.ErrOpcode},
		{verbs.SendWR{Opcode: verbs.OpSend, SGL: make([]verbs.SGE, 4)}, verbs.ErrTooManySGEs},
		{verbs.SendWR{Opcode: verbs.OpSend, SGL: long}, verbs.ErrMessageTooLong},
		{verbs.SendWR{Opcode: verbs.OpSend, Inline: make([]byte, 41)}, verbs.ErrInlineTooLong},
		{verbs.SendWR{Opcode: verbs.OpSend, Inline: make([]byte, 4), SGL: make([]verbs.SGE, 1)}, verbs.ErrInlineSGL},
		{verbs.SendWR{Opcode: verbs.OpSend, Inline: make([]byte, 4), Args: &verbs.SendArgs{InlineList: [][]byte{make([]byte, 37)}}}, verbs.ErrInlineTooLong},
		{verbs.SendWR{Opcode: verbs.OpSend, SGL: make([]verbs.SGE, 1), Args: &verbs.SendArgs{InlineList: [][]byte{{1}}}}, verbs.ErrInlineSGL},
		{verbs.SendWR{Opcode: verbs.OpRDMARead, Inline: make([]byte, 4)}, verbs.ErrInlineOp},
		{verbs.SendWR{Opcode: verbs.OpRDMARead, SGL: make([]verbs.SGE, 2)}, verbs.ErrTooManySGEs},
		{verbs.SendWR{Opcode: verbs.OpFetchAdd, SGL: make([]verbs.SGE, 1)}, verbs.ErrAtomicSGL},
		{verbs.SendWR{Opcode: verbs.OpCompareSwap, SGL: []verbs.SGE{{Length: 4}, {Length: 4}}}, verbs.ErrTooManySGEs},
	} {
		for _, list := range [][]verbs.SendWR{{test.wr}, {ok, test.wr, ok}} {
			n, err := p.send.Post(list)
			var refused *verbs.PostError
			if n != len(list)/2 || !errors.Is(err, test.want) || !errors.As(err, &refused) || refused.Index != n {
				t.Errorf("%+v: %d of %d posted: %v", test.wr, n, len(list), err)
			}
			posted += uint32(n) * 2
			if p.send.put != posted || le.Uint64(p.record)&indexMask != uint64(posted) {
				t.Fatalf("%d units posted, %d expected, record %x", p.send.put, posted, p.record[:8])
			}
			if n == 1 {
				cq.put(cqe{num: fakeQPN, index: posted - 2})
				if len(cq.poll()) != 1 {
					t.Fatal("no completion")
				}
			}
		}
	}
	for _, test := range []struct {
		sgl  []verbs.SGE
		want error
	}{{make([]verbs.SGE, 2), verbs.ErrTooManySGEs}} {
		if n, err := p.recv.Post([]verbs.RecvWR{{}, {SGL: test.sgl}}); n != 1 || !errors.Is(err, test.want) {
			t.Errorf("%d receives posted: %v", n, err)
		}
	}
	p.send.MaxMessage, p.send.limit = 100, 101
	for length, want := range map[uint32]error{100: nil, 101: verbs.ErrMessageTooLong} {
		wr := verbs.SendWR{Opcode: verbs.OpSend, SGL: []verbs.SGE{{Length: length}}}
		for _, list := range [][]verbs.SendWR{{wr}, {wr, wr}} {
			if n, err := p.send.Post(list); !errors.Is(err, want) {
				t.Errorf("%d of %d messages of %d bytes: %v", n, len(list), length, err)
			}
		}
	}
	if n, err := p.recv.Post(make([]verbs.RecvWR, 9)); n != 7 || err != verbs.ErrQueueFull {
		t.Errorf("%d receives posted: %v", n, err)
	}
}

// TestInlineParts: short inline data in several parts are not taken for the first of them.
func TestInlineParts(t *testing.T) {
	f := newFake(t, true, 0, 0)
	p := f.qp(t, f.cq(t, provider.CQInit{Depth: 64}, 1), small())
	wr := verbs.SendWR{Opcode: verbs.OpSend, Inline: []byte("abcd"), Args: &verbs.SendArgs{InlineList: [][]byte{[]byte("ef"), []byte("g")}}}
	if n, err := p.send.Post([]verbs.SendWR{wr, wr}); n != 2 {
		t.Fatal(err)
	}
	for i := range uint32(2) {
		if d := decode(t, p.memory(), p.send.mask+1, i); string(d.inline) != "abcdefg" {
			t.Errorf("request %d: %q", i, d.inline)
		}
	}
}

// TestOverrun: on a nearly full queue no request is written over another that is in flight. liberdma
// takes it as long as one unit is free.
func TestOverrun(t *testing.T) {
	f := newFake(t, true, 0, 0)
	cq := f.cq(t, provider.CQInit{Depth: 64}, 1)
	caps := small()
	caps.MaxSendWR = 1
	p := f.qp(t, cq, caps)
	if n, err := p.send.Post([]verbs.SendWR{{Opcode: verbs.OpSend}, {Opcode: verbs.OpRDMAWrite, SGL: make([]verbs.SGE, 6)}}); n != 1 || err != verbs.ErrQueueFull {
		t.Errorf("%d posted: %v", n, err)
	}
}

// TestPanic: inline data in memory that is unmapped leaves the queue usable.
func TestPanic(t *testing.T) {
	f := newFake(t, true, 0, 0)
	p := f.qp(t, f.cq(t, provider.CQInit{Depth: 64}, 1), small())
	b, err := mmap.NewBuffer(os.Getpagesize(), mmap.BufferOptions{})
	if err != nil {
		t.Fatal(err)
	}
	gone := b.Bytes()
	b.Close()
	for _, n := range []int{8, 60} {
		for _, list := range [][]verbs.SendWR{{{Opcode: verbs.OpSend, Inline: gone[:n]}}, {{Opcode: verbs.OpSend}, {Opcode: verbs.OpSend, Inline: gone[:n]}}} {
			func() {
				defer func() {
					if recover() == nil {
						t.Error("no panic")
					}
				}()
				old := setPanicOnFault()
				defer old()
				p.send.Post(list)
			}()
			if p.send.put != 0 || !p.send.TryLock() {
				t.Fatal("the queue is locked, or has a request")
			}
			p.send.Unlock()
		}
	}
}
