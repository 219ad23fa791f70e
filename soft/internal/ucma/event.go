package ucma

import (
	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/attr"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/soft/internal/ibcm"
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
	ece    ibcm.ECE

	// Of connections and datagram peers:
	param       connParam
	privateData []byte
	qkey        uint32
	av          verbs.AddressVector

	group *group // of multicastJoin
}

// connParam contains the parameters of one side of a connection (struct rdma_conn_param).
type connParam struct {
	qpNum                              uint32
	responderResources, initiatorDepth uint8
	retryCount, rnrRetryCount          uint8
	flowControl, srq                   bool
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
	r.Ece = abi.RdmaUcmEce{VendorId: e.ece.VendorID, AttrMod: e.ece.AttrMod}
	if c.id.datagram() {
		ud := r.Param.Ud()
		ud.QpNum, ud.Qkey, ud.AhAttr = e.param.qpNum, e.qkey, attr.AH(&e.av)
		ud.PrivateDataLen = uint8(copy(ud.PrivateData[:], e.privateData))
		return p
	}
	conn := r.Param.Conn()
	conn.QpNum = e.param.qpNum
	conn.ResponderResources, conn.InitiatorDepth = e.param.responderResources, e.param.initiatorDepth
	conn.RetryCount, conn.RnrRetryCount = e.param.retryCount, e.param.rnrRetryCount
	conn.FlowControl, conn.Srq = flag(e.param.flowControl), flag(e.param.srq)
	conn.PrivateDataLen = uint8(copy(conn.PrivateData[:], e.privateData))
	return p
}

func flag(set bool) uint8 {
	if set {
		return 1
	}
	return 0
}

// bytes returns the event as the program reads it.
func (p *pending) bytes() []byte { return mmap.Bytes(&p.resp) }
