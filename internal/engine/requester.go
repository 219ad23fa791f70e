package engine

import (
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/roce"
)

// requester is the sending half of a QP (rxe_requester): it makes packets of the send queue's
// requests, and on RC repeats them until they are acknowledged. A packet sequence number (PSN)
// counts packets, not bytes as TCP's, and a READ takes one for each packet of its answer. Three
// PSNs divide them:
//
//	comp.psn          psn            top
//	   │ in flight     │ to be repeated │ not sent yet
//
// psn is behind top only after a loss. RC then goes back N: a responder takes packets in their
// order and keeps none that come early, so all from the lost one on are sent again.
type requester struct {
	qp   *QP
	init *QPInit
	out  *out

	sendQueue
	psn     roce.PSN      // of the next packet
	top     roce.PSN      // after the last packet that has been sent
	reads   int           // credits for READs and atomics that are left, of the peer's MaxDestRDAtomic
	unasked int           // packets since an acknowledgement was requested
	rnrAt   time.Duration // nothing is sent before, because the peer has no receive; 0: no wait
	window  window
	timeout time.Duration // for an acknowledgement; 0: none
	timerAt time.Duration // when the QP's timer fires at the latest; 0: it is not set
	comp    completer
	dc      initiator // with QPInit.Dynamic
	paging  paging
}

// set applies attributes that have changed. The QP has rounded the number of READs.
func (q *requester) set(a *verbs.QPAttr, mask verbs.QPAttrMask) {
	if mask&verbs.MaskMaxRDAtomic != 0 {
		q.reads = int(q.qp.attr.MaxRDAtomic)
	}
	if mask&verbs.MaskTimeout != 0 {
		// The value 0 means that answers are waited for without a limit (IBA, 9.7.6.1.3).
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
		// Both sides agree on the first PSN when they connect. A random one, as TCP's initial
		// sequence number, keeps late packets of an earlier connection of these QPs from fitting
		// into this one.
		q.psn = roce.PSN(a.SQPSN) & roce.PSNMask
		q.comp.psn, q.top = q.psn, q.psn
	}
}

// reset forgets all requests, and all knowledge of the peer.
func (q *requester) reset() {
	q.disconnect()
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
	if q.qp.ended {
		return
	}
	// In these states nothing is sent: each request completes as flushed, so that the program gets
	// all its IDs back (IBA, 10.3.1).
	if q.qp.state == verbs.StateErr || q.qp.state == verbs.StateSQE {
		q.flush()
		return
	}
	if q.qp.state < verbs.StateRTS {
		return
	}
	// The window ends a burst of RC. UC and UD have none, so they give other QPs their turn.
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

func (q *requester) nextRequest() *request {
	if q.paging.waits() {
		return nil
	}
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
	// A QP that drains (SQD) ends the messages that it has begun, and begins no others (IBA,
	// 10.3.1).
	if q.qp.state == verbs.StateSQD && !r.started() && r.state != requestDone {
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
	if q.init.Dynamic && !q.connected(r) {
		return false
	}
	n, ok := q.admit(r)
	if !ok {
		return false
	}
	// A message is cut into packets of the path's MTU. The opcode of each tells its place, FIRST,
	// MIDDLE, LAST or ONLY; nothing else tells the responder where a SEND ends.
	first, last := r.sent == 0, r.sent+n == r.length
	h := roce.Packet{Opcode: r.opcode(q.qp.transport, first, last), DestQP: q.qp.attr.DestQPNum, PSN: q.psn}
	flags := h.Opcode.Flags()
	ends := flags&roce.Ends != 0
	// Only what completes a receive can be solicited: it wakes a peer that has armed its CQ for
	// such messages alone.
	h.Solicited = ends && r.flags&uint32(verbs.SendSolicited) != 0 && (r.info.kind == opSend || r.info.kind == opWrite && r.info.imm)
	packets, payload := 1, int(n)
	switch r.info.kind {
	case opRead:
		// The request is one packet, but takes the PSNs of its whole answer, as each response has
		// the PSN that it answers (update_wqe_psn).
		packets, payload = max(1, (int(n)+q.qp.mtu-1)/q.qp.mtu), 0
		h.RETH = roce.RETH{VA: r.remote + uint64(r.sent), RKey: r.rkey, Length: n}
		if n == 0 {
			h.RETH.RKey = 0 // it is not checked (IBA, C9-88), and rxe answers again only if it is 0
		}
	case opAtomic:
		payload = 0
		// One header has the operands of both atomics: FETCH ADD has its addend where COMPARE SWAP
		// has the value to swap in. The work request has it where COMPARE SWAP has the value to
		// compare with.
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
	// An acknowledgement covers all packets before it, so few are requested: at the end of each
	// message, within long ones, and when the window is full, which would never open again without.
	if q.init.Type == verbs.RC {
		q.unasked += packets
		inFlight := q.psn.Add(packets).Sub(q.comp.psn)
		h.AckReq = ends || q.unasked >= maxUnasked || inFlight >= q.window.limit(q.qp.path.local)
		if h.AckReq {
			q.unasked = 0
		}
	}
	o := q.out.begin(q.qp.path, &h, payload)
	if got := q.gather(r, o.payload); got != copyOK {
		q.out.abort(&o)
		if got != copyMissing || !q.missing(r, r.sent) {
			q.failRequest(r, q.qp.localFault())
		}
		return false
	}
	q.out.send(&o, &h)
	q.advance(r, n, packets)
	return true
}

// advance moves the requester behind a packet that it has sent.
func (q *requester) advance(r *request, n uint32, packets int) {
	if !r.started() {
		// All PSNs of a request are fixed with its first packet: answers find it by them, and a
		// repeated packet has the PSN that it had.
		r.first = q.psn
		r.last = r.first.Add(r.packets(q.qp.mtu) - 1)
	}
	r.sent += n
	q.psn = q.psn.Add(packets)
	fresh := q.psn.After(q.top)
	if fresh {
		q.top = q.psn
	}
	r.state = requestSending
	if r.sent == r.length {
		r.state = requestSent
		// UC gets no answer: the request is complete when it is sent, whether it arrives or not.
		if q.init.Type != verbs.RC {
			r.state = requestDone
		}
		q.next = q.ring.next(q.next)
	}
	if q.timeout > 0 {
		q.time(fresh)
	}
}

// time sets the timer of an acknowledgement after a packet has been sent, and measures how long it
// takes. As in TCP (Karn's algorithm) packets that have been sent before are not measured: the
// answer may be one to either.
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

// fenced reports whether a request has to wait for earlier ones (rxe_wqe_is_fenced). RC executes
// requests in order at the peer, but READs and atomics change this side's memory late: a fence
// waits for their answers, so that the request can send what they have brought. A request that is
// sent again does not wait for itself, as it does with rxe.
func (q *requester) fenced(r *request) bool {
	if r.op == abi.IB_UVERBS_WR_LOCAL_INV || r.op == OpDevice && q.init.Type == verbs.RC {
		// A key is invalidated when no earlier request can use it any more.
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
	// The peer has asked for a pause, see waitRNR.
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
		// The peer keeps the result of each atomic in one of a few places, in case it has to repeat
		// the answer: see history. A credit is such a place (IBA, 9.4.4 for READs, 9.4.5 for
		// atomics). More requests than places would drop the oldest result, so the requester
		// counts; the responder does not check (check_resource). A request that is sent again has
		// its credit already.
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
	// A repetition asks for the same parts.
	for _, end := range r.parts[:r.numParts] {
		if end > r.sent {
			return end - r.sent, true
		}
	}
	switch {
	case r.length == 0 && r.numParts > 0:
		return 0, true
	// Two parts are on their way at most, which keeps the path full.
	case r.numParts == len(r.parts), q.reads == 0:
		return 0, false
	}
	n = r.length - r.sent
	if most := uint64(free) * uint64(q.qp.mtu); uint64(n) > most {
		// Wait for more room: otherwise each response that arrives would let one packet be asked
		// for, as with TCP's silly windows.
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

func (q *requester) gather(r *request, payload []byte) copyResult {
	if len(payload) == 0 {
		return copyOK
	}
	if r.inline {
		copyMapped(payload, q.inlineData(q.next)[r.sent:])
		return copyOK
	}
	return q.qp.copySGL(r.sges, &r.cursor, payload, false)
}

func (q *sendQueue) inlineData(i uint32) []byte { return q.ring.elem(i)[sendWQESize:] }

func (q *requester) sendDatagram(r *request) bool {
	d := q.qp.dev
	ah := d.ahs.get(r.ud.ah)
	// The program names its address handle by a number, so it is checked like a key.
	if ah == nil || ah.pd != q.qp.pd {
		q.failRequest(r, verbs.WCLocQPOpErr)
		return false
	}
	// A datagram is one packet. A longer one is refused, and not sent in parts; the standard and
	// rxe let it complete as if it had been sent (C10-93.1.1).
	if r.length > uint32(d.cfg.MTU.Bytes()) {
		q.failRequest(r, verbs.WCLocLenErr)
		return false
	}
	// Receivers of datagrams do not look at the PSN. It is counted as rxe does, and lets
	// failOversize find the request of a packet.
	r.state, r.first, r.last = requestDone, q.psn, q.psn
	h := roce.Packet{
		Opcode: r.opcode(roce.UD, true, true), DestQP: r.ud.qpn, PSN: q.psn, Imm: r.ex,
		Solicited: r.flags&uint32(verbs.SendSolicited) != 0,
		DETH:      roce.DETH{QKey: r.ud.qkey, SrcQP: q.qp.num},
	}
	o := q.out.begin(ah.path, &h, int(r.length))
	if got := q.gather(r, o.payload); got != copyOK {
		q.out.abort(&o)
		if got != copyMissing || !q.missing(r, 0) {
			q.failRequest(r, q.qp.localFault())
		} else {
			r.state = requestPosted
		}
		return false
	}
	q.out.send(&o, &h)
	q.psn = q.psn.Add(1)
	q.next = q.ring.next(q.next)
	return true
}

// executeLocal executes LOCAL_INV, BIND_MW and requests of the device.
func (q *requester) executeLocal(r *request) bool {
	status := verbs.WCSuccess
	switch {
	case r.op == OpDevice:
		status = q.init.Execute(r.id, q.inlineData(q.next))
	case r.op == abi.IB_UVERBS_WR_BIND_MW && !q.qp.bindMW(&r.bind):
		status = verbs.WCMWBindErr
	case r.op == abi.IB_UVERBS_WR_LOCAL_INV && !q.qp.invalidate(r.key):
		status = verbs.WCLocQPOpErr
	}
	if status != verbs.WCSuccess {
		q.failRequest(r, status)
		return false
	}
	r.state = requestDone
	q.next = q.ring.next(q.next)
	return true
}

// failRequest ends a request that has failed on this side. It completes with its status, all others
// as flushed, and the QP moves to the error state. A strict UC or UD QP moves to SQE instead, where
// only its send queue has failed: it still receives, and the program may return it to RTS (IBA,
// 10.3.1).
func (q *requester) failRequest(r *request, status verbs.WCStatus) {
	if q.init.Type != verbs.RC && q.out.batch != nil { // those before it have been sent, or fail themselves
		q.out.flush()
		if q.qp.failOversize(); q.qp.state == verbs.StateErr || q.qp.state == verbs.StateSQE {
			return
		}
	}
	q.completeDone()
	r.status = status
	if !q.init.Strict || q.init.Type == verbs.RC {
		q.qp.setError()
		return
	}
	q.qp.state = verbs.StateSQE
	q.qp.attr.SQDraining = false
	q.flush()
}

// flush completes all requests in order: a request that has failed here with its status, all others
// as flushed. Whether the peer has executed those is not known.
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

// checkDrained reports, once, that a QP in SQD has no request in progress (IB_EVENT_SQ_DRAINED):
// from then on the program may change attributes that must not change under a message.
func (q *requester) checkDrained() {
	if q.qp.state != verbs.StateSQD || !q.qp.attr.SQDraining || q.ring.index != q.loaded && q.requests[q.ring.index].state != requestPosted {
		return
	}
	q.qp.attr.SQDraining = false
	q.qp.report(verbs.EventSQDrained)
}

// rewind makes the requester repeat all unacknowledged packets (req_retry). The requests get the
// same PSNs and cuts again, as the responder compares both.
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
			// The part of the answer that has arrived is not asked for again: a responder also
			// answers the rest of an earlier READ (see repeatRead).
			r.sent = r.got
		case opSend, opWrite:
			// Packets before comp.psn have been acknowledged, and all but the last of a message are
			// full, so their number tells the bytes.
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
