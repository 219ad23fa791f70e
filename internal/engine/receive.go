package engine

import (
	"cmp"
	"net/netip"
	"runtime"
	"slices"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/netif"
	"github.com/goverbs/verbs/internal/roce"
)

// receiver takes the packets that a port receives. Only the port's goroutine uses it.
type receiver struct {
	dev  *Device
	port *port
	pkt  packet
	acks *batch // acknowledgements of several QPs
	due  []*QP  // that have acknowledgements to send, each once, see answer
	late bool   // they wait for programs

	src, dst netip.AddrPort // of flow
	flow     roce.Flow
	flowOK   bool
	idents   *idents // of the sender; nil before the first packet that needs them

	senders map[netip.Addr]*idents
	now     time.Duration // when the current batch came
}

func newReceiver(d *Device, p *port) *receiver {
	return &receiver{dev: d, port: p, acks: newBatch(), senders: map[netip.Addr]*idents{}}
}

// receive takes a batch of packets. A QP stays locked for packets that follow each other.
func (r *receiver) receive(pkts []netif.Packet) {
	few := len(pkts) <= fewPackets
	r.now = r.dev.now()
	var qp *QP
	for i := range pkts {
		p := r.decode(&pkts[i])
		if p == nil {
			continue
		}
		// Datagrams to a group have DestQP 0xffffff; their address tells the members.
		if p.DestQP == multicastQPN {
			r.release(qp, few) // receiveMulticast locks each member, perhaps this QP
			qp = nil
			r.dev.receiveMulticast(r.port, p)
			continue
		}
		to := r.dev.qps.get(p.DestQP)
		if to == nil {
			// QP 1, of management datagrams, is no QP of the engine.
			if p.DestQP == roce.GSIQP {
				r.dev.receiveMAD(p)
			} else if t := r.dev.targets.get(p.DestQP); t != nil {
				r.release(qp, few) // the target locks others
				qp = nil
				t.receive(p)
			}
			continue
		}
		if to != qp {
			r.release(qp, few)
			qp = to
			qp.lock()
		}
		qp.handle(p)
	}
	r.release(qp, few)
	r.answer()
	r.dev.drain()
}

// release ends work on a QP, which may be nil.
func (r *receiver) release(qp *QP, few bool) {
	if qp == nil {
		return
	}
	qp.requester.run()
	if qp.responder.ack.due {
		if !slices.Contains(r.due, qp) {
			r.due = append(r.due, qp)
		}
		r.late = r.late || few && qp.responder.received
	}
	qp.responder.received = false
	qp.unlock()
}

// answer sends acknowledgements, together, with their QPs locked: none is under way while its QP is
// destroyed, or its connection ended by a message that would overtake it. Each address of the
// device has a receiver, and a packet makes any of them look at any QP, so that two may lock the
// same QPs: they do so in the order of their numbers; of a number that a new QP has got meanwhile,
// the old one is first in either receiver.
//
// Before, it lets programs run that messages may have woken: the acknowledgement goes with the
// answer then, and takes no system call of either side, as TCP's delayed acknowledgements do, but
// without a timer. A QP has no reply to a READ in progress that it could overtake: that would imply
// it.
func (r *receiver) answer() {
	if r.late {
		r.late = false
		runtime.Gosched()
	}
	slices.SortStableFunc(r.due, func(a, b *QP) int { return cmp.Compare(a.num, b.num) })
	for _, qp := range r.due {
		qp.lock()
		if qp.responder.ack.due && !qp.path.local {
			qp.out.batch = r.acks
			qp.responder.sendAck()
			qp.out.batch = nil
		} else {
			qp.responder.sendAck()
		}
	}
	r.acks.flush(r.dev)
	for _, qp := range r.due {
		qp.unlock()
	}
	clear(r.due)
	r.due = r.due[:0]
}

// decode checks a packet as far as it can without the QP, and returns it or nil. Bad packets are
// dropped without an answer (Annex A17.3.4): not even their sender can be believed. Management QP 0
// does not exist on RoCE (CA17-33).
func (r *receiver) decode(np *netif.Packet) *packet {
	p := &r.pkt
	if p.Decode(np.Data) != nil || p.Opcode == roce.CNP || p.DestQP == 0 || !r.verify(np) {
		return nil
	}
	p.src, p.dst, p.tos = np.Src.Addr().Unmap().WithZone(""), np.Dst.Addr().Unmap().WithZone(""), np.TOS
	if p.dst.IsMulticast() != (p.DestQP == multicastQPN) || !p.dst.IsMulticast() && r.dev.gids.of(p.dst) == nil {
		return nil
	}
	return p
}

// verify checks the ICRC, which also covers the IP addresses and ports (Annex A17.3.3). Its part of
// a flow is kept while packets of the flow follow each other.
func (r *receiver) verify(np *netif.Packet) bool {
	if np.Src != r.src || np.Dst != r.dst || !r.flowOK {
		f, err := roce.NewFlow(np.Src, np.Dst)
		if err != nil {
			return false
		}
		r.src, r.dst, r.flow, r.flowOK, r.idents = np.Src, np.Dst, f, true, nil
	}
	if np.IDKnown {
		r.pkt.id = np.ID
		return r.flow.Verify(np.Data, np.ID)
	}
	id, ok := r.flow.VerifyUnknownID(np.Data)
	r.pkt.id = id
	if !ok {
		return false
	}
	if r.idents == nil {
		r.idents = r.identsOf(np.Src.Addr())
	}
	return r.idents.plausible(id, r.now)
}

// accepts reports whether the QP takes a packet (rxe's check_type_state, check_addr and
// check_keys). Others are dropped. A connected QP takes only packets of its peer's address; for
// datagrams the Q_Key does the same: their sender has to know it.
func (qp *QP) accepts(p *packet) bool {
	if p.Opcode.Transport() != qp.transport {
		return false
	}
	// A QP receives requests in RTR, before it may send itself, as the peer may reach RTS earlier.
	// Responses answer its own requests, for which it is in RTS.
	minState := verbs.StateRTR
	if p.Opcode.Has(roce.IsResponse) {
		minState = verbs.StateRTS
	}
	if qp.state < minState || qp.state == verbs.StateErr || qp.ended {
		return false
	}
	if qp.init.Dynamic && (qp.path == nil || p.Opcode.Has(roce.IsRequest)) {
		return false
	}
	if qp.init.Type != verbs.UD && (p.src != qp.path.remote || p.dst != qp.path.port.addr) {
		return false
	}
	if !qp.dev.checkPKey(p) {
		return false
	}
	if qp.init.Type == verbs.UD && p.DETH.QKey != qp.attr.QKey {
		saturate(&qp.dev.violations.qkeys)
		return false
	}
	return true
}

// handle processes a packet. The QP is locked; finish or release follows the last packet. The
// packet's memory is not used afterwards.
func (qp *QP) handle(p *packet) {
	if qp.init.Dynamic && p.Opcode.Transport() == roce.UD {
		qp.requester.accepted(p)
		return
	}
	if !qp.accepts(p) {
		return
	}
	qp.heard++
	qp.dev.counters.add(receivedPackets, 1)
	qp.dev.counters.add(receivedBytes, p.Len())
	if p.Opcode.Has(roce.IsRequest) {
		qp.responder.handle(p)
	} else {
		qp.requester.complete(p)
	}
}

// finish ends a series of packets.
func (qp *QP) finish() {
	qp.responder.sendAck()
	qp.requester.run()
}

// resume continues the reply that the QP has interrupted to let others work.
func (qp *QP) resume() {
	qp.resumed = false
	qp.responder.continueReply()
}

// yield makes the QP continue when others have worked.
func (qp *QP) yield() {
	if !qp.resumed {
		qp.resumed = true
		qp.out.own(work{qp: qp})
	}
}
