package engine

import (
	"encoding/binary"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/roce"
)

// completer is the state of completing requests.
type completer struct {
	psn        roce.PSN      // the first that is not acknowledged
	retries    uint8         // left
	rnrRetries uint8         // left
	retrying   bool          // sent again, and nothing has been acknowledged since
	deadline   time.Duration // of an acknowledgement; 0: none is expected
	probe      lossProbe
	lag        lag
}

const unlimitedRetries = 7

// complete processes a response (rxe_completer; IBA, 9.7.6). An acknowledgement is also one of all
// requests before it, except those whose answer carries data: if a READ or an atomic is passed over, its
// answer is lost, which is as good as a NAK. A response of a PSN before the oldest request is a duplicate and
// ignored.
func (q *requester) complete(p *packet) {
	if !p.PSN.Before(q.top) { // has not been sent
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
			q.answer(r, p)
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

// completeDone completes requests that need no answer.
func (q *requester) completeDone() {
	for q.ring.index != q.next && q.requests[q.ring.index].state == requestDone {
		q.completeHead(verbs.WCSuccess)
	}
}

// answer processes a response to the oldest request.
func (q *requester) answer(r *request, p *packet) {
	if p.Opcode == roce.RCAcknowledge {
		q.acknowledge(r, p)
		return
	}
	if p.AETH.Syndrome.Class() != roce.ClassACK && p.Opcode.Has(roce.HasAETH) {
		q.failHead(verbs.WCBadRespErr)
		return
	}
	switch r.info.kind {
	case opRead:
		q.readResponse(r, p)
	case opAtomic:
		if p.Opcode != roce.RCAtomicAcknowledge {
			q.failHead(verbs.WCBadRespErr)
			return
		}
		var orig [8]byte
		binary.NativeEndian.PutUint64(orig[:], p.Orig)
		if q.qp.copySGL(r.sges, &r.cursor, orig[:], true) != copyOK {
			q.failHead(verbs.WCLocProtErr)
			return
		}
		q.completeAnswered(r)
	case opFlush, opAtomicWrite:
		if p.Opcode != roce.RCReadResponseOnly || len(p.Payload) > 0 {
			q.failHead(verbs.WCBadRespErr)
			return
		}
		q.completeAnswered(r)
	default:
		q.failHead(verbs.WCFatalErr)
	}
}

// completeAnswered completes the oldest request.
func (q *requester) completeAnswered(r *request) {
	q.progress(r.last.Add(1))
	q.completeHead(verbs.WCSuccess)
}

// readResponse takes a part of the answer to a READ.
func (q *requester) readResponse(r *request, p *packet) {
	if p.PSN != q.comp.psn { // an earlier part is lost
		q.retry(false)
		return
	}
	if r.numParts == 0 {
		return
	}
	end := r.parts[0]
	n := min(end-r.got, uint32(q.qp.mtu))
	if p.Opcode == roce.RCAtomicAcknowledge || len(p.Payload) != int(n) || p.Opcode.Has(roce.Ends) != (r.got+n == end) {
		q.failHead(verbs.WCBadRespErr)
		return
	}
	if n > 0 && q.qp.copySGL(r.sges, &r.cursor, p.Payload, true) != copyOK {
		q.failHead(verbs.WCLocProtErr)
		return
	}
	r.got += n
	if r.got == end {
		r.parts[0] = r.parts[1]
		r.numParts--
		q.reads++
	}
	if r.got == r.length {
		q.completeAnswered(r)
		return
	}
	q.progress(p.PSN.Add(1))
}

// acknowledge processes an ACK or a NAK that is within the oldest request (IBA, 9.7.5 has the codes,
// 9.9.2 what they mean for the requester). A NAK acknowledges what is before its PSN. RNR and sequence
// NAKs lead to a repetition, each with its own count of retries; all others end the QP.
func (q *requester) acknowledge(r *request, p *packet) {
	s := p.AETH.Syndrome
	data := r.info.kind == opRead || r.info.kind == opAtomic
	switch s.Class() {
	case roce.ClassACK:
		switch {
		case data: // only an answer completes it
		case p.PSN == r.last:
			q.completeAnswered(r)
		default:
			q.progress(p.PSN.Add(1))
		}
	case roce.ClassRNRNAK:
		q.qp.dev.counters.add(receivedRNR, 1)
		if !data {
			q.progress(p.PSN)
		}
		q.waitRNR(roce.RNRDelay(s.Value()))
	case roce.ClassNAK:
		switch s {
		case roce.NAKSequence:
			q.qp.dev.counters.add(receivedSequenceErrors, 1)
			if !data {
				q.progress(p.PSN)
			}
			q.retry(false)
		case roce.NAKInvalid:
			q.failHead(verbs.WCRemInvReqErr)
		case roce.NAKRemoteAccess:
			q.failHead(verbs.WCRemAccessErr)
		default:
			q.failHead(verbs.WCRemOpErr)
		}
	default:
		q.failHead(verbs.WCBadRespErr)
	}
}

// progress takes the packets before psn as acknowledged.
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

// expectAck sets the timer for an acknowledgement that is expected.
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

// catchUp moves the requester to the first packet that is not acknowledged, if it is sending
// again what is.
func (q *requester) catchUp() {
	if q.psn.Before(q.comp.psn) {
		q.rewind()
	}
}

// completeHead completes the oldest request.
func (q *requester) completeHead(status verbs.WCStatus) {
	r := &q.requests[q.ring.index]
	if r.info.kind.hasCredit() {
		q.reads += r.numParts
		r.numParts = 0
	}
	if q.next == q.ring.index {
		q.next = q.ring.next(q.next)
	}
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

// retry sends again what has not been acknowledged, unless this has been done since the last
// acknowledgement and no time has expired.
func (q *requester) retry(timeout bool) {
	c := &q.comp
	if q.rnrAt != 0 || c.retrying && !timeout || q.head() == nil || q.top == c.psn {
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

// sendProbe sends the oldest packet again that has not been acknowledged.
func (q *requester) sendProbe() {
	q.comp.probe.shift++
	q.comp.probe.timing = false
	q.window.probing = true
	q.rewind()
}

// waitRNR waits because the responder has no receive request.
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
	q.rnrAt = q.qp.dev.now() + max(delay, minRNRDelay)
	c.deadline, c.probe.at = 0, 0
	q.setTimer(q.rnrAt)
}

// minRNRDelay is the least time for which rxe waits: its timers count ticks.
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
	c := &q.comp
	if q.rnrAt != 0 {
		if now < q.rnrAt {
			q.setTimer(q.rnrAt)
			return
		}
		q.rnrAt = 0
	}
	switch {
	case c.deadline == 0:
	case (now >= c.deadline || c.probe.at != 0 && now >= c.probe.at) && !q.caughtUp():
		q.setTimer(now + max(q.timeout/16, minLagCheck))
	case now >= c.deadline:
		q.expectAck(now)
		q.retry(true)
	case c.probe.at != 0 && now >= c.probe.at:
		at := c.deadline
		q.sendProbe()
		q.expectAck(now)
		c.deadline = at
		q.setTimer(at)
	case c.probe.at != 0:
		q.setTimer(c.probe.at)
	default:
		q.setTimer(c.deadline)
	}
	q.run()
}
