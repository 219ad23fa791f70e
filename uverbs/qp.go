package uverbs

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"weak"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/sys"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/provider"
)

// QP is a queue pair: a send queue and a receive queue. It is made from a
// [PD] and closed before its CQs.
type QP struct {
	pd     *PD
	life   *qpLife
	obj    *object
	num    uint32
	typ    verbs.QPType
	handle uint32
	cap    verbs.QPCap
	sendCQ *CQ
	recvCQ *CQ
	srq    *SRQ

	send sendQueue
	recv recvQueue // of no queue if there is an SRQ
}

// QPOptions describe a QP. A zero Type is RC; the CQs may be the same.
type QPOptions struct {
	Type   verbs.QPType
	SendCQ *CQ
	RecvCQ *CQ
	// SRQ, if set, is where the QP takes its receives from.
	SRQ *SRQ
	// Cap is the least that the queues must hold. Fields that are zero have defaults,
	// see [verbs.QPCap.WithDefaults].
	Cap verbs.QPCap
	// SignalAll makes every send request signaled.
	SignalAll bool
	// SingleThreaded leaves out the locks of the queues, as a thread domain does
	// (ibv_alloc_td(3)): the program promises that no two calls of the QP's methods,
	// Modify and Close among them, overlap. The race detector reports calls that are
	// not in order.
	SingleThreaded bool
}

// CreateQP makes a queue pair in the RESET state (ibv_create_qp(3)).
func (p *PD) CreateQP(opt QPOptions) (*QP, error) {
	const op = "create QP in"
	if opt.Type == 0 {
		opt.Type = verbs.RC
	}
	switch {
	case opt.SendCQ == nil || opt.RecvCQ == nil:
		return nil, p.obj.fail(op, fmt.Errorf("a QP needs a send CQ and a receive CQ: %w", unix.EINVAL))
	case opt.SendCQ.ctx != p.ctx || opt.RecvCQ.ctx != p.ctx:
		return nil, p.obj.fail(op, fmt.Errorf("CQ of another context: %w", unix.EINVAL))
	}
	opt.Cap = opt.Cap.WithDefaults()
	if c := opt.Cap; uint64(max(c.MaxSendWR, c.MaxRecvWR, c.MaxSendSGE, c.MaxRecvSGE, c.MaxInline)) > math.MaxInt32 {
		return nil, p.obj.fail(op, fmt.Errorf("%+v: %w", c, verbs.ErrRange))
	}
	life := new(qpLife)
	parents := append(life.room[:0], p.obj, opt.SendCQ.obj)
	if opt.RecvCQ != opt.SendCQ {
		parents = append(parents, opt.RecvCQ.obj)
	}
	if opt.SRQ != nil {
		if opt.SRQ.pd.ctx != p.ctx {
			return nil, p.obj.fail(op, fmt.Errorf("SRQ of another context: %w", unix.EINVAL))
		}
		parents = append(parents, opt.SRQ.obj)
		opt.Cap.MaxRecvWR, opt.Cap.MaxRecvSGE = 0, 0
	}
	if err := enterAll(op, parents); err != nil {
		return nil, err
	}
	defer exitAll(parents)

	core := p.ctx.contextCore
	q := &QP{pd: p, typ: opt.Type, sendCQ: opt.SendCQ, recvCQ: opt.RecvCQ, srq: opt.SRQ}
	m := &qpMaker{QP: q, id: core.lastID.Add(1), init: provider.QPInit{
		Type: opt.Type, Cap: opt.Cap, SignalAll: opt.SignalAll, SingleThreaded: opt.SingleThreaded, PD: p.part,
		SendCQ: opt.SendCQ.queue.CompletionQueue, RecvCQ: opt.RecvCQ.queue.CompletionQueue,
	}}
	if opt.SRQ != nil {
		m.init.SRQ = opt.SRQ.queue.RecvQueue
	}
	send, recv, err := core.part.CreateQP(&m.init, m.make)
	id, handle := m.id, q.handle
	if err != nil {
		if m.made {
			core.destroyQP(handle)
		}
		return nil, p.obj.fail(op, err)
	}
	q.send, q.recv = newSendQueue(send), newRecvQueue(recv)
	// Kernels do not all say what they rounded the sizes up to.
	q.cap.MaxSendWR = send.Cap()
	if recv != nil {
		q.cap.MaxRecvWR = recv.Cap()
	}
	life.core, life.handle, life.id, life.send, life.recv = core, handle, id, send, recv
	life.begin(p.obj.device, name{"QP %d", q.num}, life, parents)
	q.life, q.obj = life, &life.object
	core.registry.add(id, entry{obj: q.obj, qp: weak.Make(q)})
	return q, nil
}

// qpMaker makes the kernel's QP, as its driver wants it.
type qpMaker struct {
	*QP
	init provider.QPInit
	id   uint64
	made bool
}

func (m *qpMaker) make(uhw provider.UHW) (provider.QPInfo, error) {
	c := m.init.Cap
	want := abi.IbUverbsQpCap{
		MaxSendWr: uint32(c.MaxSendWR), MaxRecvWr: uint32(c.MaxRecvWR),
		MaxSendSge: uint32(c.MaxSendSGE), MaxRecvSge: uint32(c.MaxRecvSGE),
		MaxInlineData: uint32(c.MaxInline),
	}
	var flags uint64
	if m.init.SignalAll {
		flags = abi.IB_UVERBS_QP_CREATE_SQ_SIG_ALL
	}
	var srq uint32
	if m.srq != nil {
		srq = m.srq.handle
	}
	var got abi.IbUverbsQpCap
	err := m.pd.ctx.file.Ioctl(sys.Call{Object: abi.UVERBS_OBJECT_QP, Method: abi.UVERBS_METHOD_QP_CREATE, Attrs: []sys.Attr{
		sys.New(abi.UVERBS_ATTR_CREATE_QP_HANDLE, &m.handle),
		sys.Handle(abi.UVERBS_ATTR_CREATE_QP_PD_HANDLE, m.pd.handle),
		sys.Handle(abi.UVERBS_ATTR_CREATE_QP_SEND_CQ_HANDLE, m.sendCQ.handle),
		sys.Handle(abi.UVERBS_ATTR_CREATE_QP_RECV_CQ_HANDLE, m.recvCQ.handle),
		sys.Handle(abi.UVERBS_ATTR_CREATE_QP_SRQ_HANDLE, srq).If(m.srq != nil),
		sys.In(abi.UVERBS_ATTR_CREATE_QP_USER_HANDLE, &m.id),
		sys.In(abi.UVERBS_ATTR_CREATE_QP_CAP, &want),
		sys.Const(abi.UVERBS_ATTR_CREATE_QP_TYPE, uint64(m.typ)),
		sys.Const(abi.UVERBS_ATTR_CREATE_QP_FLAGS, flags).If(flags != 0),
		sys.Out(abi.UVERBS_ATTR_CREATE_QP_RESP_CAP, &got),
		sys.Out(abi.UVERBS_ATTR_CREATE_QP_RESP_QP_NUM, &m.num),
		sys.InBytes(abi.UVERBS_ATTR_UHW_IN, uhw.In),
		sys.OutBytes(abi.UVERBS_ATTR_UHW_OUT, uhw.Out),
	}})
	m.made = err == nil
	m.cap = verbs.QPCap{
		MaxSendWR: int(got.MaxSendWr), MaxRecvWR: int(got.MaxRecvWr),
		MaxSendSGE: int(got.MaxSendSge), MaxRecvSGE: int(got.MaxRecvSge),
		MaxInline: int(got.MaxInlineData),
	}
	return provider.QPInfo{Handle: m.handle, QPNum: m.num, Cap: m.cap}, err
}

// qpLife is what is left of a QP that the program has forgotten.
type qpLife struct {
	object
	room   [4]*object // for its parents
	core   *contextCore
	handle uint32
	id     uint64
	send   provider.SendQueue
	recv   provider.RecvQueue

	groupsMu sync.Mutex
	groups   []membership
}

func (l *qpLife) destroy() error {
	for _, g := range slices.Clone(l.groups) {
		l.detach(g) // or the kernel refuses to destroy the QP
	}
	if err := stopped(func() error { return l.core.destroyQP(l.handle) }, l.send, l.recv); err != nil {
		return err
	}
	l.core.registry.remove(l.id)
	return nil
}

func (c *contextCore) destroyQP(handle uint32) error {
	var resp abi.IbUverbsDestroyQpResp
	return c.destroy(abi.UVERBS_OBJECT_QP, abi.UVERBS_METHOD_QP_DESTROY,
		abi.UVERBS_ATTR_DESTROY_QP_HANDLE, abi.UVERBS_ATTR_DESTROY_QP_RESP, handle, mmap.Bytes(&resp))
}

// Num is the QP's number, which peers address.
func (q *QP) Num() uint32 { return q.num }

// Type is the QP's transport.
func (q *QP) Type() verbs.QPType { return q.typ }

// Cap is what the queues hold: at least what was asked for.
func (q *QP) Cap() verbs.QPCap { return q.cap }

// PD, SendCQ, RecvCQ and SRQ are what the QP was made from.
func (q *QP) PD() *PD     { return q.pd }
func (q *QP) SendCQ() *CQ { return q.sendCQ }
func (q *QP) RecvCQ() *CQ { return q.recvCQ }
func (q *QP) SRQ() *SRQ   { return q.srq }

// Close destroys the QP. Requests that have not completed never will.
func (q *QP) Close() error { return q.obj.close() }
