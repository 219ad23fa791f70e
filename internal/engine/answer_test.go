package engine

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/netif"
	"github.com/goverbs/verbs/internal/roce"
)

// countingPort counts calls of Send.
type countingPort struct {
	netif.Port
	calls atomic.Int32
}

func (p *countingPort) Send(pkts []netif.Packet) error {
	p.calls.Add(1)
	return p.Port.Send(pkts)
}

// TestAcknowledgementWithAnswer checks that a program's answer and the acknowledgement of the
// message are sent together.
func TestAcknowledgementWithAnswer(t *testing.T) {
	const rounds = 100
	w := newWire(t, verbs.RC)
	port := &countingPort{Port: w.n.dev.gids.at(0).net}
	w.n.dev.gids.at(0).net = port
	go func() {
		for range rounds {
			w.n.rcq.next(t)
			w.qp.post(verbs.SendWR{Opcode: verbs.OpSend, SGL: []verbs.SGE{w.n.sge(0, 8)}})
		}
	}()
	for i := range roce.PSN(rounds) {
		psn := (wirePSN + i) & 0xffffff
		w.qp.postRecv(0, w.n.sge(0, 8))
		w.send(roce.Packet{Opcode: roce.RCSendOnly, PSN: psn, AckReq: true, Payload: make([]byte, 8)})
		seen := map[roce.Opcode]bool{}
		for range 2 {
			p := w.next()
			if seen[p.Opcode] = true; p.PSN != psn {
				t.Fatalf("%v %#x", p.Opcode, p.PSN)
			}
		}
		if !seen[roce.RCSendOnly] || !seen[roce.RCAcknowledge] {
			t.Fatalf("packets %v", seen)
		}
		w.ack(psn, roce.ACKUnlimited)
	}
	if n := port.calls.Load(); n > rounds*3/2 {
		t.Errorf("%d calls for %d messages", n, rounds)
	}
}

// TestAcknowledgementsTogether checks that acknowledgements of several QPs are sent together.
func TestAcknowledgementsTogether(t *testing.T) {
	const qps = 10
	w := newWire(t, verbs.RC)
	port := &countingPort{Port: w.n.dev.gids.at(0).net}
	w.n.dev.gids.at(0).net = port
	var pkts []netif.Packet
	for range qps {
		pkts = append(pkts, w.request(w.anotherQP(), roce.RCWriteOnly, wirePSN))
	}
	newReceiver(w.n.dev, w.n.dev.gids.at(0)).receive(pkts)
	for range qps {
		w.expectAck(wirePSN, roce.ACKUnlimited)
	}
	if n := port.calls.Load(); n != 1 {
		t.Errorf("%d calls for %d acknowledgements", n, qps)
	}
}

// anotherQP makes a QP with the wire as its peer.
func (w *wire) anotherQP() *conn {
	qp := w.n.newQP(verbs.RC)
	qp.connectTo(qp.attrs(qp, func(a *verbs.QPAttr) { a.DestQPNum, a.AV.DGID = wireQPN, addrB.As16() }))
	return qp
}

// request makes a READ or a WRITE of 8 bytes.
func (w *wire) request(qp *conn, o roce.Opcode, psn roce.PSN) netif.Packet {
	p := roce.Packet{
		Opcode: o, PSN: psn, AckReq: true, PKey: roce.DefaultPKey, DestQP: qp.Num(),
		RETH: roce.RETH{VA: w.n.addr(0), RKey: w.n.mr.RKey(), Length: 8},
	}
	if o == roce.RCWriteOnly {
		p.Payload = make([]byte, 8)
	}
	return netif.Packet{
		Src: w.port.Addr(), Dst: w.n.dev.gids.at(0).local, Data: w.flow.AppendICRC(p.Append(nil), 0), IDKnown: true,
	}
}

// TestAnswersInOrder checks that an acknowledgement does not follow the answer to a later request:
// rxe's requester fails if it gets one within the answer to a READ.
func TestAnswersInOrder(t *testing.T) {
	w := newWire(t, verbs.RC)
	other := w.anotherQP()
	newReceiver(w.n.dev, w.n.dev.gids.at(0)).receive([]netif.Packet{
		w.request(w.qp, roce.RCWriteOnly, wirePSN), w.request(other, roce.RCWriteOnly, wirePSN), w.request(w.qp, roce.RCReadRequest, wirePSN+1),
	})
	w.expect(roce.RCReadResponseOnly, wirePSN+1)
	w.expectAck(wirePSN, roce.ACKUnlimited) // of other
	w.silent()
}

// TestAcknowledgementOfRepeated checks that a repeated WRITE is not acknowledged with the number of
// an atomic that follows it: rxe's requester would take that for its answer.
func TestAcknowledgementOfRepeated(t *testing.T) {
	w := newWire(t, verbs.RC)
	write := roce.Packet{
		Opcode: roce.RCWriteOnly, PSN: wirePSN, AckReq: true,
		RETH: roce.RETH{VA: w.n.addr(0), RKey: w.n.mr.RKey(), Length: 8}, Payload: make([]byte, 8),
	}
	w.send(write)
	w.expectAck(wirePSN, roce.ACKUnlimited)
	w.send(roce.Packet{Opcode: roce.RCFetchAdd, PSN: wirePSN + 1, Atomic: roce.AtomicETH{VA: w.n.addr(0), RKey: w.n.mr.RKey(), SwapAdd: 1}})
	w.expect(roce.RCAtomicAcknowledge, wirePSN+1)
	w.send(write)
	w.expectAck(wirePSN, roce.ACKUnlimited)
}

// TestAcknowledgementOfEarlier gets a packet from before the connection, of an earlier one between
// the same QPs: its acknowledgement covers nothing of what the peer has sent since.
func TestAcknowledgementOfEarlier(t *testing.T) {
	w := newWire(t, verbs.RC)
	w.send(roce.Packet{Opcode: roce.RCSendOnly, PSN: wirePSN - 16, AckReq: true})
	w.expectAck(wirePSN-1, roce.ACKUnlimited)
}

// TestAnswersOfTwoAddresses lets both addresses of a device receive packets for the same QPs, in
// opposite order. A stranger sends those to the second address, which no QP takes; the
// acknowledgements that they owe are sent nevertheless.
func TestAnswersOfTwoAddresses(t *testing.T) {
	const rounds, qps = 20_000, 8
	second := netip.MustParseAddr("10.0.1.1")
	n := newNode(t, newTestNetwork(1, faults{loss: 1}), 64, addrA, second)
	var own, strange [qps]netif.Packet
	src := netip.AddrPortFrom(addrB, roce.Port)
	packet := func(to netip.Addr, qp *conn) netif.Packet {
		dst := netip.AddrPortFrom(to, roce.Port)
		p := roce.Packet{Opcode: roce.RCWriteOnly, PSN: wirePSN - 1, AckReq: true, PKey: roce.DefaultPKey, DestQP: qp.Num()}
		return netif.Packet{Src: src, Dst: dst, Data: must(roce.NewFlow(src, dst))(t).AppendICRC(p.Append(nil), 0), IDKnown: true}
	}
	for i := range qps {
		qp := n.newQP(verbs.RC)
		qp.connectTo(qp.attrs(qp, func(a *verbs.QPAttr) { a.AV.DGID = addrB.As16() }))
		own[i], strange[qps-1-i] = packet(addrA, qp), packet(second, qp)
	}
	var over atomic.Bool
	var receivers sync.WaitGroup
	receivers.Go(func() {
		defer over.Store(true)
		r := newReceiver(n.dev, n.dev.gids.at(0))
		for range rounds {
			r.receive(own[:])
		}
	})
	receivers.Go(func() {
		for r := newReceiver(n.dev, n.dev.gids.at(1)); !over.Load(); {
			r.receive(strange[:])
		}
	})
	done := make(chan struct{})
	go func() { receivers.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(time.Minute):
		panic("the receivers wait for each other") // and so would Close of the device
	}
}
