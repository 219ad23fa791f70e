package ibcm

import (
	"syscall"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/attr"
	"github.com/goverbs/verbs/internal/roce"
)

// Connect sends a REQ for a QP of type RC or UC along a path. It sets what the path, the type and the
// device determine. ReplyReceived, Rejected or RequestFailed follows. It fails with EINVAL
// (ib_send_cm_req). The QP must be in INIT, so that it can have receives before the peer sends (IBA,
// 12.9.7.1).
func (id *ID) Connect(p *Path, typ verbs.QPType, r *roce.REQ) error {
	if typ != verbs.RC && typ != verbs.UC || len(r.PrivateData) > roce.REQPrivateData || id.state != Idle {
		return syscall.EINVAL
	}
	a, ok := id.device.pathAV(p)
	if !ok {
		return syscall.EINVAL
	}
	id.av = a
	// There and back, and the time that the peer's manager takes to answer.
	id.timeout = 2*duration(p.Lifetime) + duration(r.RemoteCMResponseTimeout)
	id.maxRetries = int(r.MaxCMRetries)
	id.initiatorDepth, id.responderResources = r.InitiatorDepth, r.ResponderResources
	id.retryCount = r.RetryCount
	id.mtu, id.qpType = p.MTU, typ
	// This side asks for the first PSN that its responder expects; REP has the other direction's.
	id.localQP, id.rqPSN = r.LocalQPN&mask24, r.StartingPSN&mask24
	id.tid = id.newTID()
	id.state = RequestSent
	id.complete(r, p)
	id.sendRepeated(r)
	return nil
}

const mask24 = 1<<24 - 1

// newTID returns the transaction ID of a message that begins a transaction (cm_form_tid). The
// answer has the same.
func (id *ID) newTID() uint64 { return uint64(id.manager().tidHigh)<<32 | uint64(id.local) }

// permissiveLID is the LID in paths that have none (IB_LID_PERMISSIVE). LIDs are addresses within
// an InfiniBand subnet; on RoCE receivers ignore them (CA17-34).
const permissiveLID = 0xffff

// complete sets the fields of a REQ that follow from the path and the device (cm_format_req).
func (id *ID) complete(r *roce.REQ, p *Path) {
	r.LocalCommID, r.LocalCAGUID, r.PKey, r.PathMTU = id.local, id.device.guid, p.PKey, uint8(p.MTU)
	r.Primary = roce.CMPath{
		LocalGID: p.SGID, RemoteGID: p.DGID, FlowLabel: p.FlowLabel, PacketRate: p.Rate, TrafficClass: p.TrafficClass,
		HopLimit: p.HopLimit, SL: p.SL, SubnetLocal: p.HopLimit <= 1, LocalACKTimeout: ackTimeout(id.device.ackDelay, p.Lifetime),
	}
	if !r.Primary.SubnetLocal {
		// The hop limit tells whether routers are in between. On InfiniBand the receiver would take
		// the LIDs from the datagram then (cm_process_routed_req).
		r.Primary.LocalLID, r.Primary.RemoteLID = permissiveLID, permissiveLID
	}
	if id.qpType == verbs.UC {
		r.Transport = roce.CMTransportUC
	}
}

// handleREQ handles a connection request (cm_req_handler, cm_match_req): it is one that is
// repeated, one of a QP that has another connection here, one that nobody waits for, or new.
func (m *message) handleREQ(r *roce.REQ) {
	d := m.device
	if r.Primary.LocalGID != m.reply.DGID {
		// The path leads to another host than the sender: the reply, which is repeated, would go
		// there, and so would the connection's data. ib_cm believes it.
		gid, _ := d.transport.GID(0)
		m.answer(&roce.REJ{RemoteCommID: r.LocalCommID, Message: roce.AnswersREQ, Reason: roce.RejInvalidGID, Info: gid[:]})
		return
	}
	id := d.newID()
	id.av, id.tid = m.reply, m.tid
	id.remote = r.LocalCommID
	// The peer's LocalCMResponseTimeout is within which it will answer the REP.
	id.timeout, id.maxRetries = repeatTime(r.LocalCMResponseTimeout), int(r.MaxCMRetries)
	id.peerGUID, id.peerGID, id.peerQP = r.LocalCAGUID, m.reply.DGID, r.LocalQPN
	// The peer's view of the connection, turned around.
	id.initiatorDepth, id.responderResources = r.ResponderResources, r.InitiatorDepth
	id.mtu, id.sqPSN = verbs.MTU(r.PathMTU), r.StartingPSN
	id.retryCount, id.rnrRetryCount = r.RetryCount, r.RNRRetryCount
	id.qpType = qpType(r)
	id.state = RequestRcvd

	switch duplicate, stale := id.addRemote(); {
	// The connection that is known has been told already, or will be; this ID was only made to
	// look.
	case duplicate != nil:
		duplicate.handleRepeatedREQ(m)
		return
	// The peer cannot mean to have two connections with one QP. Neither is right for sure, so both
	// end: the request is rejected, the old connection is disconnected, and the peer connects again
	// when it likes to.
	case stale != nil:
		m.rejectREQ(r, roce.RejStaleConn)
		stale.disconnectStale()
		return
	}
	l := d.manager.listeners[serviceKey{d, uint64(r.ServiceID)}]
	// As TCP's RST: nobody listens. It is safe to reject: the peer learns at once what it would
	// else wait for.
	if l == nil {
		id.removeRemote()
		m.rejectREQ(r, roce.RejInvalidServiceID)
		return
	}

	path := requestPath(r)
	a, ok := d.pathAV(path)
	if !ok {
		gid, _ := d.transport.GID(0)
		// The path does not end at this device. The REJ tells a GID that would (IBA, 12.6.7.2).
		id.reject(roce.RejInvalidGID, gid[:], nil)
		return
	}
	// Several entries of the GID table may have the address: the reply leaves by the one that the
	// request came to.
	a.SGIDIndex = uint8(m.from.GIDIndex)
	id.av = a
	if r.Alternate.LocalLID != 0 { // cm_req_has_alt_path; RoCE has no alternate paths
		id.reject(roce.RejInvalidAltGID, path.SGID[:], nil)
		return
	}
	id.Handler = l.handler
	d.manager.ids[id.local] = id
	id.handle(&Event{Type: RequestReceived, Request: r, Path: path, QPType: id.qpType, PrivateData: r.PrivateData})
}

// repeatTime returns the time until a reply is repeated. The peer chooses it, within limits: its
// shortest time is 4 µs, and its longest 2.4 hours, so a peer could make this side flood it, or
// keep a connection in setup for a day. rdma_cm asks for 4 s.
func repeatTime(t uint8) time.Duration { return min(max(duration(t), minRepeatTime), maxRepeatTime) }

const (
	minRepeatTime = 50 * time.Millisecond
	maxRepeatTime = 8 * time.Second
)

// rejectREQ rejects a request for which there is no ID (cm_issue_rej).
func (m *message) rejectREQ(r *roce.REQ, reason roce.RejectReason) {
	m.answer(&roce.REJ{RemoteCommID: r.LocalCommID, Message: roce.AnswersREQ, Reason: reason})
}

// handleRepeatedREQ answers a repeated request (cm_dup_req_handler): one whose program needs long
// gets an MRA, once the peer has shown that it is impatient. In other states the reply or the
// rejection is, or has been, sent, and the reply is repeated by its own timer.
func (id *ID) handleRepeatedREQ(m *message) {
	if id.state == MRARequestSent {
		m.answer(id.mra(roce.AnswersREQ))
	}
}

// disconnectStale disconnects a connection whose peer has made another one with the same QP.
func (id *ID) disconnectStale() {
	if id.state == Established {
		id.Disconnect()
	}
}

// qpType returns the QP type that a request asks for, or 0 if it is none of RC and UC.
func qpType(r *roce.REQ) verbs.QPType {
	switch r.Transport {
	case roce.CMTransportRC:
		return verbs.RC
	case roce.CMTransportUC:
		return verbs.UC
	}
	return 0
}

// requestPath returns the path of a request, from the receiver's point of view
// (cm_format_paths_from_req): local is remote, and the lifetime is found from the ACK timeout,
// which is about twice as long.
func requestPath(r *roce.REQ) *Path {
	p := &r.Primary
	path := &Path{
		ServiceID: uint64(r.ServiceID), DGID: p.LocalGID, SGID: p.RemoteGID, SLID: p.RemoteLID,
		FlowLabel: p.FlowLabel, HopLimit: 255, TrafficClass: p.TrafficClass, Reversible: true,
		PKey: r.PKey, SL: p.SL, MTUSelector: SelectEqual, MTU: verbs.MTU(r.PathMTU),
		RateSelector: SelectEqual, Rate: p.PacketRate, LifetimeSelector: SelectEqual, Lifetime: p.LocalACKTimeout,
	}
	if path.Lifetime > 0 {
		path.Lifetime--
	}
	return path
}

// Path is a path to a peer (struct sa_path_rec).
type Path = attr.Path

// SelectEqual is the selector of an exact value in a path (IB_SA_EQ).
const SelectEqual = 2

// av is the address vector of an ID (struct cm_av).
type av struct {
	verbs.AddressVector
	timeout uint8 // local ACK timeout, 4.096 µs * 2^timeout
}

// pathAV returns the address vector of a path. It reports false if the path does not begin
// at an address of the device, or joins addresses of two families (cm_init_av_by_path).
func (d *Device) pathAV(p *Path) (av, bool) {
	i := d.transport.GIDIndex(p.SGID.Addr())
	if i < 0 || p.SGID.Addr().Is4() != p.DGID.Addr().Is4() {
		return av{}, false
	}
	// There and back takes twice the lifetime, which one more in the exponent is.
	return av{p.AddressVector(i), p.Lifetime + 1}, true
}
