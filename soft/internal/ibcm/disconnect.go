package ibcm

import (
	"syscall"

	"github.com/goverbs/verbs/internal/roce"
)

// Disconnect ends a connection, or answers the peer's disconnect request (IBA, 12.10.8): it sends a
// DREQ or a DREP. No half of the connection stays open, as after TCP's FIN. After a DREQ,
// Disconnected or DisconnectFailed follows; in the end TimewaitExit. It fails with EINVAL
// (ib_send_cm_dreq, ib_send_cm_drep).
func (id *ID) Disconnect() error {
	switch id.state {
	case Established:
		id.tid = id.newTID()
		id.state = DisconnectSent
		id.device.enqueue(datagram{qp: id.localQP})
		id.sendRepeated(&roce.DREQ{LocalCommID: id.local, RemoteCommID: id.remote, RemoteQPN: id.peerQP})
	case DisconnectRcvd:
		// The answer goes out once. If it is lost, the peer repeats its DREQ, which is answered
		// without an ID.
		id.enterTimewait()
		id.send(&roce.DREP{LocalCommID: id.local, RemoteCommID: id.remote})
	default:
		return syscall.EINVAL
	}
	return nil
}

// handleDREQ handles a disconnect request (cm_dreq_handler). It is answered even for a connection
// that is not known: the peer would repeat it otherwise until it gives up.
func (m *message) handleDREQ(r *roce.DREQ) {
	id := m.device.manager.find(r.RemoteCommID, r.LocalCommID)
	// A late DREQ of an earlier connection with these IDs.
	if id != nil && id.localQP != r.RemoteQPN {
		return
	}
	if id == nil || id.state == Timewait || id.state == Idle { // the connection has ended here, and the answer was lost
		m.answer(&roce.DREP{LocalCommID: r.RemoteCommID, RemoteCommID: r.LocalCommID})
		return
	}
	switch id.state {
	// In ReplySent the RTU was lost, or is behind the DREQ. In DisconnectSent both sides disconnect
	// at once, and each answers the other.
	case ReplySent, MRAReplyRcvd, DisconnectSent, Established:
	default:
		return
	}
	id.cancel()
	id.state = DisconnectRcvd
	id.tid = m.tid
	id.handle(&Event{Type: DisconnectRequested})
}

// handleDREP handles the answer to a disconnect request (cm_drep_handler). After DREQs of both
// sides it may come in DisconnectRcvd.
func (m *Manager) handleDREP(r *roce.DREP) {
	id := m.find(r.RemoteCommID, r.LocalCommID)
	if id == nil || id.state != DisconnectSent && id.state != DisconnectRcvd {
		return
	}
	id.cancel()
	id.enterTimewait()
	id.handle(&Event{Type: Disconnected})
}
