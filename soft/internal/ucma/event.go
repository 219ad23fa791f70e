package ucma

import (
	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/attr"
)

// eventType is the type of an [event] (enum rdma_cm_event_type).
type eventType uint32

const (
	addrResolved    eventType = 0
	addrError       eventType = 1
	routeResolved   eventType = 2
	connectRequest  eventType = 4
	connectResponse eventType = 5
	unreachable     eventType = 7
	rejected        eventType = 8
	established     eventType = 9
	disconnected    eventType = 10
	deviceRemoval   eventType = 11
	multicastJoin   eventType = 12
	timewaitExit    eventType = 15
)

// event is an event of an ID (struct rdma_cm_event).
type event struct {
	typ    eventType
	status int
	ece    abi.RdmaUcmEce

	// Of connections and datagram peers:
	param       abi.RdmaUcmConnParam // without private data
	privateData []byte
	qkey        uint32
	av          verbs.AddressVector

	group *group // of multicastJoin
}

// pending is an event that the program has not read yet (struct ucma_event).
type pending struct {
	context *context
	conn    *context // of a connect request
	group   *group
	resp    abi.RdmaUcmEventResp
}

// encode makes the event that the program reads (ucma_create_uevent).
func (c *context) encode(e *event) *pending {
	p := &pending{context: c, group: e.group}
	r := &p.resp
	r.Uid, r.Id = c.uid, c.num
	if e.group != nil {
		r.Uid, r.Id = e.group.uid, e.group.num
	}
	r.Event, r.Status = uint32(e.typ), uint32(int32(e.status))
	r.Ece = e.ece
	if c.id.datagram() {
		ud := r.Param.Ud()
		ud.QpNum, ud.Qkey, ud.AhAttr = e.param.QpNum, e.qkey, attr.AH(&e.av)
		ud.PrivateDataLen = uint8(copy(ud.PrivateData[:], e.privateData))
		return p
	}
	conn := r.Param.Conn()
	*conn = e.param
	conn.PrivateDataLen = uint8(copy(conn.PrivateData[:], e.privateData))
	return p
}

func flag(set bool) uint8 {
	if set {
		return 1
	}
	return 0
}
