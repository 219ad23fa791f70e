package engine

import (
	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/roce"
)

// fault is why a request is refused.
type fault uint8

const (
	noFault       fault = iota
	faultDrop           // the packet is ignored
	faultNotReady       // no receive request
	faultInvalid        // unexpected or not supported: NAK invalid request
	faultLength         // as invalid; UC and UD ignore it
	faultAccess         // NAK remote access error
	faultReceive        // the receive request is malformed: NAK remote operational error
	faultRoom           // the message is longer than the receive request
	faultKey            // a key cannot be invalidated
)

// refuse answers a request that has a fault.
func (qp *QP) refuse(p *packet, f fault) {
	r := &qp.resp
	if f == faultRoom && !qp.strict {
		f = faultReceive
	}
	if qp.typ != verbs.RC {
		qp.refuseUnreliable(p, f)
		return
	}
	switch f {
	case faultDrop:
	case faultNotReady:
		qp.dev.counters.add(sentRNR, 1)
		qp.sendNAK(roce.RNRNAK(qp.attr.MinRNRTimer), p.PSN)
	case faultInvalid, faultLength:
		qp.endWithNAK(p, roce.NAKInvalid, verbs.WCRemInvReqErr, verbs.EventQPReqErr)
	case faultAccess:
		qp.endWithNAK(p, roce.NAKRemoteAccess, verbs.WCRemAccessErr, verbs.EventQPAccessErr)
	case faultReceive:
		qp.endWithNAK(p, roce.NAKRemoteOp, qp.either(verbs.WCLocQPOpErr, verbs.WCLocProtErr), verbs.EventQPFatal)
	case faultRoom:
		qp.endWithNAK(p, roce.NAKInvalid, verbs.WCLocLenErr, verbs.EventQPReqErr)
	case faultKey: // class J: the peer gets an acknowledgement
		if r.recv.active {
			qp.completeReceive(p, verbs.WCRemInvReqErr)
		}
		if p.AckReq {
			qp.sendResponse(roce.RCAcknowledge, p.PSN, roce.ACKUnlimited, 0)
		}
		qp.setError()
	}
}

// endWithNAK moves the QP to the error state because of a request. The receive request in
// use completes with the status; without one an event is reported.
func (qp *QP) endWithNAK(p *packet, s roce.Syndrome, status verbs.WCStatus, event verbs.AsyncEventType) {
	if qp.resp.recv.active {
		qp.completeReceive(p, status)
	} else {
		qp.report(event)
	}
	qp.sendNAK(s, p.PSN)
	qp.setError()
}

// refuseUnreliable drops a faulty message. Only errors of the receive request end the QP.
func (qp *QP) refuseUnreliable(p *packet, f fault) {
	r := &qp.resp
	switch f {
	case faultReceive, faultInvalid, faultRoom:
		if r.recv.active {
			status := qp.either(verbs.WCLocQPOpErr, verbs.WCLocProtErr)
			if f == faultRoom {
				status = verbs.WCLocLenErr
			}
			qp.completeReceive(p, status)
		}
		qp.setError()
		return
	case faultDrop:
		return
	}
	r.inMessage = false
	r.dropping = qp.typ == verbs.UC
	if r.recv.active && qp.srq != nil {
		status := verbs.WCRemInvReqErr
		if f == faultAccess {
			status = verbs.WCRemAccessErr
		}
		qp.completeReceive(p, status)
	}
	r.recv.active = false
}
