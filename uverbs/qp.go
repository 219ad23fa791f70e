package uverbs

import (
	"fmt"
	"runtime"
	"slices"
	"weak"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/sys"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/provider"
	"github.com/goverbs/verbs/provider/rxe"
)

// QPType is a transport. Values are the kernel's (enum ib_uverbs_qp_type).
type QPType uint32

const (
	// RC is the reliable connected transport.
	RC QPType = abi.IB_UVERBS_QPT_RC
)

func (t QPType) String() string {
	if t == RC {
		return "RC"
	}
	return fmt.Sprintf("QP type %d", uint32(t))
}

// QP is a queue pair: a send queue and a receive queue. It is made from a
// [PD] and closed before its CQs.
type QP struct {
	pd     *PD
	obj    *object
	num    uint32
	typ    QPType
	handle uint32
	cap    QPCap
	sendCQ *CQ
	recvCQ *CQ

	// The driver's queues, by type and not behind an interface: arguments of
	// an interface's method escape, and posting must not allocate.
	rxeSend *rxe.SendQueue
	rxeRecv *rxe.RecvQueue
}

// QPOptions describe a QP. A zero Type is RC; the CQs may be the same.
type QPOptions struct {
	Type   QPType
	SendCQ *CQ
	RecvCQ *CQ
	// Cap is the least the queues must hold. MaxSendWR and MaxRecvWR are in
	// work requests, MaxInline in bytes.
	Cap QPCap
	// SignalAll makes every send request signaled.
	SignalAll bool
}

// CreateQP makes a queue pair in the RESET state (ibv_create_qp(3)).
func (p *PD) CreateQP(opt QPOptions) (*QP, error) {
	const op = "create QP in"
	if opt.Type == 0 {
		opt.Type = RC
	}
	switch {
	case opt.SendCQ == nil || opt.RecvCQ == nil:
		return nil, p.obj.fail(op, fmt.Errorf("a QP needs a send CQ and a receive CQ: %w", unix.EINVAL))
	case opt.SendCQ.ctx != p.ctx || opt.RecvCQ.ctx != p.ctx:
		return nil, p.obj.fail(op, fmt.Errorf("CQ of another context: %w", unix.EINVAL))
	}
	parents := []*object{p.obj, opt.SendCQ.obj}
	if opt.RecvCQ != opt.SendCQ {
		parents = append(parents, opt.RecvCQ.obj)
	}
	exit, err := enterAll(op, parents...)
	if err != nil {
		return nil, err
	}
	defer exit()

	core, id := p.ctx.contextCore, p.ctx.lastID.Add(1)
	q := &QP{pd: p, typ: opt.Type, sendCQ: opt.SendCQ, recvCQ: opt.RecvCQ}
	made := false
	create := func(uhw provider.UHW) (provider.QPInfo, error) {
		want := abi.IbUverbsQpCap{
			MaxSendWr: opt.Cap.MaxSendWR, MaxRecvWr: opt.Cap.MaxRecvWR,
			MaxSendSge: opt.Cap.MaxSendSGE, MaxRecvSge: opt.Cap.MaxRecvSGE,
			MaxInlineData: opt.Cap.MaxInline,
		}
		var flags uint64
		if opt.SignalAll {
			flags = abi.IB_UVERBS_QP_CREATE_SQ_SIG_ALL
		}
		var got abi.IbUverbsQpCap
		err := core.file.Ioctl(sys.Call{Object: abi.UVERBS_OBJECT_QP, Method: abi.UVERBS_METHOD_QP_CREATE, Attrs: []sys.Attr{
			sys.New(abi.UVERBS_ATTR_CREATE_QP_HANDLE, &q.handle),
			sys.Handle(abi.UVERBS_ATTR_CREATE_QP_PD_HANDLE, p.handle),
			sys.Handle(abi.UVERBS_ATTR_CREATE_QP_SEND_CQ_HANDLE, opt.SendCQ.handle),
			sys.Handle(abi.UVERBS_ATTR_CREATE_QP_RECV_CQ_HANDLE, opt.RecvCQ.handle),
			sys.In(abi.UVERBS_ATTR_CREATE_QP_USER_HANDLE, &id),
			sys.In(abi.UVERBS_ATTR_CREATE_QP_CAP, &want),
			sys.Const(abi.UVERBS_ATTR_CREATE_QP_TYPE, uint64(opt.Type)),
			sys.Const(abi.UVERBS_ATTR_CREATE_QP_FLAGS, flags).If(flags != 0),
			sys.Out(abi.UVERBS_ATTR_CREATE_QP_RESP_CAP, &got),
			sys.Out(abi.UVERBS_ATTR_CREATE_QP_RESP_QP_NUM, &q.num),
			sys.InBytes(abi.UVERBS_ATTR_UHW_IN, uhw.In),
			sys.OutBytes(abi.UVERBS_ATTR_UHW_OUT, uhw.Out),
		}})
		made = err == nil
		q.cap = QPCap{
			MaxSendWR: got.MaxSendWr, MaxRecvWR: got.MaxRecvWr,
			MaxSendSGE: got.MaxSendSge, MaxRecvSGE: got.MaxRecvSge,
			MaxInline: got.MaxInlineData,
		}
		return provider.QPInfo{Handle: q.handle, QPNum: q.num, Cap: q.cap}, err
	}
	send, recv, err := core.driver.CreateQP(core.provider(), provider.QPInit{}, create)
	handle := q.handle
	destroy := func() error {
		var resp abi.IbUverbsDestroyQpResp
		return core.destroy(abi.UVERBS_OBJECT_QP, abi.UVERBS_METHOD_QP_DESTROY,
			abi.UVERBS_ATTR_DESTROY_QP_HANDLE, abi.UVERBS_ATTR_DESTROY_QP_RESP, handle, mmap.Bytes(&resp))
	}
	if err != nil {
		if made {
			destroy()
		}
		return nil, p.obj.fail(op, err)
	}
	q.rxeSend, _ = send.(*rxe.SendQueue)
	q.rxeRecv, _ = recv.(*rxe.RecvQueue)
	q.obj = newObject(p.obj.device, fmt.Sprintf("QP %d", q.num), func() error {
		if err := stopped(destroy, send, recv); err != nil {
			return err
		}
		core.unregister(id)
		return nil
	}, slices.Clip(parents)...)
	core.register(eventTarget{qp: weak.Make(q)}, id)
	runtime.AddCleanup(q, (*object).forget, q.obj)
	return q, nil
}

// Num is the QP's number, which peers address.
func (q *QP) Num() uint32 { return q.num }

// Type is the QP's transport.
func (q *QP) Type() QPType { return q.typ }

// Cap is what the queues hold: at least what was asked for.
func (q *QP) Cap() QPCap { return q.cap }

// PD, SendCQ and RecvCQ are what the QP was made from.
func (q *QP) PD() *PD     { return q.pd }
func (q *QP) SendCQ() *CQ { return q.sendCQ }
func (q *QP) RecvCQ() *CQ { return q.recvCQ }

// PostSend posts send requests in order with one doorbell, the call's only
// system call, and returns how many were posted. If not all, the error is
// [ErrQueueFull], [ErrClosed] or a [*PostError] for the first that was not.
func (q *QP) PostSend(wrs []SendWR) (int, error) { return q.rxeSend.Post(wrs) }

// PostRecv posts receive requests in order, without a system call, and returns
// how many were posted; errors are as for [QP.PostSend].
func (q *QP) PostRecv(wrs []RecvWR) (int, error) { return q.rxeRecv.Post(wrs) }

// Close destroys the QP. Requests that have not completed never will.
func (q *QP) Close() error { return q.obj.close() }
