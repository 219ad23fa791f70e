//go:build linux

package mlx5

import (
	"errors"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/provider"
)

var (
	_ provider.Flusher = (*sendQueue)(nil)
	_ provider.Flusher = (*recvQueue)(nil)
)

// lose does what uverbs does when a device is lost.
func lose(cq *fakeCQ, queues ...provider.Flusher) {
	rest := cq.poll()
	for _, q := range queues {
		rest = append(rest, q.Flush()...)
	}
	cq.Detach(rest)
}

// TestLost loses a device with requests in all stages: each completes once, and in order.
func TestLost(t *testing.T) {
	f := newFake(t, Driver{})
	cq := f.cq(t, 64)
	p := f.qp(t, verbs.RC, cq, verbs.QPCap{MaxSendWR: 8, MaxSendSGE: 1, MaxRecvWR: 8, MaxRecvSGE: 1, MaxInline: 100}, nil)
	var want []verbs.WC
	flushed := func(id uint64, op verbs.WCOpcode) {
		want = append(want, verbs.WC{ID: id, Status: verbs.WCFlushErr, Opcode: op, QPNum: fakeQPN})
	}
	// Requests of one or two blocks, of which the queue has had more than fit: those before 20 have
	// completed and been polled, 20 and 21 with the completion of 22, which has not.
	var first uint32
	for id := range uint64(27) {
		wr := verbs.SendWR{ID: id, Opcode: verbs.OpSend, Inline: make([]byte, id%3*50), Flags: verbs.SendSignaled}
		if id >= 20 && id != 22 {
			wr.Flags = 0
		}
		block := p.send.put
		if n, err := p.send.Post([]verbs.SendWR{wr}); n != 1 {
			t.Fatal(id, err)
		}
		switch {
		case id < 20:
			cq.put(completion(p, uint16(block)), cqeRequest)
			if wcs := cq.poll(); len(wcs) != 1 || wcs[0].ID != id {
				t.Fatalf("completion %d: %v", id, wcs)
			}
		case id == 22:
			cq.put(completion(p, uint16(block)), cqeRequest)
			want = append(want, verbs.WC{ID: id, QPNum: fakeQPN})
		case id > 22:
			if first == 0 {
				first = block
			}
		}
	}
	for id := range uint64(6) {
		if n, err := p.recv.Post([]verbs.RecvWR{{ID: 100 + id}}); n != 1 {
			t.Fatal(id, err)
		}
	}
	cq.put(completion(p, 0), cqeSend)
	want = append(want, verbs.WC{ID: 100, Opcode: verbs.WCRecv, QPNum: fakeQPN})
	for id := uint64(23); id < 27; id++ {
		flushed(id, 0)
	}
	for id := uint64(101); id < 106; id++ {
		flushed(id, verbs.WCRecv)
	}
	for range 2 { // it may be called again
		lose(cq, p.send, p.recv)
		cq.put(completion(p, uint16(first)), cqeRequest) // of a device that is not quite dead
	}
	if !cq.HasCompletions() {
		t.Error("no completions")
	}
	for i, wc := range cq.poll() {
		if i >= len(want) || wc != want[i] {
			t.Errorf("completion %d: %+v", i, wc)
		}
		if i == len(want)-1 {
			want = nil
		}
	}
	if want != nil || cq.HasCompletions() || len(cq.poll()) != 0 {
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

// TestLostSRQ loses a device with an SRQ whose receives complete in another order than that of
// posting.
func TestLostSRQ(t *testing.T) {
	f := newFake(t, Driver{})
	cq := f.cq(t, 64)
	srq := f.srq(t, 7, 1)
	p := f.qp(t, verbs.RC, cq, verbs.QPCap{MaxSendWR: 1, MaxSendSGE: 1}, srq)
	for id := range uint64(6) {
		if n, err := srq.Post([]verbs.RecvWR{{ID: id}}); n != 1 {
			t.Fatal(id, err)
		}
	}
	for _, i := range []uint16{4, 1} {
		cq.put(completion(p, i), cqeSend)
	}
	lose(cq, p.send, srq)
	got := map[uint64]verbs.WCStatus{}
	wcs := cq.poll()
	for _, wc := range wcs {
		got[wc.ID] = wc.Status
	}
	if len(wcs) != 6 || len(got) != 6 || got[1] != verbs.WCSuccess || got[4] != verbs.WCSuccess {
		t.Errorf("%+v", wcs)
	}
	for _, id := range []uint64{0, 2, 3, 5} {
		if got[id] != verbs.WCFlushErr {
			t.Errorf("receive %d: %v", id, got[id])
		}
	}
	if n, err := srq.Post([]verbs.RecvWR{{}}); n != 0 || !errors.Is(err, verbs.ErrDeviceRemoved) {
		t.Error(n, err)
	}
}

// TestLostAfterStop loses a device whose queues are being closed: nothing uses their memory.
func TestLostAfterStop(t *testing.T) {
	f := newFake(t, Driver{})
	cq := f.cq(t, 8)
	p := f.qp(t, verbs.RC, cq, verbs.QPCap{MaxSendWR: 1, MaxSendSGE: 1, MaxRecvWR: 1, MaxRecvSGE: 1}, nil)
	p.send.Post([]verbs.SendWR{{Opcode: verbs.OpSend}})
	for _, q := range []provider.Queue{p.send, p.recv, cq} {
		q.Stop(true)
	}
	if wcs := append(p.send.Flush(), p.recv.Flush()...); len(wcs) != 0 {
		t.Errorf("%+v", wcs)
	}
	cq.Detach([]verbs.WC{{}})
	if len(cq.poll()) != 0 {
		t.Error("a closed CQ has completions")
	}
	if _, err := p.send.Post(nil); err != verbs.ErrClosed {
		t.Error(err)
	}
}
