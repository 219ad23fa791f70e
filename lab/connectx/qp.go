//go:build linux

package connectx

import (
	"bytes"
	"slices"
	"sync/atomic"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/engine"
	"github.com/goverbs/verbs/lab/connectx/internal/ifc"
	"github.com/goverbs/verbs/lab/internal/pcidev"
)

var qpCommands = map[uint16]func(*qpTable, *call) ifc.Status{
	ifc.OpCreateQp:      (*qpTable).create,
	ifc.OpDestroyQp:     (*qpTable).destroy,
	ifc.OpQueryQp:       on((*qpTable).table, ifc.QueryQpInQpn, (*qp).query),
	ifc.OpAttachToMcg:   on((*qpTable).table, ifc.AttachToMcgInQpn, (*qp).attachMulticast),
	ifc.OpDetachFromMcg: on((*qpTable).table, ifc.DetachFromMcgInQpn, (*qp).attachMulticast),
}

// qpTable has the queue pairs.
type qpTable struct {
	env   *env
	caps  *capabilities
	uars  *objects[struct{}]
	eqs   *eqTable
	pds   *objects[*engine.PD]
	umrPD *engine.PD // of QPs for UMR requests, which name none
	keys  *keyTable
	cqs   *cqTable
	srqs  *srqTable
	paths *addressing
	objects[*qp]

	count    int              // of commands alone
	failures [2]failures      // of requests and receives
	refused  [2]atomic.Uint64 // peers' requests that consume no receive: invalid, and without rights
	flusher  pcidev.Flusher
}

// qp is a queue pair. The send queue follows the receive queue in the guest's memory. The doorbell
// record counts the posted receives, and the 64-byte blocks of the posted send requests, in 16 bits
// each.
//
// The kernel also makes QPs for management (QP 0 and QP 1) and for UMR requests (create_kernel_qp of
// mlx5_ib). These are UD QPs of the engine. Only QP 1 sends datagrams; the others execute local
// operations.
type qp struct {
	t         *qpTable
	num       uint32
	st        int // service type, qpType*
	uar       uint32
	userIndex uint32 // by which libmlx5 finds the QP of a CQE
	realTime  bool   // the format of timestamps is realTimeStamps
	e         *engine.QP
	srq       *srq
	context   []byte      // struct qpc, of commands alone
	groups    []verbs.GID // multicast groups that it has joined, of commands alone

	sq      sender
	rq      receiver
	overrun atomic.Bool // a CQ had no room for a completion
}

const (
	// Sizes of the engine's rings. They hold the next requests: the rest waits in the guest's memory.
	engineSends = 31
	engineRecvs = 15

	maxQPs = 1 << 14 // each takes some 100 KiB here

	gsiQKey = 0x80010000 // IB_QP1_QKEY, which the driver does not set
)

// Types of receive queues, qpc.rq_type: MLX5_NON_ZERO_RQ, MLX5_SRQ_RQ and MLX5_ZERO_LEN_RQ of
// mlx5_ib.
const (
	rqOwn  = 0
	rqSRQ  = 1
	rqNone = 3
)

// engineTypes are the engine's types of QPs.
var engineTypes = map[int]verbs.QPType{
	ifc.QpTypeRc: verbs.RC, ifc.QpTypeUc: verbs.UC, ifc.QpTypeUd: verbs.UD, ifc.QpTypeDci: verbs.RC,
	ifc.QpTypeQp0: verbs.UD, ifc.QpTypeQp1: verbs.UD, ifc.QpTypeRegUmr: verbs.UD,
}

func (t *qpTable) create(c *call) ifc.Status {
	ctx := bytes.Clone(ifc.CreateQpInQpc.At(c.in))
	st, pdn := ifc.QpcSt.Int(ctx), ifc.QpcPd.U32(ctx)
	typ, ok := engineTypes[st]
	switch {
	// Features without a capability: umem, signatures, and CQEs that carry data (cs_req, cs_res).
	case !ok, ifc.CreateQpInWqUmemValid.Is(c.in), ifc.CreateQpInQpcExt.Is(c.in), ifc.QpcDbrUmemValid.Is(ctx), ifc.QpcWqSignature.Is(ctx),
		ifc.QpcCsReq.Is(ctx), ifc.QpcCsRes.Is(ctx), ifc.QpcState.Is(ctx):
		return ifc.StatusBadParamErr
	}
	pd := t.umrPD
	if st != ifc.QpTypeRegUmr { // mlx5_ib gives its QP none: create_kernel_qp
		if pd, ok = t.pds.Get(pdn); !ok {
			return ifc.StatusBadResErr
		}
	}
	q := &qp{t: t, st: st, uar: ifc.QpcUarPage.U32(ctx), userIndex: ifc.QpcUserIndex.U32(ctx), realTime: ifc.QpcTsFormat.Int(ctx) == realTimeStamps, context: ctx}
	if !t.uars.Has(q.uar) && !ifc.QpcNoSq.Is(ctx) {
		return ifc.StatusBadResErr
	}
	q.sq = sender{
		env: t.env, datagram: typ == verbs.UD, dynamic: st == ifc.QpTypeDci, paths: paths{addressing: t.paths, pd: pd, ahs: map[[avSize]byte]*engine.AH{}},
		updates: updater{
			env: t.env, keys: t.keys, pdn: pdn, kernel: st == ifc.QpTypeRegUmr, datagram: typ == verbs.UD && st != ifc.QpTypeRegUmr, fastReg: ifc.QpcFre.Is(ctx),
		},
	}
	init := engine.QPInit{
		Type: typ, Dynamic: st == ifc.QpTypeDci, Owner: q, Strict: true, Event: q.event, Execute: q.sq.execute, Invalidate: q.sq.updates.invalidate, PageFault: q.pageFault,
		RefillSend: q.sq.refill, RefillRecv: q.rq.refill,
		Cap: verbs.QPCap{MaxSendWR: engineSends, MaxRecvWR: engineRecvs, MaxSendSGE: maxSGEs, MaxInline: maxWQE},
	}
	if t.count >= maxQPs {
		return ifc.StatusNoResErr
	}
	if st := q.attachCQs(&init); st != ifc.StatusOk {
		return st
	}
	if st := q.mapQueues(ifc.CreateQpInPas.At(c.in), &init); st != ifc.StatusOk {
		return st
	}
	// The general services interface is QP 1 of every port.
	if q.st == ifc.QpTypeQp1 {
		init.Num = 1
	}
	var err error
	if q.e, err = pd.CreateQP(init); err != nil {
		q.sq.close(&q.rq.ring)
		return ifc.StatusNoResErr
	}
	q.num = q.e.Num()
	if q.st == ifc.QpTypeQp0 {
		q.num = 0
	}
	q.sq.num, q.sq.updates.qpn = q.num, q.num
	t.count++
	if !t.Put(q.num, q) {
		q.destroy()
		return ifc.StatusNoResErr
	}
	ifc.CreateQpOutQpn.Set(c.out, uint64(q.num))
	if ifc.CreateQpInEce.Is(c.in) {
		ifc.CreateQpOutEce.Set(c.out, extensions)
	}
	return ifc.StatusOk
}

// extensions are those that the adapter offers (ECE): a bit that says so, and two others. They have no
// effect here.
const extensions = 1<<28 | 0x5

// attachCQs finds the CQs. A QP with one queue may name one CQ.
func (q *qp) attachCQs(init *engine.QPInit) ifc.Status {
	send, okSend := q.t.cqs.Get(ifc.QpcCqnSnd.U32(q.context))
	recv, okRecv := q.t.cqs.Get(ifc.QpcCqnRcv.U32(q.context))
	switch {
	case !okSend && !okRecv:
		return ifc.StatusBadResErr
	case !okSend:
		send = recv
	case !okRecv:
		recv = send
	}
	init.SendCQ, init.RecvCQ = send.e, recv.e
	return ifc.StatusOk
}

// mapQueues maps the queues, or finds the SRQ.
func (q *qp) mapQueues(pas []byte, init *engine.QPInit) ifc.Status {
	ctx, t := q.context, q.t
	recvs, stride := 0, 16<<ifc.QpcLogRqStride.Int(ctx)
	switch ifc.QpcRqType.Int(ctx) {
	case rqOwn:
		recvs = 1 << ifc.QpcLogRqSize.Int(ctx)
		init.Cap.MaxRecvSGE = min(stride/16, maxSGEs)
	case rqSRQ:
		if q.st == ifc.QpTypeDci { // the kernel names one, of which nothing is received
			break
		}
		s, ok := t.srqs.Get(ifc.QpcSrqnRmpnXrqn.U32(ctx))
		if !ok {
			return ifc.StatusBadResErr
		}
		q.srq, init.SRQ, init.RefillRecv = s, s.e, nil
	case rqNone:
	default:
		return ifc.StatusBadParamErr
	}
	// The size counts blocks of MLX5_SEND_WQE_BB, 64 bytes.
	sends := 1 << ifc.QpcLogSqSize.Int(ctx)
	if ifc.QpcNoSq.Is(ctx) {
		sends = 0
	}
	most := 1 << t.caps.int(ifc.CapGeneral, ifc.CmdHcaCapLogMaxQpSz)
	if recvs > most || sends > most {
		return ifc.StatusBadParamErr
	}
	if recvs+sends == 0 {
		return ifc.StatusOk
	}
	// Both queues share the pages and the doorbell record, which rq.ring owns.
	both := ring{Ring: pcidev.Ring{Count: uint32(recvs*stride + sends*sendBlock), Stride: 1}}
	if st := t.env.mapRing(&both, pas, ifc.QpcLogPageSize.Int(ctx), ifc.QpcPageOffset.Int(ctx), ifc.QpcDbrAddr.Get(ctx)); st != ifc.StatusOk {
		return st
	}
	q.rq.ring, q.sq.ring = both, both
	q.rq.Count, q.rq.Stride, q.rq.Mem = uint32(recvs), stride, both.Mem[:recvs*stride]
	q.sq.Count, q.sq.Stride, q.sq.Mem = uint32(sends), sendBlock, both.Mem[recvs*stride:]
	return ifc.StatusOk
}

// destroy removes the QP from the table first, so that doorbells no longer find it.
func (t *qpTable) destroy(c *call) ifc.Status {
	q, ok := t.Remove(ifc.DestroyQpInQpn.U32(c.in))
	if !ok {
		return ifc.StatusBadResErr
	}
	return q.destroy()
}

func (q *qp) destroy() ifc.Status {
	if q.e.Destroy() != nil { // the QP is in multicast groups
		for _, gid := range q.groups {
			q.e.DetachMulticast(gid)
		}
		q.e.Destroy()
	}
	q.t.flusher.Remove(q)
	q.sq.paths.forget()
	q.sq.close(&q.rq.ring)
	q.t.count--
	return ifc.StatusOk
}

// failed makes the flusher complete the receives that the guest posts from now on.
func (q *qp) failed() {
	if q.srq == nil {
		q.t.flusher.Add(q)
	}
}

// delivered takes note of a completion for which its CQ had no room, and returns ok. It leaves to the
// flusher to move the QP to the error state: Modify takes the engine's lock of the QP, which the
// caller holds.
func (q *qp) delivered(ok bool) bool {
	if !ok && !q.overrun.Swap(true) {
		q.t.flusher.Add(q)
	}
	return ok
}

// Flush implements [pcidev.Failing].
func (q *qp) Flush() bool {
	if now, ok := q.t.Get(q.num); !ok || now != q { // it has been destroyed
		return false
	}
	if q.overrun.Load() {
		q.e.Modify(&verbs.QPAttr{State: verbs.StateErr}, verbs.MaskState)
	}
	q.e.Doorbell()
	return q.e.Query().State == verbs.StateErr
}

// doorbell handles a doorbell of the send queue: see Device.send.
func (q *qp) doorbell(b []byte, one bool) {
	q.sq.show(b, one)
	q.e.Doorbell() // the engine ignores it before RTS
}

// qpEvents are the types of events by the engine's types.
var qpEvents = map[verbs.AsyncEventType]uint8{
	verbs.EventCommEst: ifc.EventCommEst, verbs.EventSQDrained: ifc.EventSqDrained, verbs.EventQPFatal: ifc.EventWqCatasError,
	verbs.EventQPReqErr: ifc.EventWqInvalReqError, verbs.EventQPAccessErr: ifc.EventWqAccessError,
	verbs.EventQPLastWQEReached: ifc.EventSrqLastWqe,
}

// event raises an event of the QP (struct mlx5_eqe_qp_srq). The engine's QP is locked.
func (q *qp) event(t verbs.AsyncEventType) {
	if t != verbs.EventCommEst && t != verbs.EventSQDrained {
		q.failed()
	}
	switch t {
	case verbs.EventQPReqErr:
		q.t.refused[0].Add(1)
	case verbs.EventQPAccessErr:
		q.t.refused[1].Add(1)
	}
	if typ, ok := qpEvents[t]; ok {
		q.t.eqs.event(typ, 0, eventOfQueue(q.num))
	}
}

// qpStates are qpc.state by the engine's state.
var qpStates = map[verbs.QPState]int{
	verbs.StateReset: ifc.QpStateRst, verbs.StateInit: ifc.QpStateInit, verbs.StateRTR: ifc.QpStateRtr, verbs.StateRTS: ifc.QpStateRts,
	verbs.StateSQD: ifc.QpStateSqd, verbs.StateSQE: ifc.QpStateSqer, verbs.StateErr: ifc.QpStateErr,
}

func (q *qp) query(c *call) ifc.Status {
	a := q.e.Query()
	ctx := ifc.QueryQpOutQpc.At(c.out)
	copy(ctx, q.context)
	ifc.QpcState.Set(ctx, uint64(qpStates[a.State]))
	ifc.QpcNextSendPsn.Set(ctx, uint64(a.SQPSN))
	ifc.QpcNextRcvPsn.Set(ctx, uint64(a.RQPSN))
	if q.sq.Count > 0 {
		ifc.QpcSwSqWqebbCounter.Set(ctx, uint64(q.sq.posted(sendRecord)))
	}
	if q.rq.Count > 0 {
		ifc.QpcSwRqCounter.Set(ctx, uint64(q.rq.posted(recvRecord)))
	}
	return ifc.StatusOk
}

func (q *qp) attachMulticast(c *call) ifc.Status {
	gid := verbs.GID(ifc.AttachToMcgInMulticastGid.At(c.in))
	if c.op == ifc.OpDetachFromMcg {
		if q.e.DetachMulticast(gid) != nil {
			return ifc.StatusBadParamErr
		}
		q.groups = slices.DeleteFunc(q.groups, func(g verbs.GID) bool { return g == gid })
		return ifc.StatusOk
	}
	if q.e.AttachMulticast(gid) != nil {
		return ifc.StatusBadParamErr
	}
	if !slices.Contains(q.groups, gid) {
		q.groups = append(q.groups, gid)
	}
	return ifc.StatusOk
}
