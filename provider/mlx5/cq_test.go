//go:build linux

package mlx5

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/provider"
	"github.com/goverbs/verbs/providertest"
)

// TestCompletions decodes CQEs of every kind, of both sizes.
func TestCompletions(t *testing.T) {
	const imm = 0x0a0b0c0d
	withImm := func(wc verbs.WC) verbs.WC { provider.SetImm(&wc, imm); return wc }
	withInv := func(wc verbs.WC) verbs.WC { provider.SetInvalidatedRKey(&wc, imm); return wc }
	grh := func(wc verbs.WC) verbs.WC { wc.Flags |= verbs.WCGRH; return wc }
	recv := verbs.WC{Opcode: verbs.WCRecv, ByteLen: 99}
	for _, size := range []int{smallCQE, largeCQE} {
		for i, test := range []struct {
			opcode uint32
			wqe    byte // opcode of the request
			want   verbs.WC
		}{
			{cqeRequest, opSend, verbs.WC{}},
			{cqeRequest, opSendImm, verbs.WC{}},
			{cqeRequest, opSendInval, verbs.WC{}},
			{cqeRequest, opWrite, verbs.WC{Opcode: verbs.WCRDMAWrite}},
			{cqeRequest, opWriteImm, verbs.WC{Opcode: verbs.WCRDMAWrite}},
			{cqeRequest, opRead, verbs.WC{Opcode: verbs.WCRDMARead, ByteLen: 99}},
			{cqeRequest, opCompare, verbs.WC{Opcode: verbs.WCCompareSwap, ByteLen: 8}},
			{cqeRequest, opFetchAdd, verbs.WC{Opcode: verbs.WCFetchAdd, ByteLen: 8}},
			{cqeSend, 0, recv},
			{cqeSendImm, 0, withImm(recv)},
			{cqeSendInval, 0, withInv(recv)},
			{cqeWriteImm, 0, withImm(verbs.WC{Opcode: verbs.WCRecvRDMAImm, ByteLen: 99})},
			{cqeRequestErr, opRead, verbs.WC{Status: verbs.WCRetryExcErr, VendorErr: 0x77}},
			{cqeReceiveErr, 0, verbs.WC{Status: verbs.WCRetryExcErr, VendorErr: 0x77, Opcode: verbs.WCRecv}},
		} {
			f := newFake(t, Driver{cqeSize: size})
			cq := f.cq(t, 3)
			p := f.qp(t, verbs.RC, cq, verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 4}, nil)
			for round := range 9 { // the owner bit changes twice
				id := uint64(100*i + round)
				if n, err := p.send.Post([]verbs.SendWR{{ID: id, Opcode: verbs.OpSend}}); n != 1 && test.opcode == cqeRequest {
					t.Fatal(err)
				}
				if n, err := p.recv.Post([]verbs.RecvWR{{ID: id}}); n != 1 && last(0).with(test.opcode, 0).isReceive() {
					t.Fatal(err)
				}
				e := completion(p, uint16(round))
				be.PutUint32(e[cqeImm:], imm)
				be.PutUint32(e[cqeByteCount:], 99)
				if test.opcode >= cqeRequestErr {
					e[cqeSyndrome], e[cqeVendor] = 0x15, 0x77
				}
				be.PutUint32(e[cqeFlagsRQPN:], uint32(round%2)<<28|0x112233)
				be.PutUint32(e[cqeOpcode:], uint32(test.wqe)<<24|fakeQPN)
				cq.put(e, test.opcode)
				want := test.want
				want.ID, want.QPNum = id, fakeQPN
				if round%2 == 1 && want.Opcode >= verbs.WCRecv && want.Status == 0 {
					want = grh(want)
				}
				wcs := make([]verbs.WC, 2)
				if n := provider.Poll(cq, wcs); n != 1 || wcs[0] != want || !bytes.Equal(mmap.Bytes(&wcs[0]), mmap.Bytes(&want)) {
					t.Fatalf("CQE of %d bytes, opcode %d of request %#x, round %d: %d, %+v, want %+v", size, test.opcode, test.wqe, round, n, wcs[0], want)
				}
				if got := swap32(cq.record.Load()); got != uint32(round)+1 {
					t.Fatalf("record %d in round %d", got, round)
				}
			}
		}
	}
}

// TestSyndromes checks the status of every syndrome.
func TestSyndromes(t *testing.T) {
	known := map[uint8]verbs.WCStatus{ // device.h, and mlx5_handle_error_cqe of the kernel's cq.c
		0x01: verbs.WCLocLenErr, 0x02: verbs.WCLocQPOpErr, 0x04: verbs.WCLocProtErr, 0x05: verbs.WCFlushErr,
		0x06: verbs.WCMWBindErr, 0x10: verbs.WCBadRespErr, 0x11: verbs.WCLocAccessErr, 0x12: verbs.WCRemInvReqErr,
		0x13: verbs.WCRemAccessErr, 0x14: verbs.WCRemOpErr, 0x15: verbs.WCRetryExcErr, 0x16: verbs.WCRNRRetryExcErr, 0x22: verbs.WCRemAbortErr,
	}
	for i := range 256 {
		want, ok := known[uint8(i)]
		if !ok {
			want = verbs.WCGeneralErr
		}
		if got := status(uint8(i)); got != want {
			t.Errorf("syndrome %#x is %v, want %v", i, got, want)
		}
	}
}

// TestDatagramSource checks what a completion of a datagram has about its sender, on Ethernet and
// on InfiniBand.
func TestDatagramSource(t *testing.T) {
	for _, link := range []verbs.LinkLayer{verbs.LinkEthernet, verbs.LinkInfiniBand} {
		f := newFake(t, Driver{})
		f.dev.Port.LinkLayer = link
		cq := f.cq(t, 3)
		p := f.qp(t, verbs.UD, cq, verbs.QPCap{MaxRecvWR: 4}, nil)
		if err := p.send.Modify(verbs.QPAttr{Port: 2}, verbs.MaskPort, func(provider.UHW) error { return nil }); err != nil {
			t.Fatal(err)
		}
		if _, err := p.recv.Post(make([]verbs.RecvWR, 1)); err != nil {
			t.Fatal(err)
		}
		e := completion(p, 0)
		be.PutUint32(e[cqeFlagsRQPN:], 1<<28|0x2<<24|0x112233)
		be.PutUint16(e[cqeSLID:], 0x1234)
		e[17] = 0x85 // ml_path
		cq.put(e, cqeSend)
		want := verbs.WC{Opcode: verbs.WCRecv, QPNum: fakeQPN, Flags: verbs.WCGRH, SrcQP: 0x112233, Port: 2}
		if link == verbs.LinkInfiniBand {
			want.SLID, want.SL, want.PathBits = 0x1234, 2, 5
		} else {
			want.Flags |= verbs.WCIPv4
		}
		if wcs := cq.poll(); len(wcs) != 1 || wcs[0] != want {
			t.Errorf("%v: %+v, want %+v", link, wcs, want)
		}
	}
}

// TestWildCompletions polls completions that belong to no request in flight: they are dropped, and
// what is in flight completes later.
func TestWildCompletions(t *testing.T) {
	f := newFake(t, Driver{})
	cq, other := f.cq(t, 63), f.cq(t, 63)
	srq := f.srq(t, 3, 1)
	p := f.qp(t, verbs.RC, cq, verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 3}, nil)
	shares := f.qp(t, verbs.RC, cq, verbs.QPCap{}, srq)
	stranger := f.qp(t, verbs.RC, other, verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4}, nil)
	data := []verbs.SGE{{Length: 1}, {Length: 1}, {Length: 1}} // two blocks
	for range 3 {
		for _, q := range []*queuePair{p, stranger} {
			wr := verbs.SendWR{ID: 5, Opcode: verbs.OpRDMAWrite}
			if q == p {
				wr.SGL = data
			}
			if n, err := q.send.Post([]verbs.SendWR{wr}); n != 1 {
				t.Fatal(err)
			}
		}
	}
	if n, err := srq.Post([]verbs.RecvWR{{ID: 9}}); n != 1 {
		t.Fatal(err)
	}
	wild := []struct {
		p       *queuePair
		counter uint16
		opcode  uint32
	}{
		{p, 1, cqeRequest},    // in a request
		{p, 6, cqeRequest},    // not posted
		{p, 7, cqeRequestErr}, // behind the last block
		{p, 0, cqeSend},       // no receive is posted
		{p, 0, cqeReceiveErr}, //
		{p, 0, cqeResized},    //
		{p, 0, 6}, {p, 0, 11}, // no opcodes
		{p, 0, cqeDropped},                                //
		{shares, 1, cqeSend},                              // not posted
		{shares, 4, cqeWriteImm},                          // not in the list
		{shares, 0, cqeRequest},                           // it has no send queue
		{stranger, 0, cqeRequest}, {stranger, 0, cqeSend}, // of another CQ
		{&queuePair{index: 0}, 0, cqeSend}, {&queuePair{index: 77}, 0, cqeSend}, {&queuePair{index: indexMask}, 0, cqeRequest},
	}
	for _, w := range wild {
		cq.put(completion(w.p, w.counter), w.opcode)
	}
	if wcs := cq.poll(); len(wcs) != 0 || swap32(cq.record.Load()) != uint32(len(wild)) {
		t.Fatalf("%+v, record %d", wcs, swap32(cq.record.Load()))
	}
	for i, good := range []struct {
		p       *queuePair
		counter uint16
		opcode  uint32
		id      uint64
	}{{p, 2, cqeRequest, 5}, {shares, 0, cqeSend, 9}, {p, 4, cqeRequestErr, 5}} {
		cq.put(completion(good.p, good.counter), good.opcode)
		cq.put(completion(good.p, good.counter), good.opcode) // once more
		if wcs := cq.poll(); len(wcs) != 1 || wcs[0].ID != good.id {
			t.Fatalf("%d: %+v", i, wcs)
		}
	}
}

// TestReset resets a QP with completions that have not been polled, beside another QP's.
func TestReset(t *testing.T) {
	f := newFake(t, Driver{})
	cq := f.cq(t, 31)
	a := f.qp(t, verbs.RC, cq, verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4}, nil)
	b := f.qp(t, verbs.RC, cq, verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4}, nil)
	for round := range 3 {
		for _, p := range []*queuePair{a, b} {
			if n, err := p.send.Post([]verbs.SendWR{{ID: 1, Opcode: verbs.OpSend}, {ID: 2, Opcode: verbs.OpSend}}); n != 2 {
				t.Fatal(n, err)
			}
			if n, err := p.recv.Post([]verbs.RecvWR{{ID: 3}, {ID: 4}}); n != 2 {
				t.Fatal(n, err)
			}
		}
		for i := range uint16(2) {
			cq.put(completion(a, i), cqeRequest)
			cq.put(completion(b, uint16(round)*2+i), cqeRequest)
			cq.put(completion(a, i), cqeSend)
			cq.put(completion(b, uint16(round)*2+i), cqeSend)
		}
		providertest.SetState(a.send, a.recv, verbs.StateReset)
		var ids []uint64
		for _, wc := range cq.poll() {
			ids = append(ids, wc.ID)
		}
		if fmt.Sprint(ids) != "[1 3 2 4]" {
			t.Fatalf("completions %v", ids)
		}
		if a.send.record.Load() != 0 || a.recv.record.Load() != 0 {
			t.Fatal("the doorbell record is not reset")
		}
		if _, err := a.send.Post([]verbs.SendWR{{Opcode: verbs.OpSend}}); !errors.Is(err, verbs.ErrState) {
			t.Fatal(err)
		}
		if _, err := a.recv.Post(make([]verbs.RecvWR, 1)); !errors.Is(err, verbs.ErrState) {
			t.Fatal(err)
		}
		providertest.SetState(a.send, a.recv, verbs.StateRTS)
	}
	providertest.SetState(a.send, a.recv, verbs.StateReset)
	providertest.SetState(a.send, a.recv, verbs.StateRTS)
	n, serr := a.send.Post(slices.Repeat([]verbs.SendWR{{Opcode: verbs.OpSend}}, 5))
	m, rerr := a.recv.Post(make([]verbs.RecvWR, 5))
	if n != 4 || m != 4 || serr != verbs.ErrQueueFull || rerr != verbs.ErrQueueFull {
		t.Errorf("posted %d and %d to queues of 4: %v, %v", n, m, serr, rerr)
	}
}

// TestSourcePort: packets of a flow label have the port that the kernel gives them (rdma_flow_label_to_udp_sport).
func TestSourcePort(t *testing.T) {
	for flow, want := range map[uint32]uint16{1: 0xc001, 2: 0xc002, 0x3fff: 0xffff, 0x4000: 0xc001, 0x4001: 0xc000, 0xfffff: 0xffc0, 1<<20 | 2: 0xc002} {
		if port := sourcePort(flow); port != want {
			t.Errorf("flow %#x: port %#x, want %#x", flow, port, want)
		}
	}
	for range 1000 {
		if port := sourcePort(0); port < 0xc000 {
			t.Fatalf("without a flow: port %#x", port)
		}
	}
}

// TestArm checks the doorbell of a CQ: struct mlx5_cq's arm_sn and cons_index.
func TestArm(t *testing.T) {
	f := newFake(t, Driver{})
	cq := f.cq(t, 31)
	p := f.qp(t, verbs.RC, cq, verbs.QPCap{MaxRecvWR: 16}, nil)
	if n, err := p.recv.Post(make([]verbs.RecvWR, 3)); n != 3 {
		t.Fatal(err)
	}
	for i := range uint16(3) {
		cq.put(completion(p, i), cqeSend)
	}
	cq.poll()
	for i := range uint32(6) {
		for _, solicited := range []bool{false, true} {
			if err := cq.Arm(solicited); err != nil {
				t.Fatal(err)
			}
			want := i%4<<28 | 3
			if solicited {
				want |= 1 << 24
			}
			doorbell := f.pages[uarCQ:]
			if got := swap32(cq.arm.Load()); got != want || be.Uint32(doorbell) != want || be.Uint32(doorbell[4:]) != 0x123 {
				t.Errorf("record %#x, doorbell %x, want %#x", got, doorbell[:8], want)
			}
		}
		cq.CountEvent()
	}
}

// TestResize changes the size of a CQ with completions in it, and with more that come meanwhile.
func TestResize(t *testing.T) {
	for _, size := range []int{smallCQE, largeCQE} {
		f := newFake(t, Driver{cqeSize: size})
		cq := f.cq(t, 15)
		p := f.qp(t, verbs.RC, cq, verbs.QPCap{MaxRecvWR: 256}, nil)
		var posted, polled uint64
		var counter uint16
		arrive := func(n int) {
			for range n {
				if n, err := p.recv.Post([]verbs.RecvWR{{ID: posted}}); n != 1 {
					t.Fatal(err)
				}
				posted++
				cq.put(completion(p, counter), cqeSend)
				counter++
			}
		}
		poll := func(most int) {
			wcs := make([]verbs.WC, most)
			has := cq.HasCompletions()
			n := provider.Poll(cq, wcs)
			if has != (n > 0) && most > 0 {
				t.Fatalf("completions %t, and polled %d", has, n)
			}
			for _, wc := range wcs[:n] {
				if wc.ID != polled || wc.Status != 0 {
					t.Fatalf("completion %+v, want of %d", wc, polled)
				}
				polled++
			}
		}
		changes := 0
		for i := range 300 {
			arrive(min(i%7, cq.Cap()-int(posted-polled)-2)) // with room for those below
			depth := []int{15, 31, 63, 7, 127, 20}[i%6]
			called := false
			err := cq.Resize(depth, func(n int, u provider.UHW) error {
				called = true
				if posted-polled+2 > uint64(n) {
					return unix.EINVAL // as the device has it
				}
				req := mmap.Slice[abi.Mlx5IbResizeCq](bytes.Clone(u.In), 0, 1)[0]
				arrive(1)
				cq.put([smallCQE]byte{}, cqeResized)
				cq.ring.mask = uint32(n)
				cq.ring.base = unsafe.Add(unsafe.Pointer(nil), uintptr(req.BufAddr)+uintptr(size-smallCQE))
				arrive(1)
				if int(req.CqeSize) != size {
					t.Fatalf("CQEs of %d bytes", req.CqeSize)
				}
				return nil
			})
			if refused := errors.Is(err, unix.EINVAL); err != nil && !refused || err == nil && cq.Cap() != provider.RoundUp(depth+1)-1 {
				t.Fatal(err, cq.Cap())
			} else if called && !refused {
				changes++
				if got := swap32(cq.record.Load()); got != cq.next {
					t.Fatalf("the doorbell record has %d after a change, want %d", got, cq.next)
				}
			}
			poll(i % 9)
			if posted-polled > 5 {
				poll(64)
			}
		}
		poll(64)
		if polled != posted || posted < 1000 || changes < 200 {
			t.Fatalf("polled %d of %d, %d changes", polled, posted, changes)
		}
		// The device does not say where the old ring ends.
		if err := cq.Resize(255, func(int, provider.UHW) error { return nil }); !errors.Is(err, verbs.ErrQueueFailed) {
			t.Error(err)
		}
		if err := cq.Resize(255, nil); !errors.Is(err, verbs.ErrQueueFailed) {
			t.Error(err)
		}
		if n := provider.Poll(cq, make([]verbs.WC, 4)); n != 0 {
			t.Errorf("%d completions of a queue that has failed", n)
		}
	}
}

// TestLook looks for completions in the first rounds of a ring, and of its successors.
func TestLook(t *testing.T) {
	f := newFake(t, Driver{})
	cq := f.cq(t, 7)
	p := f.qp(t, verbs.RC, cq, verbs.QPCap{MaxRecvWR: 64}, nil)
	for i := range 60 {
		if cq.HasCompletions() {
			t.Fatalf("a completion before number %d", i)
		}
		if n, err := p.recv.Post(make([]verbs.RecvWR, 1)); n != 1 {
			t.Fatal(err)
		}
		if cq.put(completion(p, uint16(i)), cqeSend); !cq.HasCompletions() || len(cq.poll()) != 1 {
			t.Fatalf("no completion %d", i)
		}
		if i%19 == 0 {
			next := cq.Recycle().(*completionQueue)
			p.sendCQ, p.recvCQ, cq.completionQueue = next, next, next
		}
	}
}

// TestRecycle empties a CQ for the next user of it.
func TestRecycle(t *testing.T) {
	f := newFake(t, Driver{})
	cq := f.cq(t, 7)
	for range 3 {
		cq.put([smallCQE]byte{}, cqeSend)
		next := cq.Recycle().(*completionQueue)
		if next.HasCompletions() || !cq.Closed || swap32(next.record.Load()) != next.next || next.next != cq.pi {
			t.Fatalf("%d completions taken of %d, record %d", next.next, cq.pi, swap32(next.record.Load()))
		}
		cq.completionQueue = next
	}
	cq.Stop(true)
}

// FuzzCompletions polls a ring with arbitrary contents, of QPs that have requests in flight:
// nothing is written outside of the queues, and no more requests complete than there were.
func FuzzCompletions(f *testing.F) {
	f.Add(uint8(3), uint8(4), []byte{0})
	e := completion(&queuePair{index: 1}, 0)
	e[smallCQE-1] = cqeSend << 4
	f.Add(uint8(3), uint8(4), e[:])
	e[smallCQE-1] = cqeRequestErr<<4 | 1
	f.Add(uint8(4), uint8(1), append(e[:], e[:]...))
	e[cqeIndex+3], e[smallCQE-1] = 2, cqeSendInval<<4
	f.Add(uint8(2), uint8(9), e[:])
	f.Fuzz(func(t *testing.T, log, batch uint8, body []byte) {
		dev := newFake(t, Driver{cqeSize: smallCQE << (log & 1)})
		cq := dev.cq(t, 1<<(log%6))
		srq := dev.srq(t, 6, 1)
		own := dev.qp(t, verbs.RC, cq, verbs.QPCap{MaxSendWR: 6, MaxRecvWR: 6, MaxSendSGE: 3}, nil)
		shares := dev.qp(t, verbs.UD, cq, verbs.QPCap{MaxSendWR: 3}, srq)
		inFlight := 0
		fill := func() {
			n, _ := own.send.Post([]verbs.SendWR{{Opcode: verbs.OpSend}, {Opcode: verbs.OpSend, SGL: make([]verbs.SGE, 3)}, {Opcode: verbs.OpSend}})
			m, _ := own.recv.Post(make([]verbs.RecvWR, 3))
			k, _ := srq.Post(make([]verbs.RecvWR, 3))
			inFlight += n + m + k
		}
		ring := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(cq.buf.Bytes()))), len(cq.buf.Bytes()))
		for round := range 3 {
			fill()
			if len(body) > 0 {
				copy(ring, bytes.Repeat(body, 1+len(ring)/len(body)))
			}
			wcs := make([]verbs.WC, int(batch)+1)
			total := 0
			for {
				n := provider.Poll(cq, wcs)
				if n == 0 {
					break
				}
				for i := range wcs[:n] {
					if err := wcs[i].Err(); (err == nil) != (wcs[i].Status == verbs.WCSuccess) {
						t.Fatalf("status %v is %v", wcs[i].Status, err)
					}
				}
				total += n
			}
			if total > inFlight {
				t.Fatalf("%d requests completed of %d", total, inFlight)
			}
			if round == 1 {
				own.clean()
				shares.clean()
			}
			for _, q := range []*recvQueue{own.recv, srq} {
				if free := int(q.most) - int(q.head.Load()-q.tail.Load()); free < 0 || free > int(q.most) {
					t.Fatalf("%d of %d free", free, q.most)
				}
			}
			// All that the SRQ's list has can be posted, and not more: it is no circle.
			if n, err := srq.Post(make([]verbs.RecvWR, 20)); n > srq.Cap() || err != verbs.ErrQueueFull {
				t.Fatalf("%d of %d posted: %v", n, srq.Cap(), err)
			} else {
				inFlight += n
			}
		}
	})
}

// BenchmarkPoll polls receives.
func BenchmarkPoll(b *testing.B) {
	for _, n := range []int{0, 1, 16} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			f := newFake(b, Driver{})
			cq := f.cq(b, 63)
			p := f.qp(b, verbs.RC, cq, verbs.QPCap{MaxRecvWR: 64, MaxRecvSGE: 1}, nil)
			var counter uint16
			b.ReportAllocs()
			for b.Loop() {
				p.recv.head.Store(p.recv.tail.Load() + uint32(n))
				for range n {
					cq.put(completion(p, counter), cqeSend)
					counter++
				}
				var wcs [16]verbs.WC
				if got := provider.Poll(cq, wcs[:]); got != n {
					b.Fatal(got)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*max(n, 1)), "ns/completion")
		})
	}
}

// TestNoAllocations posts and polls.
func TestNoAllocations(t *testing.T) {
	f := newFake(t, Driver{})
	cq := f.cq(t, 63)
	p := f.qp(t, verbs.RC, cq, verbs.QPCap{MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 2, MaxRecvSGE: 2, MaxInline: 32}, nil)
	srq := f.srq(t, 7, 2)
	shares := f.qp(t, verbs.RC, cq, verbs.QPCap{}, srq)
	sgl := []verbs.SGE{{Length: 1}, {Length: 2}}
	sends := []verbs.SendWR{{Opcode: verbs.OpSend, Inline: make([]byte, 32)}, {Opcode: verbs.OpRDMAWrite, SGL: sgl}}
	recvs := []verbs.RecvWR{{SGL: sgl}}
	var counter, number, index uint16
	if n := testing.AllocsPerRun(100, func() {
		var wcs [8]verbs.WC
		p.send.Post(sends)
		p.recv.Post(recvs)
		index = uint16(srq.shared.first)
		srq.Post(recvs)
		counter += 2
		cq.put(completion(p, counter-1), cqeRequest)
		cq.put(completion(p, number), cqeSend)
		cq.put(completion(shares, index), cqeSend)
		number++
		cq.Lock()
		got := cq.Take(wcs[:])
		if got != 3 {
			t.Fatalf("%d completions", got)
		}
		if err := cq.Arm(false); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestHandlesGoBack: the numbers of address handles that are closed are given again.
func TestHandlesGoBack(t *testing.T) {
	f := newFake(t, Driver{})
	f.dev.Port.LinkLayer = verbs.LinkInfiniBand
	for range 1000 {
		num, a, err := f.CreateAH(&provider.AHInit{AV: verbs.AddressVector{Port: 1, DLID: 7}}, nil)
		if err != nil || num == 0 || num > 100 {
			t.Fatalf("handle %d: %v", num, err)
		}
		a.Release()
	}
	for _, port := range []uint8{0, 2} {
		if _, _, err := f.CreateAH(&provider.AHInit{AV: verbs.AddressVector{Port: port}}, nil); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("port %d of 1: %v", port, err)
		}
	}
}
