package ibcm

import (
	"syscall"
	"time"

	"github.com/goverbs/verbs/internal/roce"
)

// Resolve asks for the datagram QP of a service with a SIDR_REQ, which it repeats after a timeout.
// Resolved or ResolveFailed follows. It fails with EINVAL (ib_send_cm_sidr_req). Resolve sets the
// RequestID to the ID's communication ID; there is no other, as the peer keeps nothing once it has
// answered.
func (id *ID) Resolve(p *Path, timeout time.Duration, maxRetries int, r *roce.SIDRREQ) error {
	if len(r.PrivateData) > roce.SIDRREQPrivateData || id.state != Idle {
		return syscall.EINVAL
	}
	a, ok := id.device.pathAV(p)
	if !ok {
		return syscall.EINVAL
	}
	id.av = a
	id.timeout, id.maxRetries = timeout, maxRetries
	id.tid = id.newTID()
	id.state = ResolveSent
	r.RequestID, r.PKey = id.local, p.PKey
	id.sendRepeated(r)
	return nil
}

// handleSIDRREQ handles a request for a QP (cm_sidr_req_handler).
func (m *message) handleSIDRREQ(r *roce.SIDRREQ) {
	d := m.device
	id := d.newID()
	id.av, id.tid = m.reply, m.tid
	id.remote, id.service = r.RequestID, r.ServiceID
	if !id.addRequest() {
		return // a repeated request; the first one will be answered, with the same transaction ID
	}
	id.state = ResolveRcvd
	l := d.manager.listeners[serviceKey{d, uint64(r.ServiceID)}]
	if l == nil {
		// There is no REJ for datagrams: the answer has a status.
		id.Answer(&roce.SIDRREP{Status: roce.SIDRUnsupported})
		return
	}
	id.Handler = l.handler
	id.handle(&Event{Type: ResolveRequested, Resolution: r, PrivateData: r.PrivateData})
}

// Answer sends a SIDR_REP, once: if it is lost, the peer repeats its request, which is a new one
// here. It fails with EINVAL (ib_send_cm_sidr_rep). Answer sets the RequestID and the ServiceID.
func (id *ID) Answer(r *roce.SIDRREP) error {
	if len(r.PrivateData) > roce.SIDRREPPrivateData || id.state != ResolveRcvd {
		return syscall.EINVAL
	}
	id.state = Idle
	id.removeRequest()
	r.RequestID, r.ServiceID = id.remote, id.service
	r.VendorID &= 0xffff
	id.send(r)
	return nil
}

func (id *ID) requestKey() requestKey { return requestKey{id.device, id.av.DGID, id.remote} }

// addRequest adds the ID to the requests that wait for their answer. It reports false if
// there is one with the same number from the same address.
func (id *ID) addRequest() bool {
	m, key := id.manager(), id.requestKey()
	if m.requests[key] != nil {
		return false
	}
	m.requests[key], id.inRequests = id, true
	return true
}

func (id *ID) removeRequest() {
	if id.inRequests {
		delete(id.manager().requests, id.requestKey())
		id.inRequests = false
	}
}

// handleSIDRREP handles the answer to a request for a QP (cm_sidr_rep_handler).
func (m *Manager) handleSIDRREP(r *roce.SIDRREP) {
	id := m.find(r.RequestID, 0)
	if id == nil || id.state != ResolveSent {
		return
	}
	id.cancel()
	id.state = Idle
	id.handle(&Event{Type: Resolved, Answer: r, PrivateData: r.PrivateData})
}
