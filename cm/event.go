package cm

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/abi"
)

// EventType is what happened to an [ID] (enum rdma_cm_event_type in the
// kernel's rdma/rdma_cm.h; rdma_get_cm_event(3)).
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

func (t EventType) String() string {
	if int(t) < len(eventNames) {
		return eventNames[t]
	}
	return fmt.Sprintf("event %d", uint32(t))
}

// Event is something that happened to an [ID].
type Event struct {
	Type   EventType
	Status int // negative errno, or for Rejected the reason

	// NewID is the connection that a ConnectRequest is about. Whoever takes
	// the event owns it.
	NewID *ID

	// What the peer sent along, of connection events.
	PrivateData        []byte
	ResponderResources uint8
	InitiatorDepth     uint8
	QPNum              uint32
}

func eventOf(r *abi.RdmaUcmEventResp) Event {
	conn := r.Param.Conn()
	e := Event{
		Type:               EventType(r.Event),
		Status:             int(int32(r.Status)),
		ResponderResources: conn.ResponderResources,
		InitiatorDepth:     conn.InitiatorDepth,
		QPNum:              conn.QpNum,
	}
	if n := conn.PrivateDataLen; n > 0 {
		e.PrivateData = append([]byte(nil), conn.PrivateData[:n]...)
	}
	return e
}

// err turns an event that means failure into an error.
func (e *Event) err() error {
	errno := func() error {
		if e.Status < 0 {
			return fmt.Errorf("%v: %w", e.Type, unix.Errno(-e.Status))
		}
		return fmt.Errorf("%v, status %d", e.Type, e.Status)
	}
	switch e.Type {
	case Rejected:
		return &RejectedError{Reason: e.Status, PrivateData: e.PrivateData}
	case Disconnected:
		return ErrDisconnected
	case DeviceRemoval:
		return ErrDeviceRemoved
	case AddrError, RouteError, ConnectError, Unreachable:
		return errno()
	}
	return nil
}
