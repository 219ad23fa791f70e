package cm

import (
	"fmt"
	"syscall"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/attr"
)

// EventType is the type of an [Event] (enum rdma_cm_event_type in the kernel's
// rdma/rdma_cm.h; rdma_get_cm_event(3)).
type EventType uint32

const (
	AddrResolved EventType = iota
	AddrError
	RouteResolved
	RouteError
	ConnectRequest
	ConnectResponse
	ConnectError
	Unreachable
	Rejected
	Established
	Disconnected
	DeviceRemoval
	MulticastJoin
	MulticastError
	AddrChange
	TimewaitExit
)

var eventNames = [...]string{
	"address resolved", "address error", "route resolved", "route error",
	"connect request", "connect response", "connect error", "unreachable",
	"rejected", "established", "disconnected", "device removal",
	"multicast join", "multicast error", "address change", "timewait exit",
}

// ends reports whether the connection is over after such an event.
func (t EventType) ends() bool {
	return t == Disconnected || t == DeviceRemoval || t == Rejected || t == Unreachable || t == ConnectError
}

func (t EventType) String() string {
	if int(t) < len(eventNames) {
		return eventNames[t]
	}
	return fmt.Sprintf("event %d", uint32(t))
}

// Event is an event of an [ID] on a [Channel].
type Event struct {
	Type   EventType
	Status int // negative errno; for Rejected the reason, for Unreachable of datagrams perhaps the status of the answer

	ID       *ID
	Endpoint *Endpoint // of the ID, if the channel has made one
	NewID    *ID       // for the connection of a ConnectRequest; the receiver of the event must close it

	ConnParam                     // of the peer; in events of datagrams QPNum and QKey of the peer or group
	AV        verbs.AddressVector // of the peer or group, in events of datagrams
}

func decodeEvent(r *abi.RdmaUcmEventResp, datagram bool) Event {
	e := Event{Type: EventType(r.Event), Status: int(int32(r.Status))}
	p := &e.ConnParam
	p.ECE = verbs.ECE{VendorID: r.Ece.VendorId, Options: r.Ece.AttrMod}
	if datagram {
		ud := r.Param.Ud()
		p.QPNum, p.QKey, e.AV = ud.QpNum, ud.Qkey, attr.OfAH(&ud.AhAttr)
		p.PrivateData = append([]byte(nil), ud.PrivateData[:ud.PrivateDataLen]...) // nil if there is none
		return e
	}
	conn := r.Param.Conn()
	p.ResponderResources, p.InitiatorDepth, p.QPNum = conn.ResponderResources, conn.InitiatorDepth, conn.QpNum
	p.FlowControl, p.RetryCount, p.RNRRetryCount, p.SRQ = conn.FlowControl != 0, conn.RetryCount, conn.RnrRetryCount, conn.Srq != 0
	p.PrivateData = append([]byte(nil), conn.PrivateData[:conn.PrivateDataLen]...)
	return e
}

// sidrReasons has the reasons of rejections by the status with which a request for datagrams ends
// (ib_cm_sidr_status in include/rdma/ib_cm.h).
var sidrReasons = map[int]int{1: rejectInvalidServiceID, 2: rejectConsumer}

// Err returns an error if the event means failure or the end of a connection, and nil otherwise.
func (e *Event) Err() error {
	switch e.Type {
	case Rejected:
		return &RejectedError{Reason: e.Status, PrivateData: e.PrivateData}
	case Disconnected:
		return verbs.ErrDisconnected
	case DeviceRemoval:
		return verbs.ErrDeviceRemoved
	case AddrError, RouteError, ConnectError, Unreachable, MulticastError:
	default:
		return nil
	}
	if reason, ok := sidrReasons[e.Status]; ok && e.Type == Unreachable { // of datagrams: the others have a negative status
		return &RejectedError{Reason: reason, PrivateData: e.PrivateData}
	}
	switch status := syscall.Errno(-e.Status); {
	case e.Status >= 0:
		return fmt.Errorf("%v, status %d", e.Type, e.Status)
	case e.Type == ConnectError && status == syscall.EINVAL: // siw and erdma report this (siw_proc_mpareply, erdma_proc_mpareply)
		return fmt.Errorf("%v: %w: %w", e.Type, ErrMPA, status)
	case e.Type == Unreachable && status == syscall.ECONNREFUSED: // only devices in user space report this
		return fmt.Errorf("%w: the host has no RoCE device (nothing receives at its UDP port for RoCE)", status)
	default:
		return fmt.Errorf("%v: %w", e.Type, translateErrno(status))
	}
}
