//go:build linux

package erdma

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"testing"
	"unsafe"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/provider"
	"github.com/goverbs/verbs/providertest"
)

// setPanicOnFault makes faults panic until the function that it returns is called.
func setPanicOnFault() func() {
	old := debug.SetPanicOnFault(true)
	return func() { debug.SetPanicOnFault(old) }
}

// TestForNothing: completions that name no request in flight are dropped, and change nothing.
func TestForNothing(t *testing.T) {
	f := newFake(t, true, 0, 0)
	cq, other := f.cq(t, provider.CQInit{Depth: 64}, 1), f.cq(t, provider.CQInit{Depth: 64}, 2)
	p := f.qp(t, cq, small())
	three := []verbs.SendWR{{ID: 1, Opcode: verbs.OpRDMAWrite}, {ID: 2, Opcode: verbs.OpRDMAWrite, SGL: make([]verbs.SGE, 3)}, {ID: 3, Opcode: verbs.OpSend}}
	if n, err := p.send.Post(three); n != 3 {
		t.Fatal(err)
	}
	if n, err := p.recv.Post([]verbs.RecvWR{{ID: 11}, {ID: 12}}); n != 2 {
		t.Fatal(err)
	}
	drop := func(e cqe) {
		t.Helper()
		head, tail, received := p.send.head.Load(), p.send.tail.Load(), p.recv.tail.Load()
		cq.put(e)
		if wcs := cq.poll(); len(wcs) != 0 || p.send.head.Load() != head || p.send.tail.Load() != tail || p.recv.tail.Load() != received {
			t.Errorf("%+v: %+v", e, wcs)
		}
	}
	nothing := func() {
		for _, index := range []uint32{2, 3, 5, 31, 32, 33, 0xfff0, 0x8000} { // inside of requests, and where none begins
			drop(cqe{num: fakeQPN, index: index})
			drop(cqe{num: fakeQPN, index: index, syndrome: 15})
		}
		for _, num := range []uint32{0, fakeQPN + 1, fakeQPN | 1<<20, 1<<32 - 1} {
			drop(cqe{num: num})
		}
		drop(cqe{num: fakeQPN, recv: true, index: p.recv.taken + 1})
		drop(cqe{num: fakeQPN, recv: true, index: p.recv.taken - 1})
	}
	nothing()
	other.put(cqe{num: fakeQPN})
	other.put(cqe{num: fakeQPN, recv: true})
	if wcs := other.poll(); len(wcs) != 0 {
		t.Errorf("in another CQ: %+v", wcs)
	}
	cq.put(cqe{num: fakeQPN, index: 1, opcode: opWrite}) // the second
	cq.put(cqe{num: fakeQPN, recv: true, opcode: opRecvSendImm, imm: 0x01020304, length: 5})
	wcs := cq.poll()
	if len(wcs) != 2 || wcs[0].ID != 2 || wcs[1].ID != 11 || wcs[1].ByteLen != 5 || wcs[1].Flags != verbs.WCWithImm || wcs[1].Imm() != 0x01020304 {
		t.Fatalf("%+v", wcs)
	}
	nothing()
	drop(cqe{num: fakeQPN, index: 0}) // before the second
	drop(cqe{num: fakeQPN, index: 1})
	cq.put(cqe{num: fakeQPN, index: 4, opcode: opSend})
	cq.put(cqe{num: fakeQPN, recv: true, opcode: opRecvInv, imm: 0x04030201, index: 1})
	if wcs := cq.poll(); len(wcs) != 2 || wcs[0].ID != 3 || wcs[1].ID != 12 || wcs[1].Flags != verbs.WCWithInv || wcs[1].InvalidatedRKey() != 0x01020304 {
		t.Fatalf("%+v", wcs)
	}
	drop(cqe{num: fakeQPN, index: 4})
	drop(cqe{num: fakeQPN, recv: true, index: 2})
}

// TestDrop: a QP that is closed or reset leaves no completions, also in a SingleThreaded CQ, and
// others keep theirs.
func TestDrop(t *testing.T) {
	for _, single := range []bool{false, true} {
		f := newFake(t, false, 0, 0)
		cq := f.cq(t, provider.CQInit{Depth: 64, SingleThreaded: single}, 1)
		p := f.qp(t, cq, small())
		q, err := f.newQP(&provider.QPInit{Type: verbs.RC, Cap: small(), SendCQ: cq.completionQueue, RecvCQ: cq.completionQueue}, 77)
		if err != nil {
			t.Fatal(err)
		}
		q.settle(verbs.StateRTS)
		for id, x := range []*queuePair{p, q} {
			if n, err := x.send.Post([]verbs.SendWR{{ID: uint64(id), Opcode: verbs.OpSend}}); n != 1 {
				t.Fatal(err)
			}
			cq.put(cqe{num: x.num, opcode: opSend})
		}
		p.settle(verbs.StateReset)
		if wcs := cq.poll(); len(wcs) != 1 || wcs[0].ID != 1 {
			t.Errorf("%+v", wcs)
		}
		if n, err := q.send.Post([]verbs.SendWR{{Opcode: verbs.OpSend}}); n != 1 {
			t.Fatal(err)
		}
		cq.put(cqe{num: q.num, index: 1, opcode: opSend})
		q.send.Release()
		q.recv.Release()
		if wcs := cq.poll(); len(wcs) != 0 || f.qps.get(77) != nil {
			t.Errorf("of a closed QP: %+v", wcs)
		}
	}
}

// TestLost loses a device with requests in all stages: each completes once, and in order.
func TestLost(t *testing.T) {
	f := newFake(t, true, 0, 0)
	cq := f.cq(t, provider.CQInit{Depth: 64}, 1)
	p := f.qp(t, cq, small())
	var want []verbs.WC
	for id := range uint64(27) {
		wr := verbs.SendWR{ID: id, Opcode: verbs.OpSend, Inline: make([]byte, id%3*30), Flags: verbs.SendSignaled}
		first := p.send.put
		if n, err := p.send.Post([]verbs.SendWR{wr}); n != 1 {
			t.Fatal(id, err)
		}
		switch {
		case id < 20, id == 22: // with those before it
			cq.put(cqe{num: fakeQPN, index: first & indexMask, opcode: opSend})
			if id == 22 {
				want = append(want, verbs.WC{ID: id, QPNum: fakeQPN, Opcode: verbs.WCSend})
			} else if wcs := cq.poll(); len(wcs) != 1 || wcs[0].ID != id {
				t.Fatalf("completion %d: %v", id, wcs)
			}
		}
	}
	if n, err := p.recv.Post([]verbs.RecvWR{{ID: 100}, {ID: 101}, {ID: 102}}); n != 3 {
		t.Fatal(err)
	}
	cq.put(cqe{num: fakeQPN, recv: true, opcode: opRecv})
	want = append(want, verbs.WC{ID: 100, Opcode: verbs.WCRecv, QPNum: fakeQPN})
	for id := uint64(23); id < 27; id++ {
		want = append(want, verbs.WC{ID: id, Status: verbs.WCFlushErr, QPNum: fakeQPN})
	}
	for id := uint64(101); id < 103; id++ {
		want = append(want, verbs.WC{ID: id, Status: verbs.WCFlushErr, Opcode: verbs.WCRecv, QPNum: fakeQPN})
	}
	for range 2 { // it may be called again
		rest := cq.poll()
		for _, q := range []provider.Flusher{p.send, p.recv} {
			rest = append(rest, q.Flush()...)
		}
		cq.Detach(rest)
	}
	for i, wc := range cq.poll() {
		if i >= len(want) || wc != want[i] {
			t.Errorf("completion %d: %+v", i, wc)
		}
		if i == len(want)-1 {
			want = nil
		}
	}
	if want != nil || cq.HasCompletions() {
		t.Error("completions are missing, or come twice")
	}
	_, send := p.send.Post([]verbs.SendWR{{Opcode: verbs.OpSend}})
	_, recv := p.recv.Post([]verbs.RecvWR{{}})
	for _, err := range []error{send, recv, cq.Arm(false)} {
		if !errors.Is(err, verbs.ErrDeviceRemoved) || !errors.Is(err, verbs.ErrQueueFailed) {
			t.Error(err)
		}
	}
}

// TestClosed: calls of closed queues leave the memory alone.
func TestClosed(t *testing.T) {
	f := newFake(t, true, 0, 0)
	cq := f.cq(t, provider.CQInit{Depth: 8}, 1)
	p := f.qp(t, cq, small())
	r := cq.Recycle().(*completionQueue)
	if err := cq.Arm(false); err != verbs.ErrClosed {
		t.Error(err)
	}
	if err := cq.Resize(9, nil); err != verbs.ErrClosed {
		t.Error(err)
	}
	if err := r.Resize(9, nil); !errors.Is(err, errors.ErrUnsupported) || r.Cap() != 64 || r.Arm(true) != nil {
		t.Error(err, r.Cap())
	}
	p.send.Stop(true)
	p.recv.Stop(true)
	if n, err := p.send.Post([]verbs.SendWR{{Opcode: verbs.OpSend}}); n != 0 || err != verbs.ErrClosed {
		t.Error(n, err)
	}
	if n, err := p.recv.Post([]verbs.RecvWR{{}}); n != 0 || err != verbs.ErrClosed {
		t.Error(n, err)
	}
	if len(p.send.Flush())+len(p.recv.Flush()) != 0 {
		t.Error("closed queues have requests")
	}
}

// choices makes random choices out of a fuzzer's bytes, and then regular ones.
type choices struct {
	data []byte
	n    uint64
}

func (c *choices) Uint64() uint64 {
	var b [8]byte
	n := copy(b[:], c.data)
	c.data = c.data[n:]
	c.n += 1<<63/5 + 1
	return le.Uint64(b[:]) ^ c.n
}

// addRandom adds inputs that make ordinary runs of a fuzz test try most of what there is.
func addRandom(f *testing.F) {
	for seed := range byte(16) {
		var b [16 << 10]byte
		rand.NewChaCha8([32]byte{seed}).Read(b[:])
		f.Add(b[:])
	}
}

// FuzzCompletions writes anything to a CQ: Poll returns requests that are in flight, each once.
func FuzzCompletions(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte("completions of all kinds, most of them wrong"))
	addRandom(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		r := rand.New(&choices{data: data})
		x := newFake(t, true, 0, 0)
		cq := x.cq(t, provider.CQInit{Depth: 64}, 1)
		p := x.qp(t, cq, small())
		inFlight := map[uint64]bool{}
		for id := uint64(1); id < 300; id++ {
			if r.IntN(2) == 0 {
				if n, _ := p.send.Post([]verbs.SendWR{{ID: id, Opcode: verbs.Opcode(1 + r.IntN(5)), SGL: make([]verbs.SGE, 1)}}); n == 1 {
					inFlight[id] = true
				}
			} else if n, _ := p.recv.Post([]verbs.RecvWR{{ID: id}}); n == 1 {
				inFlight[id] = true
			}
			var e [cqeSize]byte
			for i := range e {
				e[i] = byte(r.Uint32())
			}
			if r.IntN(8) > 0 { // nearly right
				e[1] = byte(r.IntN(numOpcodes + 2))
				e[2], e[3] = byte(r.IntN(2)), 0
				be.PutUint32(e[cqeIndex:], p.send.put-uint32(r.IntN(6)))
				if e[2] == 1 {
					be.PutUint32(e[cqeIndex:], p.recv.taken+uint32(r.IntN(2)))
				}
				be.PutUint32(e[cqeQPN:], fakeQPN)
			}
			cq.write(cq.at(cq.pi), e)
			cq.pi++
			for _, wc := range cq.poll() {
				if wc.QPNum != fakeQPN || !inFlight[wc.ID] {
					t.Fatalf("%+v is of no request in flight", wc)
				}
				delete(inFlight, wc.ID)
			}
			p.send.refusing.Store(0)
			p.recv.refusing.Store(0)
		}
	})
}

// decoded is what the device reads out of a request.
type decoded struct {
	opcode                       uint8
	fence, solicited, signaled   bool
	extra, key                   uint32
	addr, operand, compare, next uint64
	sgl                          []verbs.SGE
	inline                       []byte
}

// decode reads a request by the layouts of erdma_hw.h, on its own, from unit i on.
func decode(t *testing.T, mem []byte, units, i uint32) (d decoded) {
	t.Helper()
	ring := func(off uint32, n int) (b []byte) {
		for k := range n {
			b = append(b, mem[(i*32+off+uint32(k))%(units*32)])
		}
		return b
	}
	h := le.Uint64(ring(0, 8))
	d.opcode, d.signaled, d.solicited, d.fence = uint8(h>>27&31), h>>22&1 != 0, h>>23&1 != 0, h>>24&1 != 0
	if uint32(h>>32)&0xfffff != fakeQPN || h>>26&1 != 0 || h>>16&0x3f != 0 {
		t.Fatalf("header %#x", h)
	}
	length, n := int(le.Uint32(ring(12, 4))), int(h>>56)
	segment := func(off uint32) verbs.SGE {
		b := ring(off, 16)
		return verbs.SGE{Addr: le.Uint64(b), Length: le.Uint32(b[8:]), LKey: le.Uint32(b[12:])}
	}
	data, size := uint32(16), 0
	switch d.opcode {
	case 2, 3, 13:
		d.extra = le.Uint32(ring(8, 4))
	case 0, 9:
		d.extra, d.key, d.addr = le.Uint32(ring(8, 4)), le.Uint32(ring(16, 4)), le.Uint64(ring(20, 8))
		data = 32
	case 1:
		r := segment(32)
		d.sgl, d.addr, d.key = []verbs.SGE{{Addr: le.Uint64(ring(20, 8)), Length: uint32(length), LKey: le.Uint32(ring(16, 4))}}, r.Addr, r.LKey
		if int(r.Length) != length || n != 0 {
			t.Fatalf("READ of %d and %d bytes", r.Length, length)
		}
		size = 48
	case 17, 18:
		d.operand, d.compare = le.Uint64(ring(16, 8)), le.Uint64(ring(24, 8))
		d.addr, d.key, d.sgl = le.Uint64(ring(32, 8)), le.Uint32(ring(44, 4)), []verbs.SGE{segment(48)}
		size = 64
	default:
		t.Fatalf("opcode %d", d.opcode)
	}
	switch {
	case size > 0:
	case h>>25&1 != 0:
		d.inline, size = ring(data, n), int(data)+n
		if n != length {
			t.Fatalf("%d bytes inline of %d", n, length)
		}
	default:
		for k := range n {
			d.sgl = append(d.sgl, segment(data+16*uint32(k)))
			length -= int(d.sgl[k].Length)
		}
		if size = int(data) + 16*n; length != 0 {
			t.Fatalf("the length differs by %d from that of the segments", length)
		}
	}
	count := uint32(h>>52&7) + 1
	if count != uint32(size+31)/32 || uint32(h&0xffff) != (i+count)&0xffff {
		t.Fatalf("%d units for %d bytes, and %d follows %d", count, size, h&0xffff, i)
	}
	d.next = uint64(i + count)
	return d
}

// FuzzSendRequests posts requests and decodes them again, at every place of a queue.
func FuzzSendRequests(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte("requests of all kinds, with and without data inline"))
	addRandom(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		x := &comparison{Comparison: &providertest.Comparison{Rand: rand.New(&choices{data: data})}, signaled: 5, invalidates: true, fake: newFake(t, true, 0, 0), data: make([]byte, 4096)}
		r := x.Rand
		for i := range x.data {
			x.data[i] = byte(r.Uint32())
		}
		x.cap = verbs.QPCap{MaxSendWR: 1 + r.IntN(20), MaxSendSGE: 1 + r.IntN(6), MaxInline: r.IntN(97), MaxRecvWR: 1, MaxRecvSGE: 1}
		cq := x.fake.cq(t, provider.CQInit{Depth: 64}, 1)
		p := x.fake.qp(t, cq, x.cap)
		q := p.send
		for range 200 {
			w, _ := x.request()
			list := slices.Repeat([]verbs.SendWR{w}, min(1+r.IntN(3), int(q.most))) // not all by the same code
			first := q.put
			if n, err := q.Post(list); n != len(list) {
				t.Fatalf("%d of %d %+v: %v", n, len(list), w, err)
			}
			args := provider.Args(&w)
			want := decoded{opcode: operationOf(w.Opcode).opcode, fence: w.Flags&verbs.SendFence != 0, solicited: w.Flags&verbs.SendSolicited != 0, signaled: w.Flags&verbs.SendSignaled != 0}
			switch w.Opcode {
			case verbs.OpSendImm, verbs.OpRDMAWriteImm:
				want.extra = be.Uint32(le.AppendUint32(nil, w.Imm))
			case verbs.OpSendInv:
				want.extra = w.RKey
			case verbs.OpCompareSwap:
				want.operand, want.compare = args.Swap, args.CompareAdd
			case verbs.OpFetchAdd:
				want.operand = args.CompareAdd
			}
			if k := operationOf(w.Opcode).kind; k != kindSend {
				want.addr, want.key = w.RemoteAddr, w.RKey
			}
			if want.sgl = w.SGL; w.Opcode == verbs.OpRDMARead && w.SGL == nil {
				want.sgl = make([]verbs.SGE, 1)
			}
			want.inline = append(want.inline, w.Inline...)
			for _, b := range args.InlineList {
				want.inline = append(want.inline, b...)
			}
			for size := (q.put - first) / uint32(len(list)); first != q.put; first += size {
				d := decode(t, unsafe.Slice((*byte)(q.base), (q.mask+1)*unit), q.mask+1, first)
				if w.Opcode == verbs.OpFetchAdd {
					want.compare = d.compare // which is not read
				}
				if want.next = uint64(first + size); !equal(d, want) {
					t.Fatalf("%+v was posted in a list of %d as\n%+v, want\n%+v", w, len(list), d, want)
				}
				cq.put(cqe{num: fakeQPN, index: first & indexMask, opcode: d.opcode})
				if wcs := cq.poll(); len(wcs) != 1 || wcs[0].ID != w.ID {
					t.Fatalf("%+v of request %d", wcs, w.ID)
				}
			}
		}
	})
}

func equal(a, b decoded) bool {
	return slices.Equal(a.sgl, b.sgl) && bytes.Equal(a.inline, b.inline) && a.opcode == b.opcode && a.fence == b.fence && a.solicited == b.solicited &&
		a.signaled == b.signaled && a.extra == b.extra && a.key == b.key && a.addr == b.addr && a.operand == b.operand && a.compare == b.compare && a.next == b.next
}
