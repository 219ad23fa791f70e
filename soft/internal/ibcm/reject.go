package ibcm

import (
	"encoding/binary"
	"syscall"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/roce"
)

// Reject sends a REJ with private data. It fails with EINVAL (ib_send_cm_rej).
func (id *ID) Reject(reason roce.RejectReason, privateData []byte) error {
	return id.reject(reason, nil, privateData)
}

// RejectMTU rejects a request whose path MTU is larger than the port's, which the peer learns.
func (id *ID) RejectMTU(port verbs.MTU) error {
	return id.reject(roce.RejInvalidMTU, []byte{byte(port)}, nil)
}

func (id *ID) reject(reason roce.RejectReason, info, privateData []byte) error {
	if len(privateData) > roce.REJPrivateData {
		return syscall.EINVAL
	}
	// Message names the answered message, and with it the communication IDs that the peer knows:
	// none of this side before a REP or an MRA has told it (cm_format_rej).
	m := &roce.REJ{LocalCommID: id.local, RemoteCommID: id.remote, Message: roce.AnswersOther, Reason: reason, Info: info, PrivateData: privateData}
	switch id.state {
	case RequestRcvd:
		m.LocalCommID, m.Message = 0, roce.AnswersREQ
	case MRARequestSent:
		m.Message = roce.AnswersREQ
	case ReplyRcvd, MRAReplySent:
		m.Message = roce.AnswersREP
	case RequestSent, MRARequestRcvd, ReplySent, MRAReplyRcvd:
	default:
		return syscall.EINVAL
	}
	id.cancel()
	// After a REP the peer's QP may be sending already.
	if id.state == ReplySent || id.state == MRAReplyRcvd {
		id.enterTimewait()
	} else {
		id.resetToIdle()
	}
	id.send(m)
	return nil
}

// handleREJ handles a rejection (cm_rej_handler). It may come in any state before the connection
// has ended: a peer that has given up rejects what this side believes established.
func (m *message) handleREJ(r *roce.REJ) {
	id := m.findRejected(r)
	if id == nil {
		return
	}
	switch id.state {
	case RequestSent, MRARequestRcvd, ReplySent, MRAReplyRcvd, RequestRcvd, MRARequestSent:
		// The peer knows a connection of this QP that has not ended for it: its packets may still
		// be under way, so the QP waits before it is used again.
		if r.Reason == roce.RejStaleConn {
			id.enterTimewait()
		} else {
			id.resetToIdle()
		}
	case DisconnectSent, ReplyRcvd, MRAReplySent, Established:
		id.enterTimewait()
	default:
		return
	}
	id.cancel()
	id.handle(&Event{Type: Rejected, Rejection: r, PrivateData: r.PrivateData})
}

// findRejected returns the ID that a rejection is for (cm_acquire_rejected_id).
func (m *message) findRejected(r *roce.REJ) *ID {
	manager := m.device.manager
	switch {
	case r.Reason == roce.RejTimeout:
		// The sender of a REQ has withdrawn it, without an answer that would have told it this
		// side's communication ID. So the connection is found by the sender's device and
		// communication ID.
		if len(r.Info) < 8 {
			return nil
		}
		return manager.remoteIDs[remoteKey{binary.BigEndian.Uint64(r.Info), m.reply.DGID, r.LocalCommID}]
	case r.Message == roce.AnswersREQ:
		return manager.find(r.RemoteCommID, 0)
	}
	return manager.find(r.RemoteCommID, r.LocalCommID)
}
