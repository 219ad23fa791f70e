package ucma

import (
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/soft/internal/ibcm"
)

// state is the state of an [id] (enum rdma_cm_state).
type state uint8

const (
	idle state = iota
	addrQuery
	addrKnown // the address is resolved
	routeKnown
	connecting // or connected
	wasConnected
	bound
	listening
	removed    // with its device
	destroying // or destroyed
)

// id is one end of a connection, or a listener (struct rdma_id_private).
type id struct {
	m       *Manager
	space   uint16 // port space
	typ     verbs.QPType
	state   state
	handler func(*id, *event) error
	context *context // of a listener

	src, dst sockaddr
	device   *Device    // nil if the ID is not bound to one
	routable bool       // bound to the device by an address of it
	ports    *bindList  // nil if the ID has no port
	path     *ibcm.Path // nil before the route is resolved
	cm       *ibcm.ID   // nil before connecting
	listens  []deviceListener

	psn, qkey, qpNum uint32
	srq              bool
	ece              ibcm.ECE

	tos, ackTimeout       uint8
	tosSet, ackTimeoutSet bool
	reuse                 bool
	afOnly, afOnlySet     bool

	queries int         // number of address resolutions so far
	waiting *time.Timer // of an address resolution that will fail; nil if there is none
}

// newID makes an ID (__rdma_create_id).
func (m *Manager) newID(space uint16, typ verbs.QPType) *id {
	return &id{m: m, space: space, typ: typ, psn: randomPSN()}
}

// datagram reports whether the ID is for datagrams.
func (i *id) datagram() bool { return i.typ == verbs.UD }

// serviceID returns the service ID of an address in the ID's port space
// (rdma_get_service_id).
func (i *id) serviceID(a *sockaddr) uint64 {
	if a.family == afIB {
		return a.sid
	}
	return uint64(i.space)<<16 + uint64(a.port)
}

// release undoes the binding to a device (cma_release_dev).
func (i *id) release() { i.device, i.routable = nil, false }

// sgidIndex returns the index of the GID of the ID's address.
func (i *id) sgidIndex() int { return max(i.device.transport.GIDIndex(i.src.addr), 0) }

// destroy ends the ID: it ends a connection and stops listening (rdma_destroy_id).
func (i *id) destroy() {
	i.state = destroying
	i.cancelQuery()
	i.stopListening()
	if i.cm != nil {
		i.cm.Destroy()
		i.cm = nil
	}
	i.release()
	i.releasePort()
}
