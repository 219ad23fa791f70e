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
	if id.state == ReplySent || id.state == MRAReplyRcvd {
		id.enterTimewait()
	} else {
		id.resetToIdle()
	}
	id.send(m)
	return nil
}

// handleREJ handles a rejection (cm_rej_handler).
func (m *message) handleREJ(r *roce.REJ) {
	id := m.findRejected(r)
	if id == nil {
		return
	}
	switch id.state {
	case RequestSent, MRARequestRcvd, ReplySent, MRAReplyRcvd, RequestRcvd, MRARequestSent:
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
	id.handle(&Event{Type: Rejected, Rejection: &Rejection{r.Reason, r.Info}, PrivateData: r.PrivateData})
}

// findRejected returns the ID that a rejection is for (cm_acquire_rejected_id).
func (m *message) findRejected(r *roce.REJ) *ID {
	manager := m.device.manager
	switch {
	case r.Reason == roce.RejTimeout:
		// The sender may not know this side's communication ID.
		if len(r.Info) < 8 {
			return nil
		}
		return manager.remoteIDs[remoteKey{binary.BigEndian.Uint64(r.Info), m.reply.DGID, r.LocalCommID}]
	case r.Message == roce.AnswersREQ:
		return manager.find(r.RemoteCommID, 0)
	}
	return manager.find(r.RemoteCommID, r.LocalCommID)
}
