package engine

import (
	"encoding/binary"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/roce"
)

// completer is the state of completing requests. Two retry counts protect against different ills:
// retries against a peer or path that is gone (IBV_WC_RETRY_EXC_ERR), rnrRetries against a program
// that posts no receives (IBV_WC_RNR_RETRY_EXC_ERR). Any progress refills both.
type completer struct {
	psn        roce.PSN      // the first that is not acknowledged
	retries    uint8         // left
	rnrRetries uint8         // left
	retrying   bool          // sent again, and nothing has been acknowledged since
	deadline   time.Duration // of an acknowledgement; 0: none is expected
	probe      lossProbe
	lag        lag
}

// unlimitedRetries is the count that means no limit: for RNR retries in the standard (C9-132), and
// in rxe for the others as well (rxe_completer).
const unlimitedRetries = 7

// complete processes a response (rxe_completer; IBA, 9.7.6). As with TCP, an answer acknowledges
// all requests before it, since the responder executes them in order (IBA, 9.7.5.1.2), except those
// whose answer carries data: if a READ or an atomic is passed over, its answer is lost, which is as
// good as a NAK. A response of a PSN before the oldest request is a duplicate and ignored.
func (q *requester) complete(p *packet) {
	if !p.PSN.Before(q.top) { // not sent yet: a late packet of an earlier connection, or a forged one
		return
	}
	for {
		r := q.head()
		if r == nil {
			return
		}
		if p.PSN.After(r.last) {
			if r.info.kind == opRead || r.info.kind == opAtomic { // its answer is lost
				q.qp.dev.counters.add(impliedNAKs, 1)
				q.retry(false)
				return
			}
			q.progress(r.last.Add(1))
			q.completeHead(verbs.WCSuccess)
			continue
		}
		if !p.PSN.Before(q.comp.psn) {
			if status := q.answer(r, p); status != verbs.WCSuccess {
				q.failHead(status)
			}
		}
		return
	}
}

// head returns the oldest request that waits for an answer, or nil.
func (q *requester) head() *request {
	q.completeDone()
	if q.ring.index == q.loaded || !q.requests[q.ring.index].started() {
		return nil
	}
	return &q.requests[q.ring.index]
}

func (q *requester) completeDone() {
	for q.ring.index != q.next && q.requests[q.ring.index].state == requestDone {
		q.completeHead(verbs.WCSuccess)
	}
}

// answer processes a response to the oldest request. It returns the status of a request that fails.
func (q *requester) answer(r *request, p *packet) verbs.WCStatus {
	if p.Opcode == roce.RCAcknowledge {
		return q.acknowledge(r, p)
	}
	// Responses with data have an AETH too, which has to be positive: refusals come in ACKNOWLEDGE
	// packets (check_ack).
	if p.AETH.Syndrome.Class() != roce.ClassACK && p.Opcode.Has(roce.HasAETH) {
		return verbs.WCBadRespErr
	}
	switch r.info.kind {
	case opRead:
		return q.readResponse(r, p)
	case opAtomic:
		if p.Opcode != roce.RCAtomicAcknowledge {
			return verbs.WCBadRespErr
		}
		// The value travels in network order and is stored in the machine's, as the peer's atomic
		// worked on a number.
		var orig [8]byte
		binary.NativeEndian.PutUint64(orig[:], p.Orig)
		if got := q.qp.copySGL(r.sges, &r.cursor, orig[:], true); got == copyMissing && q.missing(r, 0) {
			return verbs.WCSuccess // the peer repeats its answer
		} else if got != copyOK {
			return verbs.WCLocProtErr
		}
	case opFlush, opAtomicWrite:
		// These have no opcode of their own for the answer: an empty READ RESPONSE is it
		// (send_read_response_ack).
		if p.Opcode != roce.RCReadResponseOnly || len(p.Payload) > 0 {
			return verbs.WCBadRespErr
		}
	default:
		return verbs.WCFatalErr
	}
	q.completeAnswered(r)
	return verbs.WCSuccess
}

func (q *requester) completeAnswered(r *request) {
	q.progress(r.last.Add(1))
	q.completeHead(verbs.WCSuccess)
}

// readResponse takes a part of the answer to a READ.
func (q *requester) readResponse(r *request, p *packet) verbs.WCStatus {
	// Responses have consecutive PSNs, and the responder does not know which arrive: the requester
	// asks again for everything from the gap on.
	if p.PSN != q.comp.psn { // an earlier part is lost
		q.retry(false)
		return verbs.WCSuccess
	}
	if r.numParts == 0 {
		return verbs.WCSuccess
	}
	end := r.parts[0]
	n := min(end-r.got, uint32(q.qp.mtu))
	// FIRST and MIDDLE are full packets, and LAST or ONLY stands where the request ends. Whether a
	// FIRST or a MIDDLE comes is not checked: after a repetition either may.
	if p.Opcode == roce.RCAtomicAcknowledge || len(p.Payload) != int(n) || p.Opcode.Has(roce.Ends) != (r.got+n == end) {
		return verbs.WCBadRespErr
	}
	if n > 0 {
		if got := q.qp.copySGL(r.sges, &r.cursor, p.Payload, true); got == copyMissing && q.missing(r, r.got) {
			return verbs.WCSuccess
		} else if got != copyOK {
			return verbs.WCLocProtErr
		}
	}
	r.got += n
	if r.got == end {
		r.parts[0] = r.parts[1]
		r.numParts--
		q.reads++
	}
	if r.got == r.length {
		q.completeAnswered(r)
	} else {
		q.progress(p.PSN.Add(1))
	}
	return verbs.WCSuccess
}

// acknowledge processes an ACK or a NAK within the oldest request (IBA, 9.7.5.2 has the codes,
// 9.9.2 what they mean for the requester). A NAK acknowledges the packets before its PSN. RNR and
// sequence NAKs lead to a repetition, each with its own count of retries; all others end the QP.
func (q *requester) acknowledge(r *request, p *packet) verbs.WCStatus {
	s := p.AETH.Syndrome
	data := r.info.kind == opRead || r.info.kind == opAtomic
	switch s.Class() {
	case roce.ClassACK:
		switch {
		case data: // only an answer completes it
		// An ACK of a packet within a message tells only that packets have arrived. The message is
		// complete with its last one.
		case p.PSN == r.last:
			q.completeAnswered(r)
		default:
			q.progress(p.PSN.Add(1))
		}
	case roce.ClassRNRNAK:
		// Receiver not ready: the program there has posted no receive. The packet and all behind it
		// have been dropped, and the NAK says how long to wait (IBA, 9.7.5.2.8).
		q.qp.dev.counters.add(receivedRNR, 1)
		if !data {
			q.progress(p.PSN)
		}
		q.waitRNR(roce.RNRDelay(s.Value()))
	case roce.ClassNAK:
		switch s {
		case roce.NAKSequence:
			// The responder has seen a later packet and names the one that it lacks, so there is no
			// need to wait for the timeout: this is RC's fast retransmit.
			q.qp.dev.counters.add(receivedSequenceErrors, 1)
			if !data {
				q.progress(p.PSN)
			}
			q.retry(false)
		// The rest are errors of the request, which the responder has not executed: repeating it
		// would not help, and the peer's QP has ended as well.
		case roce.NAKInvalid:
			return verbs.WCRemInvReqErr
		case roce.NAKRemoteAccess:
			return verbs.WCRemAccessErr
		default:
			return verbs.WCRemOpErr
		}
	default:
		return verbs.WCBadRespErr
	}
	return verbs.WCSuccess
}

// progress marks the packets before psn as acknowledged. The retry counts begin anew
// (reset_retry_counters), so a slow path with many single losses never uses them up.
func (q *requester) progress(psn roce.PSN) {
	n := psn.Sub(q.comp.psn)
	if n <= 0 {
		return
	}
	c := &q.comp
	c.psn = psn
	c.retries, c.rnrRetries, c.retrying = q.qp.attr.RetryCount, q.qp.attr.RNRRetry, false
	q.window.ack(n, psn, q.top)
	q.catchUp()
	if q.timeout == 0 {
		return
	}
	now := q.qp.dev.now()
	c.probe.acked(psn, now)
	c.deadline, c.probe.at = 0, 0
	if psn != q.top {
		q.expectAck(now)
	}
}

// expectAck sets the timer for an acknowledgement. As TCP's retransmission timer, it covers all
// packets in flight, and starts again with each progress (IBA, 9.7.6.1.3). The loss probe comes
// first if the round trip is known.
func (q *requester) expectAck(now time.Duration) {
	c := &q.comp
	c.deadline, c.lag = now+q.timeout, lag{}
	at := c.deadline
	if d := c.probe.interval(); d > 0 && d < q.timeout && !q.qp.path.local {
		c.probe.at = now + d
		at = c.probe.at
	}
	q.setTimer(at)
}

// catchUp moves the requester to the first unacknowledged packet if it is repeating acknowledged
// ones: they were only late.
func (q *requester) catchUp() {
	if q.psn.Before(q.comp.psn) {
		q.rewind()
	}
}

// completeHead completes the oldest request. An unsignaled one gets no completion, unless it fails
// (IBA, 10.7.3.1).
func (q *requester) completeHead(status verbs.WCStatus) {
	r := &q.requests[q.ring.index]
	// The peer needs to keep nothing for a request whose answer has come.
	if r.info.kind.hasCredit() {
		q.reads += r.numParts
		r.numParts = 0
	}
	if q.next == q.ring.index {
		q.next = q.ring.next(q.next)
	}
	// consume returns the ring's element to the program, so copy first.
	signaled := q.init.SignalAll || r.flags&uint32(verbs.SendSignaled) != 0
	var flags uint32
	if r.info.imm {
		flags = uint32(verbs.WCWithImm)
	}
	id, op, length := r.id, r.info, r.length
	q.ring.consume()
	if signaled || status != verbs.WCSuccess {
		wc := q.qp.newWC(id, status)
		if status == verbs.WCSuccess {
			wc.Opcode, wc.ByteLen, wc.WcFlags = op.wc, length, flags
		}
		q.qp.post(q.init.SendCQ, &wc, status != verbs.WCSuccess, false)
	}
	if op.kind == opSend {
		q.qp.dev.counters.add(sends, 1)
	}
}

// failHead completes the oldest request with an error and moves the QP to the error state.
func (q *requester) failHead(status verbs.WCStatus) {
	q.completeHead(status)
	q.qp.setError()
}

// retry sends all unacknowledged packets again, unless it has done so since the last
// acknowledgement and no timer has expired: packets in flight behind a gap may each report the same
// loss.
func (q *requester) retry(timeout bool) {
	c := &q.comp
	if q.rnrAt != 0 || q.paging.waits() || c.retrying && !timeout || q.head() == nil || q.top == c.psn { // waitRNR has rewound already, and resumePaging will
		return
	}
	if c.retries == 0 {
		q.qp.dev.counters.add(retriesExceeded, 1)
		q.failHead(verbs.WCRetryExcErr)
		return
	}
	if c.retries != unlimitedRetries {
		c.retries--
	}
	q.qp.dev.counters.add(retries, 1)
	if timeout {
		q.qp.dev.counters.add(ackTimeouts, 1)
	}
	c.retrying = true
	c.probe.timing = false
	q.window.probing = false
	q.window.loss(q.top, timeout)
	q.rewind()
}

// sendProbe repeats the oldest unacknowledged packet, as TCP's tail loss probe does. The answer
// tells whether those behind it are lost, see window.ack. It does not count as a retry.
func (q *requester) sendProbe() {
	q.comp.probe.shift++
	q.comp.probe.timing = false
	q.window.probing = true
	q.rewind()
}

// waitRNR waits because the responder has no receive request. All requests wait, as RC keeps their
// order.
func (q *requester) waitRNR(delay time.Duration) {
	c := &q.comp
	if q.rnrAt != 0 {
		return
	}
	if c.rnrRetries == 0 {
		q.qp.dev.counters.add(rnrRetriesExceeded, 1)
		q.failHead(verbs.WCRNRRetryExcErr)
		return
	}
	if c.rnrRetries != unlimitedRetries {
		c.rnrRetries--
	}
	c.probe.timing = false
	q.rewind()
	// No answer is expected meanwhile, so the timeout does not run: the peer is alive.
	q.rnrAt = q.qp.dev.now() + max(delay, minRNRDelay)
	c.deadline, c.probe.at = 0, 0
	q.setTimer(q.rnrAt)
}

// minRNRDelay is rxe's least wait: its timers count ticks.
const minRNRDelay = time.Millisecond

// setTimer makes the QP's timer fire at a time or earlier.
func (q *requester) setTimer(at time.Duration) {
	if q.timerAt != 0 && q.timerAt <= at || q.qp.ended {
		return
	}
	q.timerAt = at
	q.qp.dev.timers.set(q.qp, at)
}

// expired is called when the QP's timer has fired.
func (q *requester) expired(now time.Duration) {
	q.timerAt = 0
	if q.qp.ended || q.qp.state != verbs.StateRTS && q.qp.state != verbs.StateSQD {
		return
	}
	q.askAgain(now)
	c := &q.comp
	// The pause is over: run, below, sends again.
	if q.rnrAt != 0 {
		if now < q.rnrAt {
			q.setTimer(q.rnrAt)
			return
		}
		q.rnrAt = 0
	}
	switch {
	case c.deadline == 0:
	// The answer may wait in this machine's own queues, see lag.
	case (now >= c.deadline || c.probe.at != 0 && now >= c.probe.at) && !q.caughtUp():
		q.setTimer(now + max(q.timeout/16, minLagCheck))
	// The answer is missing for the QP's timeout. Only this counts as a retry.
	case now >= c.deadline:
		q.expectAck(now)
		q.retry(true)
	case c.probe.at != 0 && now >= c.probe.at:
		// The answer is late compared to the round trip: probe, and keep the deadline.
		at := c.deadline
		q.sendProbe()
		q.expectAck(now)
		c.deadline = at
		q.setTimer(at)
	// Progress has moved the deadlines since the timer was set: set it again.
	case c.probe.at != 0:
		q.setTimer(c.probe.at)
	default:
		q.setTimer(c.deadline)
	}
	q.run()
}
