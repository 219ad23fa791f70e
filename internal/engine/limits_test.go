package engine

import (
	"errors"
	"net/netip"
	"sync"
	"syscall"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/roce"
)

// TestLocalQueue sends datagrams to a QP of the same device that does not take them: what waits is
// limited, and the sender's requests complete.
func TestLocalQueue(t *testing.T) {
	for _, typ := range []verbs.QPType{verbs.UD, verbs.UC} {
		t.Run(typ.String(), func(t *testing.T) {
			n := newNode(t, newTestNetwork(1, faults{}), 1<<16, addrA)
			first, to := pair(n, n, typ)
			flooder := n.newQP(typ)
			flooder.connect(to)
			ah := must(n.pd.CreateAH(first.attrs(to).AV))(t)
			send := verbs.SendWR{Opcode: verbs.OpSend, SGL: []verbs.SGE{n.sge(0, 1024)}, To: verbs.UDAddr{AH: ah.Num(), QPNum: to.Num(), QKey: testQKey}}
			to.lock()
			unlock := sync.OnceFunc(to.unlock)
			defer unlock()
			go first.post(send) // processes the queue, and waits for the QP
			until(t, "somebody to process the queue", func() bool {
				n.dev.work.mu.Lock()
				defer n.dev.work.mu.Unlock()
				return n.dev.work.running
			})
			const batch, batches = burst / 2, 3 * localQueue / (burst / 2)
			for range batches {
				for range batch {
					flooder.put(&verbs.SendWR{Opcode: send.Opcode, SGL: send.SGL, To: send.To, Flags: verbs.SendSignaled})
				}
				flooder.Doorbell()
				for range batch {
					n.cq.expect(t, 0, verbs.WCSuccess)
				}
			}
			n.dev.work.mu.Lock()
			waiting := len(n.dev.work.items)
			n.dev.work.mu.Unlock()
			if waiting < localQueue/2 || waiting > localQueue+batchSize {
				t.Errorf("%d of %d packets wait; at most %d may", waiting, batch*batches, localQueue)
			}
			unlock()
			for c := n.dev.work.counts(); c.handled < c.pushed; c = n.dev.work.counts() {
				n.dev.drain()
			}
			to.postRecv(7, n.sge(0, 2048))
			flooder.post(send)
			n.rcq.expect(t, 7, verbs.WCSuccess)
			if lost := n.counter("send_err"); lost == 0 {
				t.Error("lost packets are not counted")
			}
		})
	}
}

// TestDelayedMemory keeps requests behind an answer to a READ, with as much payload as a UDP packet
// can have: what is kept of them is limited, and they are refused as others are.
func TestDelayedMemory(t *testing.T) {
	w := newWire(t, verbs.RC)
	qp := w.qp.QP
	qp.lock()
	qp.responder.reply.active = true
	p := packet{Packet: roce.Packet{Opcode: roce.RCWriteOnly, Payload: make([]byte, 64000)}}
	for range 2 * backlog {
		qp.responder.delay(&p)
	}
	memory := 0
	for _, p := range qp.responder.waiting {
		memory += cap(p.buf)
	}
	if n := len(qp.responder.waiting); n != backlog || memory > backlog*(qp.mtu+1) {
		t.Errorf("%d requests with %d bytes are kept; the MTU is %d", n, memory, qp.mtu)
	}
	if n := w.n.counter("out_of_buffer"); n != backlog {
		t.Errorf("%d requests are counted as dropped, want %d", n, backlog)
	}
	qp.responder.drop()
	qp.unlock()

	const packets = 2 * burst
	w.send(
		roce.Packet{Opcode: roce.RCReadRequest, PSN: wirePSN, RETH: roce.RETH{VA: w.n.addr(0), RKey: w.n.mr.RKey(), Length: packets * testMTU}},
		roce.Packet{Opcode: roce.RCWriteOnly, PSN: (wirePSN + packets) & 0xffffff, RETH: roce.RETH{VA: w.n.addr(0), RKey: w.n.mr.RKey(), Length: 2 * testMTU}, Payload: make([]byte, 2*testMTU)},
	)
	for range packets {
		if p := w.next(); !p.Opcode.Has(roce.IsResponse) {
			t.Fatalf("%v", p.Opcode)
		}
	}
	w.expectAck((wirePSN+packets)&0xffffff, roce.NAKInvalid)
}

// TestOldResource repeats an atomic whose PSN was that of a READ 2^24 packets before.
func TestOldResource(t *testing.T) {
	w := newWire(t, verbs.RC)
	qp := w.qp.QP
	qp.lock()
	defer qp.unlock()
	for round := range 2 * len(qp.responder.history.list) {
		psn := roce.PSN(100 * round)
		qp.responder.history.keep(&packet{Packet: roce.Packet{PSN: psn}}, opRead, 10)
		qp.responder.history.keep(&packet{Packet: roce.Packet{PSN: psn.Add(3)}}, opAtomic, 1)
		if res := qp.responder.history.at(psn.Add(3)); res == nil || res.kind != opAtomic {
			t.Errorf("round %d: resource %+v, want that of the atomic", round, res)
		}
		if res := qp.responder.history.at(psn.Add(4)); res == nil || res.kind != opRead {
			t.Errorf("round %d: resource %+v, want that of the READ", round, res)
		}
	}
}

// TestGroupLimit joins groups until there are too many: each may take a socket.
func TestGroupLimit(t *testing.T) {
	n := newNode(t, newTestNetwork(1, faults{}), 64, addrA)
	qp := n.newQP(verbs.UD)
	group := func(i int) verbs.GID { return netip.AddrFrom4([4]byte{239, 1, byte(i >> 8), byte(i)}).As16() }
	most := n.dev.Attr().MaxMcastGroup
	if most > 1000 {
		t.Fatalf("%d groups", most)
	}
	for i := range most {
		if err := qp.AttachMulticast(group(i)); err != nil {
			t.Fatalf("group %d: %v", i, err)
		}
	}
	if err := qp.AttachMulticast(group(most)); !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("group %d: %v", most, err)
	}
	if err := qp.AttachMulticast(group(0)); err != nil {
		t.Errorf("a group again: %v", err)
	}
	if err := qp.DetachMulticast(group(1)); err != nil {
		t.Error(err)
	}
	if err := qp.AttachMulticast(group(most)); err != nil {
		t.Errorf("after leaving another: %v", err)
	}
}
