package ibcm

import (
	"syscall"
	"time"

	"github.com/goverbs/verbs/internal/roce"
)

// Resolution contains the parameters of a request for the datagram QP of a service (struct
// ib_cm_sidr_req_param).
type Resolution struct {
	Path        *Path
	ServiceID   uint64
	Timeout     time.Duration // until the request is repeated
	MaxRetries  uint8
	PrivateData []byte
}

// Resolve sends a SIDR_REQ. Resolved or ResolveFailed follows. It fails with EINVAL
// (ib_send_cm_sidr_req). The RequestID is the ID's communication ID; there is no other, as nothing
// is kept at the peer once it has answered.
func (id *ID) Resolve(r *Resolution) error {
	if len(r.PrivateData) > roce.SIDRREQPrivateData || id.state != Idle {
		return syscall.EINVAL
	}
	a, ok := id.device.pathAV(r.Path)
	if !ok {
		return syscall.EINVAL
	}
	id.av = a
	id.timeout, id.maxRetries = r.Timeout, int(r.MaxRetries)
	id.tid = id.newTID()
	id.state = ResolveSent
	id.sendRepeated(&roce.SIDRREQ{RequestID: id.local, PKey: r.Path.PKey, ServiceID: roce.ServiceID(r.ServiceID), PrivateData: r.PrivateData})
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
		id.Answer(&Answer{Status: roce.SIDRUnsupported})
		return
	}
	id.Handler = l.handler
	id.handle(&Event{Type: ResolveRequested, Resolution: &ReceivedResolution{ServiceID: uint64(r.ServiceID)}, PrivateData: r.PrivateData})
}

// Answer contains the parameters of an answer to a request for a QP (struct
// ib_cm_sidr_rep_param).
type Answer struct {
	Status      roce.SIDRStatus
	QPNum       uint32
	QKey        uint32
	ECE         ECE
	PrivateData []byte
}

// Answer sends a SIDR_REP, once: if it is lost, the peer repeats its request, which is a new one
// here. It fails with EINVAL (ib_send_cm_sidr_rep).
func (id *ID) Answer(a *Answer) error {
	if len(a.PrivateData) > roce.SIDRREPPrivateData || id.state != ResolveRcvd {
		return syscall.EINVAL
	}
	id.state = Idle
	id.removeRequest()
	id.send(&roce.SIDRREP{
		RequestID: id.remote, Status: a.Status, QPN: a.QPNum, VendorID: a.ECE.VendorID & 0xffff, ECEOptions: a.ECE.AttrMod,
		ServiceID: id.service, QKey: a.QKey, PrivateData: a.PrivateData,
	})
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
	id.handle(&Event{Type: Resolved, Answer: &ReceivedAnswer{Status: r.Status, QPNum: r.QPN, QKey: r.QKey}, PrivateData: r.PrivateData})
}
