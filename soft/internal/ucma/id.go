package ucma

import (
	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/roce"
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

// id is this side of a connection, or a listener (struct rdma_id_private).
type id struct {
	m       *Manager
	space   uint16 // port space
	typ     verbs.QPType
	state   state
	handler func(*id, *event) error

	route
	options
	connection
	query query

	context *context // of a listener
	listens []deviceListener
}

// route is where an ID is, and where it leads (struct rdma_route).
type route struct {
	src, dst sockaddr
	device   *Device    // nil if the ID is not bound to one
	routable bool       // bound to the device by an address of it
	ports    *bindList  // nil if the ID has no port
	path     *ibcm.Path // nil before the route is resolved
}

// options are set by SET_OPTION.
type options struct {
	tos, ackTimeout option[uint8]
	afOnly          option[bool]
	reuse           bool
}

type option[T any] struct {
	value T
	set   bool
}

// connection is what goes into the messages of the connection manager.
type connection struct {
	cm               *ibcm.ID // nil before connecting
	psn, qkey, qpNum uint32
	srq              bool
	ece              abi.RdmaUcmEce
}

// newID makes an ID (__rdma_create_id).
func (m *Manager) newID(space uint16, typ verbs.QPType) *id {
	return &id{m: m, space: space, typ: typ, connection: connection{psn: roce.Random() & uint32(roce.PSNMask)}}
}

func (i *id) datagram() bool { return i.typ == verbs.UD }

// serviceID returns the service ID of a port in the ID's port space (rdma_get_service_id).
func (i *id) serviceID(port uint16) uint64 { return uint64(i.space)<<16 + uint64(port) }

// release undoes the binding to a device (cma_release_dev).
func (r *route) release() { r.device, r.routable = nil, false }

// sgidIndex returns the index of the GID of the source address.
func (r *route) sgidIndex() int { return max(r.device.transport.GIDIndex(r.src.addr), 0) }

// destroy ends the ID: it ends a connection and stops listening (rdma_destroy_id).
func (i *id) destroy() {
	i.state = destroying
	i.query.cancel()
	i.stopListening()
	if i.cm != nil {
		i.cm.Destroy()
		i.cm = nil
	}
	i.release()
	i.releasePort()
}
