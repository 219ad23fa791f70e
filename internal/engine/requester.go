package engine

import (
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/roce"
)

// requester sends the requests of a QP's send queue, and completes them. (IBA, 9.7.3 for RC)
type requester struct {
	qp   *QP
	init *QPInit
	out  *out

	sendQueue
	psn     roce.PSN      // of the next packet
	top     roce.PSN      // after the last packet that has been sent
	reads   int           // credits for READs and atomics that are left
	unasked int           // packets since an acknowledgement was requested
	rnrAt   time.Duration // nothing is sent before, because the peer has no receive; 0: no wait
	window  window
	timeout time.Duration // for an acknowledgement; 0: none
	timerAt time.Duration // when the QP's timer fires at the latest; 0: it is not set
	comp    completer
}

// set applies attributes that have changed. The QP has rounded the number of READs.
func (q *requester) set(a *verbs.QPAttr, mask verbs.QPAttrMask) {
	if mask&verbs.MaskMaxRDAtomic != 0 {
		q.reads = int(q.qp.attr.MaxRDAtomic)
	}
	if mask&verbs.MaskTimeout != 0 {
		q.timeout = 0
		if a.Timeout != 0 {
			q.timeout = max(roce.Timeout(a.Timeout), tick)
		}
	}
	if mask&verbs.MaskRetryCount != 0 {
		q.comp.retries = a.RetryCount
	}
	if mask&verbs.MaskRNRRetry != 0 {
		q.comp.rnrRetries = a.RNRRetry
	}
	if mask&verbs.MaskSQPSN != 0 {
		q.psn = roce.PSN(a.SQPSN) & roce.PSNMask
		q.comp.psn, q.top = q.psn, q.psn
	}
}

// reset forgets all requests, and what is known of the peer.
func (q *requester) reset() {
	q.ring.reset()
	q.next, q.loaded = q.ring.index, q.ring.index
	*q = requester{
		qp: q.qp, init: q.init, out: q.out, sendQueue: q.sendQueue, timeout: q.timeout,
		psn: q.psn, top: q.psn, reads: int(q.qp.attr.MaxRDAtomic), timerAt: q.timerAt, comp: completer{psn: q.psn},
	}
}

// run sends requests until the queue is empty or has to wait (rxe_requester). It also
// completes those that need no answer.
func (q *requester) run() {
	if q.qp.state == verbs.StateErr || q.qp.state == verbs.StateSQE {
		q.flush()
		return
	}
	if q.qp.ended || q.qp.state < verbs.StateRTS {
		return
	}
	for left := burst; ; left-- {
		if left == 0 && q.init.Type != verbs.RC {
			q.qp.yield()
			break
		}
		r := q.nextRequest()
		if r == nil || !q.sendNext(r) {
			break
		}
	}
	if q.out.batch != nil && q.init.Type != verbs.RC { // requests complete when the network has their packets
		q.out.flush()
		q.qp.failOversize()
	}
	if q.qp.state == verbs.StateErr || q.qp.state == verbs.StateSQE {
		return
	}
	full := q.ring.used() == q.ring.Cap()
	q.completeDone()
	q.checkDrained()
	if full && q.qp.state == verbs.StateRTS && q.next == q.loaded && q.fetch() { // no answer would bring it here again
		q.qp.yield()
	}
}

// nextRequest returns the next request to be sent, or nil if there is none.
func (q *requester) nextRequest() *request {
	if q.next == q.loaded {
		if q.qp.state == verbs.StateSQD || q.loaded == q.ring.producer() && !q.fetch() {
			return nil
		}
		i := q.loaded
		q.loaded = q.ring.next(i)
		if status := q.load(i, q.init.Type); status != verbs.WCSuccess {
			q.failRequest(&q.requests[i], status)
			return nil
		}
	}
	r := &q.requests[q.next]
	if q.qp.state == verbs.StateSQD && !r.started() {
		return nil
	}
	return r
}

// fetch asks RefillSend for requests when all have been loaded. It reports whether there are any.
func (q *requester) fetch() bool {
	if q.init.RefillSend == nil {
		return false
	}
	q.init.RefillSend(q.ring)
	return q.loaded != q.ring.producer()
}

// sendNext sends the next packet of a request. It reports false if the requester has to
// wait, or has failed.
func (q *requester) sendNext(r *request) bool {
	if r.state == requestDone { // executed before a loss
		q.next = q.ring.next(q.next)
		return true
	}
	if q.fenced(r) {
		return false
	}
	if r.info.kind == opLocal {
		return q.executeLocal(r)
	}
	if q.init.Type == verbs.UD {
		return q.sendDatagram(r)
	}
	n, ok := q.admit(r)
	if !ok {
		return false
	}
	first, last := r.sent == 0, r.sent+n == r.length
	h := roce.Packet{Opcode: r.opcode(q.qp.transport, first, last), DestQP: q.qp.attr.DestQPNum, PSN: q.psn}
	flags := h.Opcode.Flags()
	ends := flags&roce.Ends != 0
	h.Solicited = ends && r.flags&uint32(verbs.SendSolicited) != 0 && (r.info.kind == opSend || r.info.kind == opWrite && r.info.imm)
	packets, payload := 1, int(n)
	switch r.info.kind {
	case opRead:
		packets, payload = max(1, (int(n)+q.qp.mtu-1)/q.qp.mtu), 0
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
	if q.init.Type == verbs.RC {
		q.unasked += packets
		inFlight := q.psn.Add(packets).Sub(q.comp.psn)
		h.AckReq = ends || q.unasked >= maxUnasked || inFlight >= q.window.limit(q.qp.path.local)
		if h.AckReq {
			q.unasked = 0
		}
	}
	o := q.out.begin(q.qp.path, &h, payload)
	if !q.gather(r, o.payload) {
		q.out.abort(&o)
		q.failRequest(r, q.qp.either(verbs.WCLocQPOpErr, verbs.WCLocProtErr))
		return false
	}
	q.out.send(&o, &h)
	q.advance(r, n, packets)
	return true
}

// advance moves the requester behind a packet that it has sent.
func (q *requester) advance(r *request, n uint32, packets int) {
	if !r.started() {
		r.first = q.psn
		r.last = r.first.Add(r.packets(q.qp.mtu) - 1)
	}
	r.sent += n
	q.psn = q.psn.Add(packets)
	if q.psn.After(q.top) {
		q.top = q.psn
	}
	r.state = requestSending
	if r.sent == r.length {
		r.state = requestSent
		if q.init.Type != verbs.RC {
			r.state = requestDone
		}
		q.next = q.ring.next(q.next)
	}
	if q.timeout > 0 {
		q.time(q.psn == q.top)
	}
}

// time sets the timer of an acknowledgement after a packet has been sent, and measures how
// long it takes, unless the packet has been sent before.
func (q *requester) time(fresh bool) {
	c := &q.comp
	measure := fresh && !c.probe.timing && !q.qp.path.local
	if c.deadline != 0 && !measure {
		return
	}
	now := q.qp.dev.now()
	if measure {
		c.probe.sent(q.psn, now)
	}
	if c.deadline == 0 {
		q.expectAck(now)
	}
}

// fenced reports whether a request has to wait for earlier ones (rxe_wqe_is_fenced). A
// request that is sent again does not wait for itself, as it does with rxe.
func (q *requester) fenced(r *request) bool {
	if r.op == abi.IB_UVERBS_WR_LOCAL_INV || r.op == OpDevice && q.init.Type == verbs.RC {
		q.completeDone() // another one before it waits for nothing
		return q.next != q.ring.index
	}
	return r.flags&uint32(verbs.SendFence) != 0 && !r.started() && q.reads != int(q.qp.attr.MaxRDAtomic)
}

// admit returns how many bytes the next packet of a request has or, for a READ, asks for. It
// reports false if the window or the credits do not allow it.
func (q *requester) admit(r *request) (n uint32, ok bool) {
	if q.init.Type == verbs.UC {
		return min(r.length-r.sent, uint32(q.qp.mtu)), true
	}
	if q.rnrAt != 0 {
		return 0, false
	}
	window := q.window.limit(q.qp.path.local)
	free := window - q.psn.Sub(q.comp.psn)
	if free <= 0 {
		return 0, false
	}
	switch r.info.kind {
	case opRead:
		return q.admitRead(r, window, free)
	case opAtomic, opAtomicWrite:
		if r.numParts == 0 {
			if q.reads == 0 {
				return 0, false
			}
			q.reads--
			r.numParts = 1
		}
		return r.length, true
	case opFlush:
		return r.length, true
	}
	return min(r.length-r.sent, uint32(q.qp.mtu)), true
}

// admitRead returns how many bytes to ask for. A READ of more packets than the window allows
// is requested in parts, so that its answers do not overrun the network; a part takes a
// credit until it has arrived. A part that is requested again ends where it ended before:
// responders answer repeated requests only if they are within an earlier one.
func (q *requester) admitRead(r *request, window, free int) (n uint32, ok bool) {
	for _, end := range r.parts[:r.numParts] {
		if end > r.sent {
			return end - r.sent, true
		}
	}
	switch {
	case r.length == 0 && r.numParts > 0:
		return 0, true
	case r.numParts == len(r.parts), q.reads == 0:
		return 0, false
	}
	n = r.length - r.sent
	if most := uint64(free) * uint64(q.qp.mtu); uint64(n) > most {
		if free < window/2 {
			return 0, false
		}
		n = uint32(most)
	}
	q.reads--
	r.parts[r.numParts] = r.sent + n
	r.numParts++
	return n, true
}

// gather fills the payload of a packet.
func (q *requester) gather(r *request, payload []byte) bool {
	if len(payload) == 0 {
		return true
	}
	if r.inline {
		copyMapped(payload, q.inlineData(q.next)[r.sent:])
		return true
	}
	return q.qp.copySGL(r.sges, &r.cursor, payload, false) == copyOK
}

// inlineData returns the inline data of request i.
func (q *sendQueue) inlineData(i uint32) []byte { return q.ring.elem(i)[sendWQESize:] }

// sendDatagram sends a UD request.
func (q *requester) sendDatagram(r *request) bool {
	d := q.qp.dev
	ah := d.ahs.get(r.ud.ah)
	if ah == nil || ah.pd != q.qp.pd {
		q.failRequest(r, verbs.WCLocQPOpErr)
		return false
	}
	if r.length > uint32(d.cfg.MTU.Bytes()) {
		q.failRequest(r, verbs.WCLocLenErr)
		return false
	}
	r.state, r.first, r.last = requestDone, q.psn, q.psn
	h := roce.Packet{
		Opcode: r.opcode(roce.UD, true, true), DestQP: r.ud.qpn, PSN: q.psn, Imm: r.ex,
		Solicited: r.flags&uint32(verbs.SendSolicited) != 0,
		DETH:      roce.DETH{QKey: r.ud.qkey, SrcQP: q.qp.num},
	}
	o := q.out.begin(ah.path.Load(), &h, int(r.length))
	if !q.gather(r, o.payload) {
		q.out.abort(&o)
		q.failRequest(r, q.qp.either(verbs.WCLocQPOpErr, verbs.WCLocProtErr))
		return false
	}
	q.out.send(&o, &h)
	q.psn = q.psn.Add(1)
	q.next = q.ring.next(q.next)
	return true
}

// executeLocal executes LOCAL_INV, BIND_MW and requests of the device.
func (q *requester) executeLocal(r *request) bool {
	if r.op == OpDevice {
		if status := q.init.Execute(r.id, q.inlineData(q.next)); status != verbs.WCSuccess {
			q.failRequest(r, status)
			return false
		}
	} else if r.op == abi.IB_UVERBS_WR_BIND_MW {
		if !q.qp.bindMW(&r.bind) {
			q.failRequest(r, verbs.WCMWBindErr)
			return false
		}
	} else if !q.qp.invalidate(r.key) {
		q.failRequest(r, verbs.WCLocQPOpErr)
		return false
	}
	r.state = requestDone
	q.next = q.ring.next(q.next)
	return true
}

// failRequest moves the QP to the error state. The request completes with its status, all
// others as flushed. A strict UC or UD QP goes on to receive: it moves to the SQE state (IBA, 10.3.1).
func (q *requester) failRequest(r *request, status verbs.WCStatus) {
	r.status = status
	if !q.init.Strict || q.init.Type == verbs.RC {
		q.qp.setError()
		return
	}
	q.qp.state = verbs.StateSQE
	q.qp.attr.SQDraining = false
	q.flush()
}

// flushSends completes all requests.
func (q *requester) flush() {
	for n := 0; n < maxQPWR && !q.ring.empty(q.init.RefillSend); n++ {
		i := q.ring.index
		var wc abi.IbUverbsWc
		switch r := &q.requests[i]; {
		case i != q.loaded && r.status != verbs.WCSuccess:
			wc = q.qp.newWC(r.id, r.status)
		case i != q.loaded:
			wc = q.qp.newWC(r.id, verbs.WCFlushErr)
		default:
			q.loaded = q.ring.next(i)
			wc = q.qp.newWC(q.ring.sendWQE(i).Wr.WrId, verbs.WCFlushErr)
		}
		q.ring.consume()
		q.qp.post(q.init.SendCQ, &wc, true, false)
	}
	q.next, q.loaded = q.ring.index, q.ring.index
	q.comp.deadline, q.comp.probe.at, q.rnrAt = 0, 0, 0
}

// checkDrained reports that a QP in SQD has no request in progress.
func (q *requester) checkDrained() {
	if q.qp.state != verbs.StateSQD || !q.qp.attr.SQDraining || q.ring.index != q.loaded && q.requests[q.ring.index].state != requestPosted {
		return
	}
	q.qp.attr.SQDraining = false
	q.qp.report(verbs.EventSQDrained)
}

// rewind makes the requester send again what has not been acknowledged (req_retry).
func (q *requester) rewind() {
	q.next = q.ring.index
	q.psn = q.comp.psn
	q.unasked = 0
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
			if done := q.comp.psn.Sub(r.first); done > 0 {
				r.sent = uint32(done) * uint32(q.qp.mtu)
			}
			r.cursor.seek(r.sges, r.sent)
		}
	}
}

// requestOf returns the request that has sent a packet, unless it has completed.
func (q *requester) requestOf(psn roce.PSN) *request {
	for i := q.ring.index; i != q.loaded; i = q.ring.next(i) {
		r := &q.requests[i]
		if r.state != requestPosted && r.info.kind != opLocal && !psn.Before(r.first) && !psn.After(r.last) {
			return r
		}
	}
	return nil
}
