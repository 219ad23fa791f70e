package ucma

import (
	"syscall"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/attr"
	"github.com/goverbs/verbs/internal/roce"
	"github.com/goverbs/verbs/soft/internal/ibcm"
)

// Parameters of connections (CMA_CM_RESPONSE_TIMEOUT, CMA_MAX_CM_RETRIES).
const (
	responseTime = 20 // until a side answers, 4.096 µs * 2^20
	maxRetries   = 15
)

// connect is CONNECT. Programs that are older than ECE send a structure without it.
func (c *context) connect(cmd *abi.RdmaUcmConnect, _ int) syscall.Errno {
	if cmd.ConnParam.Valid == 0 {
		return syscall.EINVAL
	}
	return c.id.connect(&cmd.ConnParam, cmd.Ece)
}

// connect sends a connection request, or a request for a datagram QP (rdma_connect_ece).
func (i *id) connect(p *abi.RdmaUcmConnParam, ece abi.RdmaUcmEce) syscall.Errno {
	i.ece = ece
	if i.state != routeKnown {
		return syscall.EINVAL
	}
	i.qpNum, i.srq = p.QpNum&0xffffff, p.Srq != 0
	data := roce.CMAHeader{Port: i.src.port, Src: i.src.addr, Dst: i.dst.addr}
	private := append(data.Append(nil), p.PrivateData[:p.PrivateDataLen]...)
	cm := i.device.NewID(handleEvent, i)
	service := roce.ServiceID(i.serviceID(i.dst.port))
	var err error
	if i.datagram() {
		err = cm.Resolve(i.path, time.Millisecond<<(responseTime-8), maxRetries, &roce.SIDRREQ{ServiceID: service, PrivateData: private})
	} else {
		err = cm.Connect(i.path, i.typ, &roce.REQ{
			ServiceID: service, LocalQPN: i.qpNum, StartingPSN: i.psn, VendorID: ece.VendorId, ECEOptions: ece.AttrMod,
			ResponderResources: p.ResponderResources, InitiatorDepth: p.InitiatorDepth, FlowControl: p.FlowControl != 0,
			SRQ: i.srq, RetryCount: min(7, p.RetryCount), RNRRetryCount: min(7, p.RnrRetryCount),
			LocalCMResponseTimeout: responseTime, RemoteCMResponseTimeout: responseTime, MaxCMRetries: maxRetries, PrivateData: private,
		})
	}
	if err != nil {
		cm.Destroy()
		return errnoOf(err)
	}
	i.cm = cm
	i.state = connecting
	return 0
}

func (c *context) accept(cmd *abi.RdmaUcmAccept, _ int) syscall.Errno {
	if cmd.ConnParam.Valid == 0 {
		return c.id.accept(nil, cmd.Ece)
	}
	errno := c.id.accept(&cmd.ConnParam, cmd.Ece)
	if errno == 0 {
		c.uid = cmd.Uid
	}
	return errno
}

// accept accepts a request, or without parameters a reply. If that fails, it rejects
// (rdma_accept_ece).
func (i *id) accept(p *abi.RdmaUcmConnParam, ece abi.RdmaUcmEce) syscall.Errno {
	i.ece = ece
	if i.state != connecting {
		return syscall.EINVAL
	}
	var err error
	switch {
	case p == nil && i.datagram():
		err = i.answer(roce.SIDRSuccess, nil)
	case p == nil:
		err = i.cm.Establish()
	default:
		i.qpNum, i.srq = p.QpNum&0xffffff, p.Srq != 0
		data := p.PrivateData[:p.PrivateDataLen]
		if i.datagram() {
			err = i.answer(roce.SIDRSuccess, data)
			break
		}
		err = i.cm.Accept(&roce.REP{
			LocalQPN: i.qpNum, StartingPSN: i.psn, VendorID: ece.VendorId, ECEOptions: ece.AttrMod,
			ResponderResources: p.ResponderResources, InitiatorDepth: p.InitiatorDepth,
			FlowControl: p.FlowControl != 0, SRQ: i.srq, RNRRetryCount: min(7, p.RnrRetryCount), PrivateData: data,
		})
	}
	if err != nil {
		i.reject(roce.RejConsumerDefined, nil)
	}
	return errnoOf(err)
}

// answer answers a request for a datagram QP (cma_send_sidr_rep).
func (i *id) answer(status roce.SIDRStatus, data []byte) error {
	a := &roce.SIDRREP{Status: status, PrivateData: data}
	if status == roce.SIDRSuccess {
		i.qkey = defaultQKey
		a.QPN, a.QKey, a.VendorID, a.ECEOptions = i.qpNum, i.qkey, i.ece.VendorId, i.ece.AttrMod
	}
	return i.cm.Answer(a)
}

// defaultQKey is the Q_Key of datagrams (RDMA_UDP_QKEY).
const defaultQKey = 0x01234567

func (c *context) reject(in *abi.RdmaUcmReject, _ int) syscall.Errno {
	reason := roce.RejectReason(in.Reason)
	switch reason {
	case 0:
		reason = roce.RejConsumerDefined
	case roce.RejConsumerDefined, roce.RejVendorOption:
	default:
		return syscall.EINVAL
	}
	return errnoOf(c.id.reject(reason, in.PrivateData[:in.PrivateDataLen]))
}

// reject rejects a request or a reply (rdma_reject).
func (i *id) reject(reason roce.RejectReason, data []byte) error {
	switch {
	case i.cm == nil:
		return syscall.EINVAL
	case i.datagram():
		return i.answer(roce.SIDRReject, data)
	}
	return i.cm.Reject(reason, data)
}

// disconnect is DISCONNECT. It does not fail if there is nothing to disconnect
// (rdma_disconnect).
func (c *context) disconnect(*abi.RdmaUcmDisconnect, int) syscall.Errno {
	switch {
	case c.id.cm == nil && len(c.id.listens) == 0:
		return syscall.EINVAL
	case c.id.cm != nil:
		c.id.cm.Disconnect()
	}
	return 0
}

// notify is NOTIFY (rdma_notify).
func (c *context) notify(in *abi.RdmaUcmNotify, _ int) syscall.Errno {
	if c.id.device == nil || c.id.cm == nil || verbs.AsyncEventType(in.Event) != verbs.EventCommEst {
		return syscall.EINVAL
	}
	return errnoOf(c.id.cm.CommEstablished())
}

// handleEvent handles an event of a connection, or of a request for a datagram QP
// (cma_ib_handler, cma_sidr_rep_handler).
func handleEvent(cm *ibcm.ID, e *ibcm.Event) error {
	i := cm.Context.(*id)
	if e.Type == ibcm.TimewaitExit && i.state != wasConnected || e.Type != ibcm.TimewaitExit && i.state != connecting {
		return nil
	}
	ev := &event{privateData: e.PrivateData}
	switch e.Type {
	case ibcm.RequestFailed, ibcm.ReplyFailed, ibcm.ResolveFailed:
		ev.typ, ev.status = unreachable, -int(syscall.ETIMEDOUT)
		if e.Refused {
			ev.status = -int(syscall.ECONNREFUSED)
		}
	case ibcm.ReplyReceived:
		cm.Delay(answerTime)
		r := e.Reply
		ev.typ, ev.ece = connectResponse, abi.RdmaUcmEce{VendorId: r.VendorID, AttrMod: r.ECEOptions}
		ev.param = abi.RdmaUcmConnParam{ // turned around: what the peer serves is what this side may start
			QpNum: r.LocalQPN, ResponderResources: r.InitiatorDepth, InitiatorDepth: r.ResponderResources,
			RnrRetryCount: r.RNRRetryCount, FlowControl: flag(r.FlowControl), Srq: flag(r.SRQ),
		}
	case ibcm.ReadyToUse:
		ev.typ = established
	case ibcm.Rejected:
		ev.typ, ev.status = rejected, int(e.Rejection.Reason)
	case ibcm.DisconnectRequested, ibcm.Disconnected, ibcm.DisconnectFailed:
		i.state = wasConnected
		ev.typ = disconnected
		if e.Type == ibcm.DisconnectFailed {
			ev.status = -int(syscall.ETIMEDOUT)
		}
	case ibcm.TimewaitExit:
		ev.typ = timewaitExit
	case ibcm.Resolved:
		i.resolvedQP(ev, e.Answer)
	default:
		return nil
	}
	return i.handler(i, ev)
}

// resolvedQP completes the event of an answer with the peer's datagram QP.
func (i *id) resolvedQP(ev *event, a *roce.SIDRREP) {
	switch {
	case a.Status != roce.SIDRSuccess:
		ev.typ, ev.status = unreachable, int(a.Status)
		return
	case a.QKey == 0 || i.qkey != 0 && i.qkey != a.QKey:
		ev.typ, ev.status = addrError, -int(syscall.EINVAL)
		return
	}
	i.qkey = a.QKey
	ev.typ = established
	ev.param.QpNum, ev.qkey = a.QPN, a.QKey
	ev.av = i.path.AddressVector(i.sgidIndex())
}

func (c *context) initQPAttr(in *abi.RdmaUcmInitQpAttr, out int) syscall.Errno {
	state := verbs.QPState(in.QpState)
	if state > verbs.StateErr {
		return syscall.EINVAL
	}
	a, mask, err := c.id.qpAttr(state)
	if err != nil {
		return errnoOf(err)
	}
	return respond(in.Response, out, qpAttr(&a, mask))
}

// qpAttr returns the attributes with which the program's QP moves to a state
// (rdma_init_qp_attr).
func (i *id) qpAttr(state verbs.QPState) (attr verbs.QPAttr, mask verbs.QPAttrMask, err error) {
	if i.cm == nil || i.datagram() {
		attr, mask = verbs.QPAttr{State: state, Port: 1}, verbs.MaskState|verbs.MaskPKeyIndex|verbs.MaskPort
		if i.datagram() {
			i.setDefaultQKey()
			attr.QKey = i.qkey
			mask |= verbs.MaskQKey
		} else {
			mask |= verbs.MaskAccess
		}
	} else if attr, mask, err = i.cm.QPAttr(state); err != nil {
		return attr, mask, err
	}
	if state == verbs.StateRTR {
		attr.RQPSN = i.psn
	}
	if mask&verbs.MaskTimeout != 0 && i.ackTimeout.set {
		attr.Timeout = i.ackTimeout.value
	}
	return attr, mask, nil
}

// qpAttr returns attributes in the kernel's form (ib_copy_qp_attr_to_user).
func qpAttr(a *verbs.QPAttr, mask verbs.QPAttrMask) *abi.IbUverbsQpAttr {
	return &abi.IbUverbsQpAttr{
		QpAttrMask: uint32(mask), QpState: uint32(a.State), PathMtu: uint32(a.PathMTU), Qkey: a.QKey, RqPsn: a.RQPSN, SqPsn: a.SQPSN,
		DestQpNum: a.DestQPNum, QpAccessFlags: uint32(a.Access), AhAttr: attr.AH(&a.AV), PkeyIndex: a.PKeyIndex,
		MaxRdAtomic: a.MaxRDAtomic, MaxDestRdAtomic: a.MaxDestRDAtomic, MinRnrTimer: a.MinRNRTimer, PortNum: a.Port,
		Timeout: a.Timeout, RetryCnt: a.RetryCount, RnrRetry: a.RNRRetry,
	}
}
