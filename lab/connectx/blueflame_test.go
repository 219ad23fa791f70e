//go:build linux

package connectx

import (
	"bytes"
	"sync/atomic"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/lab/connectx/internal/ifc"
)

// flame stores b to a register in parts of 8 bytes, as a hypervisor passes it on.
func (m *machine) flame(off int, b []byte) {
	for i := 0; i < len(b); i += 8 {
		m.dev.doorbell(m.uar, off+i, b[i:i+8])
	}
}

// blocks returns the memory of the requests from index on.
func (q *testQP) blocks(index uint16, n int) (b []byte) {
	for i := range n {
		k := (int(index) + i) & (1<<q.logSend - 1)
		b = append(b, q.mem.at(testStride<<q.logRecv+k*sendBlock, sendBlock)...)
	}
	return b
}

// publish is ring without a store to the register.
func (q *testQP) publish() { be.PutUint32(q.record.at(4, 4), uint32(q.pi)) }

// TestBlueFlame stores requests of 1 to 4 blocks to both halves of a register in turn. Those that
// are executed from the copy complete, as the copy asks for it and the memory does not.
func TestBlueFlame(t *testing.T) {
	m := newMachine(t, newHub(), 1)
	m.dev.flame.wait = time.Hour
	x, y := pair(m, m, ifc.QpTypeRc)
	buf := m.next
	m.next += pageBytes
	first := [2]bool{true, true} // of a register, by which nobody knows that there is more to come
	for i := range 40 {
		half := i % 2
		data := bytes.Repeat([]byte{byte(i)}, i%4*64+1)
		y.postRecv(seg(pageBytes, m.key, buf))
		index := x.pi
		x.put(ifc.OpcodeSend, 0, 0, inlineSeg(data))
		x.publish()
		request := x.blocks(index, int(x.pi-index))
		request[ctrlFlags] |= update
		m.flame(uarSend+half*flameSize, request)
		if first[half] {
			first[half] = false
			y.recv.expect(cqeSend, uint16(i), 0)
			x.send.empty()
			continue
		}
		x.send.expect(cqeRequest, index, 0)
		if e := y.recv.expect(cqeSend, uint16(i), 0); be.Uint32(e[cqeByteCount:]) != uint32(len(data)) || !bytes.Equal(m.bytes(buf, len(data)), data) {
			t.Fatalf("message %d: entry % x", i, e)
		}
	}
}

// TestBlueFlameBehindTheRecord has a driver that is ahead of its stores: the record shows requests
// whose copies are yet to come.
func TestBlueFlameBehindTheRecord(t *testing.T) {
	m := newMachine(t, newHub(), 1)
	m.dev.flame.wait = time.Hour
	x := m.withCQ(m.createCQ(6, 64))
	n := m.newNetdev()
	for range 2 { // the registers learn
		x.put(ifc.OpcodeNop, 0, 0)
		x.publish()
		m.flame(uarSend, x.blocks(x.pi-1, 1))
		wqe := n.request(ifc.OpcodeNop, 0, make([]byte, 48))
		n.put(wqe)
		m.flame(uarSend+flameSize, wqe)
	}
	var wqes [][]byte
	for range 5 {
		x.put(ifc.OpcodeNop, 0, 0)
		wqes = append(wqes, n.request(ifc.OpcodeNop, 0, make([]byte, 48)))
		n.put(wqes[len(wqes)-1])
	}
	x.publish()
	for i := range uint16(5) {
		request := x.blocks(2+i, 1)
		request[ctrlFlags] |= update
		m.flame(uarSend, request)
		x.send.expect(cqeRequest, 2+i, 0)
		wqes[i][ctrlFlags] |= update
		m.flame(uarSend+flameSize, wqes[i])
		n.sendCQ.expect(cqeRequest, 2+i, 0)
	}
}

// TestBlueFlameOfOneStore passes on whole requests, and more than one store can have.
func TestBlueFlameOfOneStore(t *testing.T) {
	m := newMachine(t, newHub(), 1)
	x := m.withCQ(m.createCQ(4, 64))
	for range 3 {
		index := x.pi
		x.put(ifc.OpcodeNop, 0, 0)
		x.publish()
		request := x.blocks(index, 1)
		request[ctrlFlags] |= update
		m.dev.doorbell(m.uar, uarSend, request)
		x.send.expect(cqeRequest, index, 0)
	}
}

// TestBlueFlameMustAgree stores requests that are not those of the memory.
func TestBlueFlameMustAgree(t *testing.T) {
	for i := range sendBlock {
		if i == 4 || i == 5 || i == 6 { // the number of another queue
			continue
		}
		var reason atomic.Value // of the last refusal
		m := newMachine(t, newHub(), 1, lastRefusal(&reason))
		x := m.withCQ(m.createCQ(4, 64))
		x.put(ifc.OpcodeNop, update, 0, make([]byte, 48))
		x.publish()
		request := x.blocks(0, 1)
		request[i] ^= 0x10
		m.dev.doorbell(m.uar, uarSend, request)
		want := byte(opErr)
		if i == ctrlIndex || i == ctrlIndex+1 || i == ctrlQPNDS+3 {
			want = 0 // a copy of another request, or of one that is too long: this one is read from memory
		}
		if e := x.send.next(); e[cqeOpOwn]>>4 == cqeRequestError && e[cqeSyndrome] != want || e[cqeOpOwn]>>4 == cqeRequest && want != 0 {
			t.Errorf("byte %d: entry % x", i, e)
		}
		if got := reason.Load(); want != 0 && got != "the BlueFlame copy differs from the request in memory" {
			t.Errorf("byte %d: the reason is %q", i, got)
		}
	}
}

// TestPartsOfBlueFlame has the rest of a request not come, or come in another order: the store is a
// doorbell then, and the memory has the request.
func TestPartsOfBlueFlame(t *testing.T) {
	for _, tt := range []struct {
		name  string
		store func(m *machine, request []byte)
	}{
		{"nothing follows", func(m *machine, r []byte) { m.flame(uarSend, r[:8]) }},
		{"a part is missing", func(m *machine, r []byte) {
			m.flame(uarSend, r[:16])
			m.flame(uarSend+24, r[24:])
		}},
		{"the end is missing", func(m *machine, r []byte) { m.flame(uarSend, r[:56]) }},
		{"another doorbell", func(m *machine, r []byte) {
			m.flame(uarSend, r[:32])
			m.flame(uarSend, r[:8])
		}},
	} {
		m := newMachine(t, newHub(), 1)
		x := m.withCQ(m.createCQ(4, 64))
		for range 2 { // the register has had whole requests
			index := x.pi
			x.put(ifc.OpcodeNop, update, 0)
			x.publish()
			m.flame(uarSend, x.blocks(index, 1))
			x.send.expect(cqeRequest, index, 0)
		}
		index := x.pi
		x.put(ifc.OpcodeNop, update, 0)
		x.publish()
		tt.store(m, x.blocks(index, 1))
		x.send.expect(cqeRequest, index, 0)
		x.send.empty()
		x.nops(3)
		for i := range uint16(3) {
			x.send.expect(cqeRequest, index+1+i, 0)
		}
	}
}

// TestBlueFlameOfFrames is mlx5_core's test of write combining: NOPs on a send queue of frames
// whose copy asks for a completion.
func TestBlueFlameOfFrames(t *testing.T) {
	m := newMachine(t, newHub(), 1)
	m.dev.flame.wait = time.Hour
	n := m.newNetdev()
	done := false
	for i := range 10 {
		request := n.request(ifc.OpcodeNop, 0, make([]byte, 48))
		n.put(request)
		request[ctrlFlags] |= update
		m.flame(uarSend+i%2*flameSize, request)
		e, ok := n.sendCQ.poll()
		done = done || ok && be.Uint16(e[cqeCounter:]) == n.pi-1
	}
	if !done {
		t.Error("no request is executed from its copy")
	}
}

func TestRecordOfRequests(t *testing.T) {
	h := newHub()
	var wqes []Event
	m := newMachine(t, h, 1, func(c *Config) {
		c.Record = func(e Event) {
			if e.Kind == RecordWQE {
				e.In = bytes.Clone(e.In)
				wqes = append(wqes, e)
			}
		}
	})
	x, _ := pair(m, m, ifc.QpTypeRc)
	x.mustModify(ifc.Op2errQp, nil) // executes nothing
	x.put(ifc.OpcodeSend, 0, 0, inlineSeg(bytes.Repeat([]byte{7}, 100)))
	x.put(ifc.OpcodeNop, 0, 5)
	x.ring()
	x.put(ifc.OpcodeRdmaWrite, 0, 0, remoteSeg(1, 2))
	x.ring()
	if len(wqes) != 3 {
		t.Fatalf("%d requests are recorded", len(wqes))
	}
	for i, want := range []struct {
		offset, size int
		opcode       byte
	}{{0, 128, ifc.OpcodeSend}, {2, 16, ifc.OpcodeNop}, {3, 32, ifc.OpcodeRdmaWrite}} {
		if e := wqes[i]; e.Number != x.num || e.Offset != want.offset || len(e.In) != want.size || e.In[ctrlOpcode] != want.opcode {
			t.Errorf("request %d: %v", i, e)
		}
	}
	n := m.newNetdev()
	wqes = nil
	n.send(ifc.OpcodeNop)
	if len(wqes) != 1 || wqes[0].Number != n.sqn || len(wqes[0].In) != 16 {
		t.Errorf("of frames: %v", wqes)
	}
}

// TestNoDoorbell publishes a request in the doorbell record alone: it waits for a doorbell.
func TestNoDoorbell(t *testing.T) {
	m := newMachine(t, newHub(), 1)
	x := m.withCQ(m.createCQ(4, 64))
	x.nops(1)
	x.send.expect(cqeRequest, 0, 0)
	x.put(ifc.OpcodeNop, update, 0)
	x.publish()
	x.mustModify(ifc.OpRts2rtsQp, nil) // has the queue looked at
	x.send.empty()
	x.ring()
	x.send.expect(cqeRequest, 1, 0)
}

// TestDoorbellOfDestroyedQP has a command destroy a QP that a doorbell has just found.
func TestDoorbellOfDestroyedQP(t *testing.T) {
	m := newMachine(t, newHub(), 1)
	x := m.withCQ(m.createCQ(4, 64))
	q, ok := m.dev.t.qps.Get(x.num)
	if !ok {
		t.Fatal("no QP")
	}
	q.e.Modify(&verbs.QPAttr{State: verbs.StateErr}, verbs.MaskState)
	m.mustRun(ifc.OpDestroyQp, 0, func(in []byte) { ifc.DestroyQpInQpn.Set(in, uint64(x.num)) })
	q.doorbell(make([]byte, 8), false)
	if q.Flush() {
		t.Error("the flusher keeps a QP that has been destroyed")
	}
}
