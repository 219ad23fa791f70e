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
	faultPage           // a page is missing
)

// refuse answers a faulty request (IBA, 9.9.3, which has a class for each; the classes below are as
// rxe_responder names them). Without a receive request RC asks for patience and stays as it is
// (class B); other faults are NAKs that end both QPs. The status of the receive request in use
// tells this side, and the NAK's code the other (IBA, 9.7.5.2.2).
func (r *responder) refuse(p *packet, f fault) {
	if f == faultRoom && !r.init.Strict {
		f = faultReceive
	}
	if r.init.Type != verbs.RC {
		r.refuseUnreliable(p, f)
		return
	}
	switch f {
	case faultDrop:
	case faultNotReady:
		// The program chooses how long the peer waits: MinRNRTimer (IBA, 9.7.5.2.8). The expected
		// PSN stays, so the packet is new when it comes again.
		r.qp.dev.counters.add(sentRNR, 1)
		r.sendNAK(roce.RNRNAK(r.qp.attr.MinRNRTimer), p.PSN)
	case faultPage:
		// ConnectX answers so, too. The guest decides how long the fault takes, so the peer tries again soon.
		const shortest = 1
		r.held = r.held || p.Opcode.Has(roce.TakesReceive)
		r.sendNAK(roce.RNRNAK(shortest), p.PSN)
	// Class C: the peer's request is wrong.
	case faultInvalid, faultLength:
		r.endWithNAK(p, roce.NAKInvalid, verbs.WCRemInvReqErr, verbs.EventQPReqErr)
	case faultAccess:
		r.endWithNAK(p, roce.NAKRemoteAccess, verbs.WCRemAccessErr, verbs.EventQPAccessErr)
	// Class A: this side's receive is wrong, which the peer cannot know: a remote operational error
	// for it.
	case faultReceive:
		r.endWithNAK(p, roce.NAKRemoteOp, r.qp.localFault(), verbs.EventQPFatal)
	case faultRoom:
		r.endWithNAK(p, roce.NAKInvalid, verbs.WCLocLenErr, verbs.EventQPReqErr)
	case faultKey: // class J: the data has arrived, so the peer gets an acknowledgement; only this side fails
		if r.recv.active {
			r.completeReceive(p, verbs.WCRemInvReqErr)
		}
		if p.AckReq {
			r.sendResponse(roce.RCAcknowledge, p.PSN, roce.ACKUnlimited, 0)
		}
		r.qp.setError()
	}
}

// endWithNAK moves the QP to the error state because of a request. The receive request in
// use completes with the status; without one an event is reported.
func (r *responder) endWithNAK(p *packet, s roce.Syndrome, status verbs.WCStatus, event verbs.AsyncEventType) {
	if r.recv.active {
		r.completeReceive(p, status)
	} else {
		r.qp.report(event)
	}
	r.sendNAK(s, p.PSN)
	r.qp.setError()
}

// refuseUnreliable drops a faulty message without telling the peer (IBA, 9.9.3; for UD 9.8.3.2.2).
// Only errors of the receive request end the QP. A receive of the QP's own queue serves the next
// message; an SRQ's has left its queue, and completes with an error.
func (r *responder) refuseUnreliable(p *packet, f fault) {
	switch f {
	case faultReceive, faultInvalid, faultRoom:
		if r.recv.active {
			status := r.qp.localFault()
			if f == faultRoom {
				status = verbs.WCLocLenErr
			}
			r.completeReceive(p, status)
		}
		r.qp.setError()
		return
	case faultDrop:
		return
	case faultNotReady:
		r.qp.dev.counters.add(outOfBuffer, 1)
	}
	// The rest of the message comes in vain: skip it up to the next FIRST or ONLY.
	r.inMessage = false
	r.dropping = r.init.Type == verbs.UC
	if r.recv.active && r.init.SRQ != nil {
		status := verbs.WCRemInvReqErr
		if f == faultAccess {
			status = verbs.WCRemAccessErr
		}
		r.completeReceive(p, status)
	}
	r.recv.active = false
}
