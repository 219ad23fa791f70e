package ibcm

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/roce"
)

// Handler handles an event of an ID. If it fails, the ID is destroyed, which rejects a
// connection request; with [ErrNoRoom] the request is dropped without an answer, so that the
// peer tries again. The handler must not destroy the ID itself.
type Handler func(id *ID, e *Event) error

// ErrNoRoom is returned by a handler that has no room for a connection request now.
var ErrNoRoom = errors.New("no room for a connection request")

// ID is this side of a connection, or of the resolution of a service ID (struct ib_cm_id).
type ID struct {
	// Context is for the owner.
	Context any
	// Handler is called with the ID's events.
	Handler Handler

	device *Device
	state  State

	local, remote uint32         // communication IDs: of this side, and of the peer, 0 until it is known
	service       roce.ServiceID // of a received SIDR_REQ
	tid           uint64         // of the message being answered, which the answer repeats, or of the last one sent
	av            av

	params
	peerKeys
	repetition

	timewait *time.Timer // nil before Timewait
}

// params are what the two sides agree on, for their QPs. The number of READs and atomics that one
// side starts is what the other serves: what is initiatorDepth on one is responderResources on the
// other, so the two are exchanged whenever a message is received.
type params struct {
	mtu                                verbs.MTU
	qpType                             verbs.QPType
	localQP, peerQP                    uint32
	sqPSN, rqPSN                       uint32
	responderResources, initiatorDepth uint8
	retryCount, rnrRetryCount          uint8
}

// peerKeys are the keys of a connection in the manager's tables.
type peerKeys struct {
	peerGUID   uint64
	peerGID    verbs.GID
	inRemote   bool // in the manager's remoteIDs and remoteQPs
	inRequests bool // in the manager's requests
}

// repetition is how a message is repeated until it is answered.
type repetition struct {
	timeout        time.Duration // until it is
	maxRetries     int
	serviceTimeout uint8    // of the MRA sent
	pending        *pending // nil if none is
}

// NewID makes an ID for the active side. Destroy releases it.
func (d *Device) NewID(h Handler, context any) *ID {
	id := d.newID()
	id.Handler, id.Context = h, context
	d.manager.ids[id.local] = id
	return id
}

func (d *Device) newID() *ID { return &ID{device: d, local: d.manager.newLocalID()} }

// State returns the state.
func (id *ID) State() State { return id.state }

// PeerAddr returns the address that the peer's first message came from.
func (id *ID) PeerAddr() netip.Addr { return id.av.DGID.Addr() }

func (id *ID) manager() *Manager { return id.device.manager }

// find returns the ID with a local communication ID, if the peer's communication ID is remote
// (cm_acquire_id). Both must fit, so that a message of a connection that has ended does not reach
// another with its ID. remote is 0 for what answers a REQ: the peer's is not known before the
// answer.
func (m *Manager) find(local, remote uint32) *ID {
	if id := m.ids[local]; id != nil && id.remote == remote {
		return id
	}
	return nil
}

// Destroy ends the ID: a connection is disconnected, a request is rejected (cm_destroy_id). The
// peer is told once; nothing is left that would repeat it.
func (id *ID) Destroy() { id.destroy(nil) }

func (id *ID) destroy(why error) {
	switch id.state {
	case ResolveRcvd:
		id.Answer(&roce.SIDRREP{Status: roce.SIDRReject})
	// The peer may have made its part of the connection already, and its REP be on the way. It
	// knows this side's communication ID only from the REQ, so the REJ names the device as well:
	// see findRejected.
	case RequestSent, MRARequestRcvd:
		id.reject(roce.RejTimeout, binary.BigEndian.AppendUint64(nil, id.device.guid), nil)
	case RequestRcvd:
		// Without an answer the peer repeats its REQ, and may find room then.
		if why == ErrNoRoom {
			id.device.noRoom++
			break
		}
		id.reject(roce.RejConsumerDefined, nil, nil)
	case ReplySent, MRAReplyRcvd, MRARequestSent, ReplyRcvd, MRAReplySent:
		id.reject(roce.RejConsumerDefined, nil, nil)
	case Established, DisconnectRcvd:
		id.Disconnect()
	}
	// Messages that Disconnect would have repeated go out once: cancel stops their timer. A peer
	// that misses them finds out when its QP's retries are used up.
	id.state = Idle
	id.cancel()
	id.removeRemote()
	id.removeRequest()
	if id.timewait != nil {
		id.timewait.Stop()
	}
	if m := id.manager(); m.ids[id.local] == id {
		delete(m.ids, id.local)
	}
	id.Handler = nil
}

// handle calls the handler with an event. If that fails, it destroys the ID.
func (id *ID) handle(e *Event) {
	if err := id.Handler(id, e); err != nil {
		id.destroy(err)
	}
}

// addRemote adds the connection to the tables of the peers' communication IDs and QPs. It returns
// the connections that are there already, in which case it adds nothing. The same communication ID
// is the same message, which has been repeated (duplicate). Another communication ID with the same
// QP is a new connection of a QP that this side believes connected: the peer has ended that one,
// and its DREQ was lost, or it has started again (stale).
func (id *ID) addRemote() (duplicate, stale *ID) {
	m := id.manager()
	byID, byQP := id.remoteKeys()
	if other := m.remoteIDs[byID]; other != nil {
		return other, nil
	}
	if other := m.remoteQPs[byQP]; other != nil {
		return nil, other
	}
	m.remoteIDs[byID], m.remoteQPs[byQP] = id, id
	id.inRemote = true
	return nil, nil
}

func (id *ID) remoteKeys() (byID, byQP remoteKey) {
	return remoteKey{id.peerGUID, id.peerGID, id.remote}, remoteKey{id.peerGUID, id.peerGID, id.peerQP}
}

// removeRemote undoes addRemote (cm_remove_remote).
func (id *ID) removeRemote() {
	if !id.inRemote {
		return
	}
	id.inRemote = false
	m := id.manager()
	byID, byQP := id.remoteKeys()
	delete(m.remoteIDs, byID)
	delete(m.remoteQPs, byQP)
}

// resetToIdle ends a connection that was not established (cm_reset_to_idle). Its QP has not sent
// anything, so there is no timewait.
func (id *ID) resetToIdle() {
	id.state = Idle
	id.removeRemote()
}

// enterTimewait ends a connection whose packets may still be in the network (cm_enter_timewait). As
// with TCP's TIME-WAIT, the QP must not be used for another connection until they are gone, and the
// owner is told then (TimewaitExit). It takes a local ACK timeout, the most for a packet and its
// answer.
func (id *ID) enterTimewait() {
	id.removeRemote()
	id.state = Timewait
	id.timewait = time.AfterFunc(duration(id.av.timeout), func() {
		m := id.manager()
		m.Lock()
		defer m.Unlock()
		if id.state == Timewait {
			id.state = Idle
			id.handle(&Event{Type: TimewaitExit})
		}
	})
}

// pending is a message that is sent again until it is answered, at a fixed interval: unlike TCP,
// the sender of a REQ tells both sides' intervals and counts. Its timer is only valid in the state
// that the message led to.
type pending struct {
	id      *ID
	message roce.CMMessage
	tid     uint64
	to      verbs.AddressVector
	retries int // left
	timeout time.Duration
	due     time.Time
	timer   *time.Timer
}

// send sends a message once, to where the connection's messages go.
func (id *ID) send(m roce.CMMessage) { id.device.send(&id.av.AddressVector, id.tid, m) }

// sendRepeated sends a message again and again until cancel (ib_send_mad with a timeout).
func (id *ID) sendRepeated(m roce.CMMessage) {
	id.cancel()
	p := &pending{id: id, message: m, tid: id.tid, to: id.av.AddressVector, retries: id.maxRetries, timeout: id.timeout}
	id.pending = p
	id.device.send(&p.to, p.tid, m)
	p.due = time.Now().Add(p.timeout)
	p.timer = time.AfterFunc(p.timeout, p.expire)
}

func (id *ID) cancel() {
	if id.pending != nil {
		id.pending.timer.Stop()
		id.pending = nil
	}
}

// extend sets the time until the message is sent again (ib_modify_mad), also of later repetitions.
func (p *pending) extend(timeout time.Duration) {
	p.timeout = timeout
	p.restart()
}

func (p *pending) restart() {
	p.due = time.Now().Add(p.timeout)
	p.timer.Reset(p.timeout)
}

// expire sends the message again, or reports that it was not answered
// (cm_process_send_error).
func (p *pending) expire() {
	m := p.id.manager()
	m.Lock()
	defer m.Unlock()
	id := p.id
	if id.pending != p || time.Now().Before(p.due) { // canceled or extended while the timer waited for the lock
		return
	}
	// The peer may have got the message and be slow: it knows a repeated one by its numbers, and
	// the same transaction ID.
	if p.retries > 0 {
		p.retries--
		id.device.send(&p.to, p.tid, p.message)
		p.restart()
		return
	}
	id.pending = nil
	var failed EventType
	switch id.state {
	case RequestSent, MRARequestRcvd:
		// The peer has not answered, and may not exist. If it does and its REP is late, it gets no
		// RTU, and gives up as well.
		id.resetToIdle()
		failed = RequestFailed
	case ReplySent, MRAReplyRcvd:
		id.resetToIdle()
		failed = ReplyFailed
	case DisconnectSent:
		id.enterTimewait()
		// The peer may be gone. The connection ends here without it; timewait covers its late
		// packets.
		failed = DisconnectFailed
	case ResolveSent:
		id.state = Idle
		failed = ResolveFailed
	default:
		return
	}
	id.handle(&Event{Type: failed})
}

// State is the state of an [ID] (enum ib_cm_state; IBA, 12.9.7). The package documentation has the
// transitions.
type State uint8

const (
	Idle State = iota
	RequestSent
	RequestRcvd
	MRARequestSent
	MRARequestRcvd
	ReplySent
	ReplyRcvd
	MRAReplySent
	MRAReplyRcvd
	Established
	DisconnectSent
	DisconnectRcvd
	Timewait
	ResolveSent
	ResolveRcvd
)

var stateNames = [...]string{
	"idle", "REQ sent", "REQ received", "MRA for REQ sent", "MRA for REQ received",
	"REP sent", "REP received", "MRA for REP sent", "MRA for REP received", "established",
	"DREQ sent", "DREQ received", "timewait", "SIDR_REQ sent", "SIDR_REQ received",
}

func (s State) String() string { return stateNames[s] }
