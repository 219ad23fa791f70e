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

// complete processes a response (rxe_completer).
func (qp *QP) complete(p *packet) {
	if !p.PSN.Before(qp.req.top) { // has not been sent
		return
	}
	for {
		r := qp.head()
		if r == nil {
			return
		}
		if p.PSN.After(r.last) {
			if r.info.kind == opRead || r.info.kind == opAtomic { // its answer is lost
				qp.dev.counters.add(impliedNAKs, 1)
				qp.retry(false)
				return
			}
			qp.progress(r.last.Add(1))
			qp.completeHead(verbs.WCSuccess)
			continue
		}
		if !p.PSN.Before(qp.comp.psn) {
			qp.answer(r, p)
		}
		return
	}
}

// head returns the oldest request that waits for an answer, or nil.
func (qp *QP) head() *request {
	qp.completeDone()
	q := &qp.sq
	if q.ring.index == q.loaded || !q.requests[q.ring.index].started() {
		return nil
	}
	return &q.requests[q.ring.index]
}

// completeDone completes requests that need no answer.
func (qp *QP) completeDone() {
	q := &qp.sq
	for q.ring.index != q.next && q.requests[q.ring.index].state == requestDone {
		qp.completeHead(verbs.WCSuccess)
	}
}

// answer processes a response to the oldest request.
func (qp *QP) answer(r *request, p *packet) {
	if p.Opcode == roce.RCAcknowledge {
		qp.acknowledge(r, p)
		return
	}
	if p.AETH.Syndrome.Class() != roce.ClassACK && p.Opcode.Has(roce.HasAETH) {
		qp.failHead(verbs.WCBadRespErr)
		return
	}
	switch r.info.kind {
	case opRead:
		qp.readResponse(r, p)
	case opAtomic:
		if p.Opcode != roce.RCAtomicAcknowledge {
			qp.failHead(verbs.WCBadRespErr)
			return
		}
		var orig [8]byte
		binary.NativeEndian.PutUint64(orig[:], p.Orig)
		if qp.copySGL(r.sges, &r.cursor, orig[:], true) != copyOK {
			qp.failHead(verbs.WCLocProtErr)
			return
		}
		qp.completeAnswered(r)
	case opFlush, opAtomicWrite:
		if p.Opcode != roce.RCReadResponseOnly || len(p.Payload) > 0 {
			qp.failHead(verbs.WCBadRespErr)
			return
		}
		qp.completeAnswered(r)
	default:
		qp.failHead(verbs.WCFatalErr)
	}
}

// completeAnswered completes the oldest request.
func (qp *QP) completeAnswered(r *request) {
	qp.progress(r.last.Add(1))
	qp.completeHead(verbs.WCSuccess)
}

// readResponse takes a part of the answer to a READ.
func (qp *QP) readResponse(r *request, p *packet) {
	if p.PSN != qp.comp.psn { // an earlier part is lost
		qp.retry(false)
		return
	}
	if r.numParts == 0 {
		return
	}
	end := r.parts[0]
	n := min(end-r.got, uint32(qp.mtu))
	if p.Opcode == roce.RCAtomicAcknowledge || len(p.Payload) != int(n) || p.Opcode.Has(roce.Ends) != (r.got+n == end) {
		qp.failHead(verbs.WCBadRespErr)
		return
	}
	if n > 0 && qp.copySGL(r.sges, &r.cursor, p.Payload, true) != copyOK {
		qp.failHead(verbs.WCLocProtErr)
		return
	}
	r.got += n
	if r.got == end {
		r.parts[0] = r.parts[1]
		r.numParts--
		qp.req.reads++
	}
	if r.got == r.length {
		qp.completeAnswered(r)
		return
	}
	qp.progress(p.PSN.Add(1))
}

// acknowledge processes an ACK or a NAK that is within the oldest request.
func (qp *QP) acknowledge(r *request, p *packet) {
	s := p.AETH.Syndrome
	data := r.info.kind == opRead || r.info.kind == opAtomic
	switch s.Class() {
	case roce.ClassACK:
		switch {
		case data: // only an answer completes it
		case p.PSN == r.last:
			qp.completeAnswered(r)
		default:
			qp.progress(p.PSN.Add(1))
		}
	case roce.ClassRNRNAK:
		qp.dev.counters.add(receivedRNR, 1)
		if !data {
			qp.progress(p.PSN)
		}
		qp.waitRNR(roce.RNRDelay(s.Value()))
	case roce.ClassNAK:
		switch s {
		case roce.NAKSequence:
			qp.dev.counters.add(receivedSequenceErrors, 1)
			if !data {
				qp.progress(p.PSN)
			}
			qp.retry(false)
		case roce.NAKInvalid:
			qp.failHead(verbs.WCRemInvReqErr)
		case roce.NAKRemoteAccess:
			qp.failHead(verbs.WCRemAccessErr)
		default:
			qp.failHead(verbs.WCRemOpErr)
		}
	default:
		qp.failHead(verbs.WCBadRespErr)
	}
}

// progress takes the packets before psn as acknowledged.
func (qp *QP) progress(psn roce.PSN) {
	n := psn.Sub(qp.comp.psn)
	if n <= 0 {
		return
	}
	c := &qp.comp
	c.psn = psn
	c.retries, c.rnrRetries, c.retrying = qp.attr.RetryCount, qp.attr.RNRRetry, false
	qp.req.window.ack(n, psn, qp.req.top)
	qp.catchUp()
	if qp.timeout == 0 {
		return
	}
	now := qp.dev.now()
	c.probe.acked(psn, now)
	c.deadline, c.probe.at = 0, 0
	if psn != qp.req.top {
		qp.expectAck(now)
	}
}

// expectAck sets the timer for an acknowledgement that is expected.
func (qp *QP) expectAck(now time.Duration) {
	c := &qp.comp
	c.deadline, c.lag = now+qp.timeout, lag{}
	at := c.deadline
	if d := c.probe.interval(); d > 0 && d < qp.timeout && !qp.path.local {
		c.probe.at = now + d
		at = c.probe.at
	}
	qp.setTimer(at)
}

// catchUp moves the requester to the first packet that is not acknowledged, if it is sending
// again what is.
func (qp *QP) catchUp() {
	if qp.req.psn.Before(qp.comp.psn) {
		qp.rewind()
	}
}

// completeHead completes the oldest request.
func (qp *QP) completeHead(status verbs.WCStatus) {
	q := &qp.sq
	r := &q.requests[q.ring.index]
	if r.info.kind.hasCredit() {
		qp.req.reads += r.numParts
		r.numParts = 0
	}
	if q.next == q.ring.index {
		q.next = q.ring.next(q.next)
	}
	signaled := qp.signalAll || r.flags&uint32(verbs.SendSignaled) != 0
	var flags uint32
	if r.info.imm {
		flags = uint32(verbs.WCWithImm)
	}
	id, op, length := r.id, r.info, r.length
	q.ring.consume()
	if signaled || status != verbs.WCSuccess {
		wc := qp.newWC(id, status)
		if status == verbs.WCSuccess {
			wc.Opcode, wc.ByteLen, wc.WcFlags = op.wc, length, flags
		}
		qp.post(qp.sendCQ, &wc, status != verbs.WCSuccess, false)
	}
	if op.kind == opSend {
		qp.dev.counters.add(sends, 1)
	}
}

// failHead completes the oldest request with an error and moves the QP to the error state.
func (qp *QP) failHead(status verbs.WCStatus) {
	qp.completeHead(status)
	qp.setError()
}

// retry sends again what has not been acknowledged, unless this has been done since the last
// acknowledgement and no time has expired.
func (qp *QP) retry(timeout bool) {
	c := &qp.comp
	if qp.req.waitRNR || c.retrying && !timeout || qp.head() == nil || qp.req.top == c.psn {
		return
	}
	if c.retries == 0 {
		qp.dev.counters.add(retriesExceeded, 1)
		qp.failHead(verbs.WCRetryExcErr)
		return
	}
	if c.retries != unlimitedRetries {
		c.retries--
	}
	qp.dev.counters.add(retries, 1)
	if timeout {
		qp.dev.counters.add(ackTimeouts, 1)
	}
	c.retrying = true
	c.probe.timing = false
	qp.req.window.probing = false
	qp.req.window.loss(qp.req.top, timeout)
	qp.rewind()
}

// sendProbe sends the oldest packet again that has not been acknowledged.
func (qp *QP) sendProbe() {
	qp.comp.probe.shift++
	qp.comp.probe.timing = false
	qp.req.window.probing = true
	qp.rewind()
}

// waitRNR waits because the responder has no receive request.
func (qp *QP) waitRNR(delay time.Duration) {
	c := &qp.comp
	if qp.req.waitRNR {
		return
	}
	if c.rnrRetries == 0 {
		qp.dev.counters.add(rnrRetriesExceeded, 1)
		qp.failHead(verbs.WCRNRRetryExcErr)
		return
	}
	if c.rnrRetries != unlimitedRetries {
		c.rnrRetries--
	}
	c.probe.timing = false
	qp.rewind()
	qp.req.waitRNR = true
	qp.req.rnrAt = qp.dev.now() + max(delay, minRNRDelay)
	c.deadline, c.probe.at = 0, 0
	qp.setTimer(qp.req.rnrAt)
}

// minRNRDelay is the least time for which rxe waits: its timers count ticks.
const minRNRDelay = time.Millisecond

// expired is called when the QP's timer has fired.
func (qp *QP) expired(now time.Duration) {
	if qp.ended || qp.state != verbs.StateRTS && qp.state != verbs.StateSQD {
		return
	}
	c := &qp.comp
	if qp.req.waitRNR {
		if now < qp.req.rnrAt {
			qp.setTimer(qp.req.rnrAt)
			return
		}
		qp.req.waitRNR = false
	}
	switch {
	case c.deadline == 0:
	case (now >= c.deadline || c.probe.at != 0 && now >= c.probe.at) && !qp.caughtUp():
		qp.setTimer(now + max(qp.timeout/16, minLagCheck))
	case now >= c.deadline:
		qp.expectAck(now)
		qp.retry(true)
	case c.probe.at != 0 && now >= c.probe.at:
		at := c.deadline
		qp.sendProbe()
		qp.expectAck(now)
		c.deadline = at
		qp.setTimer(at)
	case c.probe.at != 0:
		qp.setTimer(c.probe.at)
	default:
		qp.setTimer(c.deadline)
	}
	qp.request()
}
