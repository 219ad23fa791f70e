package uverbs

import (
	"fmt"
	"math"
	"sync/atomic"
	"syscall"
	"time"
	"weak"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/bridge"
	"github.com/goverbs/verbs/internal/sys"
	"github.com/goverbs/verbs/provider"
)

// QP is a send queue and a receive queue. It is closed before its CQs, unless [PD.CreateQP] has made
// those.
type QP struct {
	pd     *PD
	obj    *object
	id     uint64        // in the registry
	num    atomic.Uint32 // of a DCT 0 before RTR
	typ    verbs.QPType
	handle uint32
	cap    verbs.QPCap
	sendCQ *CQ
	recvCQ *CQ
	ownCQ  *CQ // made by CreateQP and closed by Close, or nil
	srq    *SRQ
	groups *groups
	state  atomic.Uint32 // of a DCT, a [verbs.QPState]

	onOverrun atomic.Pointer[func(error)] // see [bridge.OnOverrun]

	send provider.SendQueue
	recv provider.RecvQueue // nil if there is an SRQ
}

// QPOptions contains options for [PD.CreateQP].
type QPOptions struct {
	Type verbs.QPType // zero is RC
	// SendCQ and RecvCQ may be the same; a DCI needs no RecvCQ, and a DCT no SendCQ. With neither, the QP
	// gets a CQ and a completion channel of its own, which its Close closes as well. The CQ has room for
	// as many sends and receives as Cap and the SRQ say; QP.Cap may be larger.
	SendCQ, RecvCQ *CQ
	SRQ            *SRQ // that the QP uses; nil if it has a receive queue of its own; a DCT needs one
	// DCKey is the key of a DCT, that initiators have to know, or of the targets of a DCI, unless
	// [verbs.SendArgs] has another one. It keeps out others as a password does; it is sent as it
	// is. Other types have none.
	DCKey     uint64
	Cap       verbs.QPCap // minimum size of the queues, see [verbs.QPCap]
	SignalAll bool        // every send request is signaled
	// SingleThreaded disables the locks of the queues, as a thread domain does
	// (ibv_alloc_td(3)): the program guarantees that calls of the QP's methods, including
	// Modify and Close, do not overlap. If the device is lost, nothing completes the requests:
	// stop waiting for them when the Context reports [verbs.EventDeviceFatal].
	SingleThreaded bool
}

// CreateQP makes a queue pair in the RESET state (ibv_create_qp(3)).
func (p *PD) CreateQP(opt QPOptions) (qp *QP, err error) {
	const op = "create QP in"
	if opt.Type == 0 {
		opt.Type = verbs.RC
	}
	if err := opt.checkDC(); err != nil {
		return nil, p.obj.fail(op, err)
	}
	opt.Cap = p.ctx.limitCap(opt.Cap, verbs.QPCap{}.WithDefaults()).WithDefaults()
	if c := opt.Cap; uint64(max(c.MaxSendWR, c.MaxRecvWR, c.MaxSendSGE, c.MaxRecvSGE, c.MaxInline)) > math.MaxInt32 {
		return nil, p.obj.fail(op, fmt.Errorf("%+v: %w", c, verbs.ErrRange))
	}
	recvs := opt.Cap.MaxRecvWR
	if opt.SRQ != nil {
		if opt.SRQ.pd.ctx != p.ctx {
			return nil, p.obj.fail(op, fmt.Errorf("SRQ of another context: %w", syscall.EINVAL))
		}
		recvs = opt.SRQ.Cap()
		opt.Cap.MaxRecvWR, opt.Cap.MaxRecvSGE = 0, 0
	}
	var own *CQ
	switch {
	case opt.SendCQ == nil && opt.RecvCQ == nil:
		if own, err = get(p.obj, op, func() (*CQ, error) { return p.ctx.createWaitableCQ(max(opt.Cap.MaxSendWR+recvs, 1)) }); err != nil {
			return nil, err
		}
		defer func() {
			if err != nil {
				own.closeWithChannel()
			}
		}()
		opt.SendCQ, opt.RecvCQ = own, own
	case opt.SendCQ == nil || opt.RecvCQ == nil:
		return nil, p.obj.fail(op, fmt.Errorf("a QP needs a send CQ and a receive CQ, or neither to get its own: %w", syscall.EINVAL))
	case opt.SendCQ.ctx != p.ctx || opt.RecvCQ.ctx != p.ctx:
		return nil, p.obj.fail(op, fmt.Errorf("CQ of another context: %w", syscall.EINVAL))
	}
	parents := []*object{p.obj, opt.SendCQ.obj}
	if opt.RecvCQ != opt.SendCQ {
		parents = append(parents, opt.RecvCQ.obj)
	}
	if opt.SRQ != nil {
		parents = append(parents, opt.SRQ.obj)
	}
	if err := enterAll(op, parents); err != nil {
		return nil, err
	}
	defer exitAll(parents)

	core, id, asked := p.ctx.contextCore, p.ctx.lastID.Add(1), opt.Cap // the driver may raise that of init
	q := &QP{pd: p, id: id, typ: opt.Type, sendCQ: opt.SendCQ, recvCQ: opt.RecvCQ, ownCQ: own, srq: opt.SRQ}
	init := &provider.QPInit{
		Type: opt.Type, Cap: opt.Cap, SignalAll: opt.SignalAll, SingleThreaded: opt.SingleThreaded, PD: p.driverPD,
		SendCQ: opt.SendCQ.queue, RecvCQ: opt.RecvCQ.queue, DCKey: opt.DCKey,
	}
	if opt.SRQ != nil {
		init.SRQ = opt.SRQ.queue
	}
	created := false
	send, recv, err := core.driverContext.CreateQP(init, func(uhw provider.UHW) (provider.QPInfo, error) {
		err := q.create(init, id, uhw)
		created = err == nil
		return provider.QPInfo{Handle: q.handle, QPNum: q.Num(), Cap: q.cap}, explainPins(err, uint64(uhw.Pins))
	})
	handle := q.handle
	if err != nil {
		if created {
			core.destroy(kindQP, handle)
		}
		err = explainDC(opt.Type, err)
		attr, c := &core.dev.Attr, asked
		sends, recvs := core.maxSGE()
		return nil, p.obj.failSize(op, err, "MaxQP", attr.MaxQP,
			limit{"MaxSendWR", c.MaxSendWR, attr.MaxQPWR}, limit{"MaxRecvWR", c.MaxRecvWR, attr.MaxQPWR},
			limit{"MaxSendSGE", c.MaxSendSGE, sends}, limit{"MaxRecvSGE", c.MaxRecvSGE, recvs},
			limit{"MaxInline", c.MaxInline, maxInline(core.driverContext)})
	}
	q.send, q.recv = send, recv
	// Not all kernels report the sizes to which they rounded up.
	q.cap.MaxSendWR = send.Cap()
	if recv != nil {
		q.cap.MaxRecvWR = recv.Cap()
	}
	groups := &groups{core: core, qp: handle}
	q.groups = groups
	q.obj = newObject(p.obj.device, nameOfQP(opt.Type, q.Num()), func() error {
		groups.detachAll() // or the kernel refuses to destroy the QP (uverbs_free_qp)
		if err := stopAndDestroy(func() error { return core.destroy(kindQP, handle) }, send, recv); err != nil {
			return err
		}
		core.registry.remove(id)
		return nil
	}, parents...)
	core.register(id, entry{obj: q.obj, qp: weak.Make(q)})
	addCleanup(q, q.obj)
	return q, nil
}

// create makes the kernel's QP with the driver's part.
func (q *QP) create(init *provider.QPInit, id uint64, uhw provider.UHW) error {
	c := init.Cap
	want := abi.IbUverbsQpCap{
		MaxSendWr: uint32(c.MaxSendWR), MaxRecvWr: uint32(c.MaxRecvWR),
		MaxSendSge: uint32(c.MaxSendSGE), MaxRecvSge: uint32(c.MaxRecvSGE),
		MaxInlineData: uint32(c.MaxInline),
	}
	var flags uint64
	if init.SignalAll {
		flags = abi.IB_UVERBS_QP_CREATE_SQ_SIG_ALL
	}
	var srq uint32
	if q.srq != nil {
		srq = q.srq.handle
	}
	var got abi.IbUverbsQpCap
	var num uint32
	err := q.pd.ctx.file.Ioctl(sys.Call{Object: abi.UVERBS_OBJECT_QP, Method: abi.UVERBS_METHOD_QP_CREATE, Attrs: []sys.Attr{
		sys.New(abi.UVERBS_ATTR_CREATE_QP_HANDLE, &q.handle),
		sys.Handle(abi.UVERBS_ATTR_CREATE_QP_PD_HANDLE, q.pd.handle),
		sys.Handle(abi.UVERBS_ATTR_CREATE_QP_SEND_CQ_HANDLE, q.sendCQ.handle),
		sys.Handle(abi.UVERBS_ATTR_CREATE_QP_RECV_CQ_HANDLE, q.recvCQ.handle),
		sys.Handle(abi.UVERBS_ATTR_CREATE_QP_SRQ_HANDLE, srq).If(q.srq != nil),
		sys.In(abi.UVERBS_ATTR_CREATE_QP_USER_HANDLE, &id),
		sys.In(abi.UVERBS_ATTR_CREATE_QP_CAP, &want),
		sys.Const(abi.UVERBS_ATTR_CREATE_QP_TYPE, uint64(kernelType(q.typ))),
		sys.Const(abi.UVERBS_ATTR_CREATE_QP_FLAGS, flags).If(flags != 0),
		sys.FD(abi.UVERBS_ATTR_CREATE_QP_EVENT_FD, q.pd.ctx.async.FD()),
		sys.Out(abi.UVERBS_ATTR_CREATE_QP_RESP_CAP, &got),
		sys.Out(abi.UVERBS_ATTR_CREATE_QP_RESP_QP_NUM, &num),
		sys.InBytes(abi.UVERBS_ATTR_UHW_IN, uhw.In),
		sys.OutBytes(abi.UVERBS_ATTR_UHW_OUT, uhw.Out),
	}})
	q.num.Store(num)
	q.cap = verbs.QPCap{
		MaxSendWR: int(got.MaxSendWr), MaxRecvWR: int(got.MaxRecvWr),
		MaxSendSGE: int(got.MaxSendSge), MaxRecvSGE: int(got.MaxRecvSge),
		MaxInline: int(got.MaxInlineData),
	}
	return err
}

func init() {
	bridge.LimitCap = func(ctx any, asked, defaults verbs.QPCap) verbs.QPCap {
		return ctx.(*Context).limitCap(asked, defaults)
	}
	bridge.HoldSends = func(qp any, t time.Time) {
		if h, ok := qp.(*QP).send.(provider.Holder); ok {
			h.Hold(t)
		}
	}
}

// Num returns the QP number. That of a DCT is 0 before RTR, as the device makes it then.
func (q *QP) Num() uint32 { return q.num.Load() }

// ECE returns the extensions that the QP offers to its peer or, once it is connected, those that
// both have (ibv_query_ece(3)). Devices without extensions, as rxe, siw and soft, have a zero ECE.
func (q *QP) ECE() verbs.ECE {
	if x, ok := q.send.(provider.Extended); ok {
		return x.ECE()
	}
	return verbs.ECE{}
}

// Type returns the QP's transport.
func (q *QP) Type() verbs.QPType { return q.typ }

// Cap returns the size of the queues, at least the requested one.
func (q *QP) Cap() verbs.QPCap { return q.cap }

// PD returns the PD that the QP was made in.
func (q *QP) PD() *PD { return q.pd }

// SendCQ returns the CQ of its sends.
func (q *QP) SendCQ() *CQ { return q.sendCQ }

// RecvCQ returns the CQ of its receives.
func (q *QP) RecvCQ() *CQ { return q.recvCQ }

// SRQ returns the SRQ from which the QP takes receives, or nil.
func (q *QP) SRQ() *SRQ { return q.srq }

// Close destroys the QP, and the CQ that [PD.CreateQP] has made for it. Requests that have not
// completed will never complete. If the kernel refuses, the QP stays, but has left its multicast groups.
func (q *QP) Close() error {
	if q == nil {
		return verbs.ErrClosed
	}
	if err := q.obj.close(); err != nil || q.ownCQ == nil {
		return err
	}
	return q.ownCQ.closeWithChannel()
}
