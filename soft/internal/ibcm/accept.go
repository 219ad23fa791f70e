package ibcm

import (
	"syscall"

	"github.com/goverbs/verbs/internal/roce"
)

// Accept sends a REP, of which it sets what identifies the connection and the device. ReadyToUse,
// Rejected, DisconnectRequested or ReplyFailed follows. It fails with EINVAL (ib_send_cm_rep). The QP
// must be in RTR before, as the peer may send once it has the REP. This side sends after the RTU:
// before, the peer's QP may not receive yet.
func (id *ID) Accept(r *roce.REP) error {
	if len(r.PrivateData) > roce.REPPrivateData || id.state != RequestRcvd && id.state != MRARequestSent {
		return syscall.EINVAL
	}
	id.initiatorDepth, id.responderResources = r.InitiatorDepth, r.ResponderResources
	id.rqPSN, id.localQP = r.StartingPSN&mask24, r.LocalQPN&mask24
	id.state = ReplySent
	r.LocalCommID, r.RemoteCommID = id.local, id.remote
	r.LocalCAGUID, r.TargetACKDelay = id.device.guid, id.device.ackDelay
	id.sendRepeated(r) // until the RTU comes, or the peer's first packet stands for it
	return nil
}

// handleREP handles a reply (cm_rep_handler). The ID does not know the peer's communication ID when
// the first one comes, and does when it is repeated, which tells the two apart.
func (m *message) handleREP(r *roce.REP) {
	manager := m.device.manager
	id := manager.find(r.RemoteCommID, 0)
	if id == nil {
		if id := manager.find(r.RemoteCommID, r.LocalCommID); id != nil {
			id.handleRepeatedREP(m)
		}
		return
	}
	// Too late: the request has failed or has been withdrawn.
	if id.state != RequestSent && id.state != MRARequestRcvd {
		return
	}
	id.peerGUID, id.peerGID, id.remote, id.peerQP = r.LocalCAGUID, m.reply.DGID, r.LocalCommID, r.LocalQPN
	// As in handleREQ, the peer's QP may belong to another known connection.
	if duplicate, stale := id.addRemote(); duplicate != nil || stale != nil {
		// The request goes on to wait: another REP may be right.
		id.remote = 0
		if stale != nil {
			m.answer(&roce.REJ{LocalCommID: r.RemoteCommID, RemoteCommID: r.LocalCommID, Message: roce.AnswersREP, Reason: roce.RejStaleConn})
			stale.disconnectStale()
		}
		return
	}
	id.cancel()
	id.state = ReplyRcvd
	// The peer may have lowered what the REQ asked for; turned around again.
	id.initiatorDepth, id.responderResources = r.ResponderResources, r.InitiatorDepth
	id.sqPSN, id.rnrRetryCount = r.StartingPSN, r.RNRRetryCount
	// Only now is it known how long the peer's device takes to acknowledge.
	id.av.timeout = ackTimeout(r.TargetACKDelay, id.av.timeout-1)
	id.handle(&Event{Type: ReplyReceived, Reply: r, PrivateData: r.PrivateData})
}

// handleRepeatedREP answers a repeated reply: the RTU was lost, which is sent once otherwise, or is
// not sent yet (cm_dup_rep_handler).
func (id *ID) handleRepeatedREP(m *message) {
	switch id.state {
	case Established:
		m.answer(id.rtu())
	case MRAReplySent:
		m.answer(id.mra(roce.AnswersREP))
	}
}

func (id *ID) rtu() *roce.RTU { return &roce.RTU{LocalCommID: id.local, RemoteCommID: id.remote} }

// Establish sends an RTU: the connection is up. The QP must be in RTS before. It fails with EINVAL
// (ib_send_cm_rtu).
func (id *ID) Establish() error {
	if id.state != ReplyRcvd && id.state != MRAReplySent {
		return syscall.EINVAL
	}
	id.state = Established
	id.send(id.rtu())
	return nil
}

// handleRTU handles the confirmation of a reply (cm_rtu_handler). In other states it is late: the
// peer's first packet has stood for it, or the connection is ending.
func (m *Manager) handleRTU(r *roce.RTU) {
	if id := m.find(r.RemoteCommID, r.LocalCommID); id != nil && (id.state == ReplySent || id.state == MRAReplyRcvd) {
		id.establish()
	}
}

func (id *ID) establish() {
	id.cancel()
	id.state = Established
	id.handle(&Event{Type: ReadyToUse})
}

// CommEstablished reports that the peer's first message has arrived before the RTU, and stands for
// it: a peer sends once it has the REP, as an RTU says (IB_EVENT_COMM_EST). It fails with EISCONN
// or EINVAL (cm_establish).
func (id *ID) CommEstablished() error {
	switch id.state {
	case ReplySent, MRAReplyRcvd:
		id.establish()
		return nil
	case Established:
		return syscall.EISCONN
	}
	return syscall.EINVAL
}
