package engine

import (
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/roce"
)

// requester is the state of sending requests.
type requester struct {
	psn     roce.PSN // of the next packet
	top     roce.PSN // after the last packet that has been sent
	reads   int      // credits for READs and atomics that are left
	unasked int      // packets since an acknowledgement was requested
	waitRNR bool     // nothing is sent until rnrAt
	rnrAt   time.Duration
	window  window
}

// request sends requests until the queue is empty or has to wait (rxe_requester). It also
// completes those that need no answer.
func (qp *QP) request() {
	if qp.state == verbs.StateErr || qp.state == verbs.StateSQE {
		qp.flushSends()
		return
	}
	if qp.ended || qp.state < verbs.StateRTS {
		return
	}
	for left := burst; ; left-- {
		if left == 0 && qp.typ != verbs.RC {
			qp.yield()
			break
		}
		r := qp.nextRequest()
		if r == nil || !qp.sendNext(r) {
			break
		}
	}
	if qp.batch != nil && qp.typ != verbs.RC { // requests complete when the network has their packets
		qp.flushBatch()
		qp.failOversize()
	}
	if qp.state == verbs.StateErr || qp.state == verbs.StateSQE {
		return
	}
	qp.completeDone()
	qp.checkDrained()
}

// nextRequest returns the next request to be sent, or nil if there is none.
func (qp *QP) nextRequest() *request {
	q := &qp.sq
	if q.next == q.loaded {
		if qp.state == verbs.StateSQD || q.loaded == q.ring.producer() && !qp.fetch() {
			return nil
		}
		i := q.loaded
		q.loaded = q.ring.next(i)
		if status := q.load(i, qp.typ); status != verbs.WCSuccess {
			qp.failRequest(&q.requests[i], status)
			return nil
		}
	}
	r := &q.requests[q.next]
	if qp.state == verbs.StateSQD && !r.started() {
		return nil
	}
	return r
}

// fetch asks RefillSend for requests when all have been loaded. It reports whether there are any.
func (qp *QP) fetch() bool {
	if qp.refillSend == nil {
		return false
	}
	qp.refillSend(qp.sq.ring)
	return qp.sq.loaded != qp.sq.ring.producer()
}

// sendNext sends the next packet of a request. It reports false if the requester has to
// wait, or has failed.
func (qp *QP) sendNext(r *request) bool {
	q := &qp.sq
	if r.state == requestDone { // executed before a loss
		q.next = q.ring.next(q.next)
		return true
	}
	if qp.fenced(r) {
		return false
	}
	if r.info.kind == opLocal {
		return qp.executeLocal(r)
	}
	if qp.typ == verbs.UD {
		return qp.sendDatagram(r)
	}
	n, ok := qp.admit(r)
	if !ok {
		return false
	}
	first, last := r.sent == 0, r.sent+n == r.length
	h := roce.Packet{Opcode: r.opcode(qp.transport, first, last), DestQP: qp.attr.DestQPNum, PSN: qp.req.psn}
	flags := h.Opcode.Flags()
	ends := flags&roce.Ends != 0
	h.Solicited = ends && r.flags&uint32(verbs.SendSolicited) != 0 && (r.info.kind == opSend || r.info.kind == opWrite && r.info.imm)
	packets, payload := 1, int(n)
	switch r.info.kind {
	case opRead:
		packets, payload = max(1, (int(n)+qp.mtu-1)/qp.mtu), 0
		h.RETH = roce.RETH{VA: r.remote + uint64(r.sent), RKey: r.rkey, Length: n}
		if n == 0 {
			h.RETH.RKey = 0 // it is not checked (IBA, C9-88), and rxe answers again only if it is 0
		}
	case opAtomic:
		payload = 0
		h.Atomic = roce.AtomicETH{VA: r.remote, RKey: r.rkey, SwapAdd: r.compare}
		if r.op == abi.IB_UVERBS_WR_ATOMIC_CMP_AND_SWP {
			h.Atomic.SwapAdd, h.Atomic.Compare = r.swap, r.compare
		}
	case opFlush:
		payload = 0
		h.RETH = roce.RETH{VA: r.remote, RKey: r.rkey, Length: r.length}
		h.FETH = r.flush
	default:
		h.RETH = roce.RETH{VA: r.remote, RKey: r.rkey, Length: r.length}
	}
	h.Imm, h.IETH = r.ex, r.key
	if qp.typ == verbs.RC {
		qp.req.unasked += packets
		inFlight := qp.req.psn.Add(packets).Sub(qp.comp.psn)
		h.AckReq = ends || qp.req.unasked >= maxUnasked || inFlight >= qp.req.window.limit(qp.path.local)
		if h.AckReq {
			qp.req.unasked = 0
		}
	}
	o := qp.begin(qp.path, &h, payload)
	if !qp.gather(r, o.payload) {
		qp.abort(&o)
		qp.failRequest(r, qp.either(verbs.WCLocQPOpErr, verbs.WCLocProtErr))
		return false
	}
	qp.send(&o, &h)
	qp.advance(r, n, packets)
	return true
}

// advance moves the requester behind a packet that it has sent.
func (qp *QP) advance(r *request, n uint32, packets int) {
	q := &qp.sq
	if !r.started() {
		r.first = qp.req.psn
		r.last = r.first.Add(r.packets(qp.mtu) - 1)
	}
	r.sent += n
	qp.req.psn = qp.req.psn.Add(packets)
	if qp.req.psn.After(qp.req.top) {
		qp.req.top = qp.req.psn
	}
	r.state = requestSending
	if r.sent == r.length {
		r.state = requestSent
		if qp.typ != verbs.RC {
			r.state = requestDone
		}
		q.next = q.ring.next(q.next)
	}
	if qp.timeout > 0 {
		qp.time(qp.req.psn == qp.req.top)
	}
}

// time sets the timer of an acknowledgement after a packet has been sent, and measures how
// long it takes, unless the packet has been sent before.
func (qp *QP) time(fresh bool) {
	c := &qp.comp
	measure := fresh && !c.probe.timing && !qp.path.local
	if c.deadline != 0 && !measure {
		return
	}
	now := qp.dev.now()
	if measure {
		c.probe.sent(qp.req.psn, now)
	}
	if c.deadline == 0 {
		qp.expectAck(now)
	}
}

// fenced reports whether a request has to wait for earlier ones (rxe_wqe_is_fenced). A
// request that is sent again does not wait for itself, as it does with rxe.
func (qp *QP) fenced(r *request) bool {
	q := &qp.sq
	if r.op == abi.IB_UVERBS_WR_LOCAL_INV || r.op == OpDevice && qp.typ == verbs.RC {
		qp.completeDone() // another one before it waits for nothing
		return q.next != q.ring.index
	}
	return r.flags&uint32(verbs.SendFence) != 0 && !r.started() && qp.req.reads != int(qp.attr.MaxRDAtomic)
}

// admit returns how many bytes the next packet of a request has or, for a READ, asks for. It
// reports false if the window or the credits do not allow it.
func (qp *QP) admit(r *request) (n uint32, ok bool) {
	if qp.typ == verbs.UC {
		return min(r.length-r.sent, uint32(qp.mtu)), true
	}
	if qp.req.waitRNR {
		return 0, false
	}
	window := qp.req.window.limit(qp.path.local)
	free := window - qp.req.psn.Sub(qp.comp.psn)
	if free <= 0 {
		return 0, false
	}
	switch r.info.kind {
	case opRead:
		return qp.admitRead(r, window, free)
	case opAtomic, opAtomicWrite:
		if r.numParts == 0 {
			if qp.req.reads == 0 {
				return 0, false
			}
			qp.req.reads--
			r.numParts = 1
		}
		return r.length, true
	case opFlush:
		return r.length, true
	}
	return min(r.length-r.sent, uint32(qp.mtu)), true
}

// admitRead returns how many bytes to ask for. A READ of more packets than the window allows
// is requested in parts, so that its answers do not overrun the network; a part takes a
// credit until it has arrived. A part that is requested again ends where it ended before:
// responders answer repeated requests only if they are within an earlier one.
func (qp *QP) admitRead(r *request, window, free int) (n uint32, ok bool) {
	for _, end := range r.parts[:r.numParts] {
		if end > r.sent {
			return end - r.sent, true
		}
	}
	switch {
	case r.length == 0 && r.numParts > 0:
		return 0, true
	case r.numParts == len(r.parts), qp.req.reads == 0:
		return 0, false
	}
	n = r.length - r.sent
	if most := uint64(free) * uint64(qp.mtu); uint64(n) > most {
		if free < window/2 {
			return 0, false
		}
		n = uint32(most)
	}
	qp.req.reads--
	r.parts[r.numParts] = r.sent + n
	r.numParts++
	return n, true
}

// gather fills the payload of a packet.
func (qp *QP) gather(r *request, payload []byte) bool {
	if len(payload) == 0 {
		return true
	}
	if r.inline {
		copyMapped(payload, qp.sq.inlineData(qp.sq.next)[r.sent:])
		return true
	}
	return qp.copySGL(r.sges, &r.cursor, payload, false) == copyOK
}

// inlineData returns the inline data of request i.
func (q *sendQueue) inlineData(i uint32) []byte { return q.ring.elem(i)[sendWQESize:] }

// sendDatagram sends a UD request.
func (qp *QP) sendDatagram(r *request) bool {
	q, d := &qp.sq, qp.dev
	ah := d.ahs.get(r.ud.ah)
	if ah == nil || ah.pd != qp.pd {
		qp.failRequest(r, verbs.WCLocQPOpErr)
		return false
	}
	if r.length > uint32(d.mtu.Bytes()) {
		qp.failRequest(r, verbs.WCLocLenErr)
		return false
	}
	r.state, r.first, r.last = requestDone, qp.req.psn, qp.req.psn
	h := roce.Packet{
		Opcode: r.opcode(roce.UD, true, true), DestQP: r.ud.qpn, PSN: qp.req.psn, Imm: r.ex,
		Solicited: r.flags&uint32(verbs.SendSolicited) != 0,
		DETH:      roce.DETH{QKey: r.ud.qkey, SrcQP: qp.num},
	}
	o := qp.begin(ah.path.Load(), &h, int(r.length))
	if !qp.gather(r, o.payload) {
		qp.abort(&o)
		qp.failRequest(r, qp.either(verbs.WCLocQPOpErr, verbs.WCLocProtErr))
		return false
	}
	qp.send(&o, &h)
	qp.req.psn = qp.req.psn.Add(1)
	q.next = q.ring.next(q.next)
	return true
}

// executeLocal executes LOCAL_INV, BIND_MW and requests of the device.
func (qp *QP) executeLocal(r *request) bool {
	if r.op == OpDevice {
		if status := qp.deviceOp(r.id, qp.sq.inlineData(qp.sq.next)); status != verbs.WCSuccess {
			qp.failRequest(r, status)
			return false
		}
	} else if r.op == abi.IB_UVERBS_WR_BIND_MW {
		if !qp.bindMW(&r.bind) {
			qp.failRequest(r, verbs.WCMWBindErr)
			return false
		}
	} else if !qp.invalidate(r.key) {
		qp.failRequest(r, verbs.WCLocQPOpErr)
		return false
	}
	r.state = requestDone
	qp.sq.next = qp.sq.ring.next(qp.sq.next)
	return true
}

// failRequest moves the QP to the error state. The request completes with its status, all
// others as flushed. A strict UC or UD QP goes on to receive: it moves to the SQE state (IBA, 10.3.1).
func (qp *QP) failRequest(r *request, status verbs.WCStatus) {
	r.status = status
	if !qp.strict || qp.typ == verbs.RC {
		qp.setError()
		return
	}
	qp.state = verbs.StateSQE
	qp.attr.SQDraining = false
	qp.flushSends()
}

// flushSends completes all requests.
func (qp *QP) flushSends() {
	q := &qp.sq
	for n := 0; n < maxQPWR && !q.ring.empty(qp.refillSend); n++ {
		i := q.ring.index
		var wc abi.IbUverbsWc
		switch r := &q.requests[i]; {
		case i != q.loaded && r.status != verbs.WCSuccess:
			wc = qp.newWC(r.id, r.status)
		case i != q.loaded:
			wc = qp.newWC(r.id, verbs.WCFlushErr)
		default:
			q.loaded = q.ring.next(i)
			wc = qp.newWC(q.ring.sendWQE(i).Wr.WrId, verbs.WCFlushErr)
		}
		q.ring.consume()
		qp.post(qp.sendCQ, &wc, true, false)
	}
	q.next, q.loaded = q.ring.index, q.ring.index
	qp.comp.deadline, qp.comp.probe.at, qp.req.waitRNR = 0, 0, false
}

// checkDrained reports that a QP in SQD has no request in progress.
func (qp *QP) checkDrained() {
	q := &qp.sq
	if qp.state != verbs.StateSQD || !qp.attr.SQDraining || q.ring.index != q.loaded && q.requests[q.ring.index].state != requestPosted {
		return
	}
	qp.attr.SQDraining = false
	qp.report(verbs.EventSQDrained)
}

// rewind makes the requester send again what has not been acknowledged (req_retry).
func (qp *QP) rewind() {
	q := &qp.sq
	q.next = q.ring.index
	qp.req.psn = qp.comp.psn
	qp.req.unasked = 0
	for i := q.next; i != q.loaded; i = q.ring.next(i) {
		r := &q.requests[i]
		if r.state == requestDone || !r.started() {
			continue
		}
		r.state = requestSending
		r.sent = 0
		switch r.info.kind {
		case opRead:
			r.sent = r.got
		case opSend, opWrite:
			if done := qp.comp.psn.Sub(r.first); done > 0 {
				r.sent = uint32(done) * uint32(qp.mtu)
			}
			r.cursor.seek(r.sges, r.sent)
		}
	}
}
