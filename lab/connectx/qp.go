//go:build linux

package connectx

import (
	"bytes"
	"slices"
	"sync/atomic"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/engine"
)

func qps(t *qpTable) *objects[*qp] { return &t.objects }

var qpCommands = map[uint16]func(*qpTable, *call) status{
	opCreateQp:      (*qpTable).create,
	opDestroyQp:     (*qpTable).destroy,
	opQueryQp:       on(qps, queryQpInQpn, (*qp).query),
	opAttachToMcg:   on(qps, attachToMcgInQpn, (*qp).attachMulticast),
	opDetachFromMcg: on(qps, detachFromMcgInQpn, (*qp).attachMulticast),
}

// qpTable has the queue pairs.
type qpTable struct {
	env   *env
	caps  *capabilities
	uars  *objects[struct{}]
	eqs   *eqTable
	pds   *objects[*engine.PD]
	umrPD *engine.PD // of QPs for UMR requests
	keys  *keyTable
	cqs   *cqTable
	srqs  *srqTable
	paths *addressing
	objects[*qp]

	count    int              // of commands alone
	failures [2]failures      // of requests and receives
	refused  [2]atomic.Uint64 // requests of peers that no receive completes with: invalid, and without rights
	flusher  flusher
}

// qp is a queue pair. The send queue follows the receive queue in the guest's memory; the doorbell
// record has the number of receives that are posted, and that of blocks of 64 bytes of send requests,
// of which 16 bits each count.
//
// QPs of other types than RC, UC and UD, which the kernel makes for management and for UMR requests,
// are UD QPs of the engine, of which the driver uses the local operations alone, except for QP 1.
type qp struct {
	t         *qpTable
	num       uint32
	st        int // service type, qpType*
	uar       uint32
	userIndex uint32
	e         *engine.QP
	srq       *srq
	context   []byte      // struct qpc, of commands alone
	groups    []verbs.GID // that it has joined, of commands alone

	sq      sender
	rq      receiver
	overrun atomic.Bool // a CQ had no room
}

const (
	// Sizes of the engine's rings, which need not hold all that the guest posts.
	engineSends = 31
	engineRecvs = 15

	maxQPs = 1 << 14 // each takes some 100 KiB here

	gsiQKey = 0x80010000
)

// Types of receive queues, qpc.rq_type.
const (
	rqOwn  = 0
	rqSRQ  = 1
	rqNone = 3
)

// engineTypes are the engine's types of QPs.
var engineTypes = map[int]verbs.QPType{
	qpTypeRc: verbs.RC, qpTypeUc: verbs.UC, qpTypeUd: verbs.UD,
	qpTypeQp0: verbs.UD, qpTypeQp1: verbs.UD, qpTypeRegUmr: verbs.UD,
}

func (t *qpTable) create(c *call) status {
	ctx := bytes.Clone(createQpInQpc.at(c.in))
	st, pdn := qpcSt.int(ctx), qpcPd.u32(ctx)
	typ, ok := engineTypes[st]
	switch {
	case !ok, createQpInWqUmemValid.is(c.in), createQpInQpcExt.is(c.in), qpcDbrUmemValid.is(ctx), qpcWqSignature.is(ctx),
		qpcCsReq.is(ctx), qpcCsRes.is(ctx), qpcState.is(ctx):
		return statusBadParamErr
	}
	pd := t.umrPD
	if st != qpTypeRegUmr { // mlx5_ib gives its QP none: create_kernel_qp
		if pd, ok = t.pds.get(pdn); !ok {
			return statusBadResErr
		}
	}
	q := &qp{t: t, st: st, uar: qpcUarPage.u32(ctx), userIndex: qpcUserIndex.u32(ctx), context: ctx}
	if !t.uars.has(q.uar) && !qpcNoSq.is(ctx) {
		return statusBadResErr
	}
	q.sq = sender{
		env: t.env, datagram: typ == verbs.UD, paths: paths{addressing: t.paths, pd: pd, ahs: map[[avSize]byte]*engine.AH{}},
		updates: updater{
			env: t.env, keys: t.keys, pdn: pdn, kernel: st == qpTypeRegUmr, datagram: typ == verbs.UD && st != qpTypeRegUmr, fastReg: qpcFre.is(ctx),
		},
	}
	init := engine.QPInit{
		Type: typ, Owner: q, Strict: true, Event: q.event, Execute: q.sq.execute, Invalidate: q.sq.updates.invalidate,
		RefillSend: q.sq.refill, RefillRecv: q.rq.refill,
		Cap: verbs.QPCap{MaxSendWR: engineSends, MaxRecvWR: engineRecvs, MaxSendSGE: maxSGEs, MaxInline: maxWQE},
	}
	if t.count >= maxQPs {
		return statusNoResErr
	}
	if st := q.attachCQs(&init); st != statusOk {
		return st
	}
	if st := q.mapQueues(createQpInPas.at(c.in), &init); st != statusOk {
		return st
	}
	if q.st == qpTypeQp1 {
		init.Num = 1
	}
	var err error
	if q.e, err = pd.CreateQP(init); err != nil {
		q.closeQueues()
		return statusNoResErr
	}
	q.num = q.e.Num()
	if q.st == qpTypeQp0 {
		q.num = 0
	}
	q.sq.num, q.sq.updates.qpn = q.num, q.num
	t.count++
	if !t.put(q.num, q) {
		q.destroy()
		return statusNoResErr
	}
	createQpOutQpn.set(c.out, uint64(q.num))
	return statusOk
}

// attachCQs finds the CQs. A QP may have only one.
func (q *qp) attachCQs(init *engine.QPInit) status {
	send, okSend := q.t.cqs.get(qpcCqnSnd.u32(q.context))
	recv, okRecv := q.t.cqs.get(qpcCqnRcv.u32(q.context))
	switch {
	case !okSend && !okRecv:
		return statusBadResErr
	case !okSend:
		send = recv
	case !okRecv:
		recv = send
	}
	init.SendCQ, init.RecvCQ = send.e, recv.e
	return statusOk
}

// mapQueues maps the queues, or finds the SRQ.
func (q *qp) mapQueues(pas []byte, init *engine.QPInit) status {
	ctx, t := q.context, q.t
	recvs, stride := 0, 16<<qpcLogRqStride.int(ctx)
	switch qpcRqType.int(ctx) {
	case rqOwn:
		recvs = 1 << qpcLogRqSize.int(ctx)
		init.Cap.MaxRecvSGE = min(stride/16, maxSGEs)
	case rqSRQ:
		s, ok := t.srqs.get(qpcSrqnRmpnXrqn.u32(ctx))
		if !ok {
			return statusBadResErr
		}
		q.srq, init.SRQ, init.RefillRecv = s, s.e, nil
	case rqNone:
	default:
		return statusBadParamErr
	}
	sends := 1 << qpcLogSqSize.int(ctx)
	if qpcNoSq.is(ctx) {
		sends = 0
	}
	most := 1 << t.caps.int(capGeneral, cmdHcaCapLogMaxQpSz)
	if recvs > most || sends > most {
		return statusBadParamErr
	}
	if recvs+sends == 0 {
		return statusOk
	}
	// One ring has the pages of both; it is that of the receive queue if there is one.
	both := ring{count: uint32(recvs*stride + sends*sendBlock), stride: 1}
	if st := t.env.mapRing(&both, pas, qpcLogPageSize.int(ctx), qpcPageOffset.int(ctx), qpcDbrAddr.get(ctx)); st != statusOk {
		return st
	}
	q.rq.ring, q.sq.ring = both, both
	q.rq.count, q.rq.stride, q.rq.mem = uint32(recvs), stride, both.mem[:recvs*stride]
	q.sq.count, q.sq.stride, q.sq.mem = uint32(sends), sendBlock, both.mem[recvs*stride:]
	return statusOk
}

// closeQueues unmaps the queues. A doorbell may have found the QP before.
func (q *qp) closeQueues() {
	q.sq.close(&q.rq.ring) // both are in the same memory
}

// destroy takes the QP out first, so that doorbells do not find it any more.
func (t *qpTable) destroy(c *call) status {
	q, ok := t.remove(destroyQpInQpn.u32(c.in))
	if !ok {
		return statusBadResErr
	}
	return q.destroy()
}

func (q *qp) destroy() status {
	if q.e.Destroy() != nil { // it is attached to multicast groups
		for _, gid := range q.groups {
			q.e.DetachMulticast(gid)
		}
		q.e.Destroy()
	}
	q.t.flusher.remove(q)
	q.sq.paths.forget()
	q.closeQueues()
	q.t.count--
	return statusOk
}

// failed makes the flusher watch for receives that the guest posts from now on.
func (q *qp) failed() {
	if q.srq == nil {
		q.t.flusher.add(q)
	}
}

// delivered ends the QP if a CQ had no room for a completion.
func (q *qp) delivered(ok bool) bool {
	if !ok && !q.overrun.Swap(true) {
		q.t.flusher.add(q)
	}
	return ok
}

// flush implements [failing]: a CQ that had no room ends the QP.
func (q *qp) flush() bool {
	if q.overrun.Load() {
		q.e.Modify(&verbs.QPAttr{State: verbs.StateErr}, verbs.MaskState)
	}
	q.e.Doorbell()
	return q.e.Query().State == verbs.StateErr
}

// ring takes a doorbell of the send queue.
func (q *qp) ring(b []byte, one bool) {
	q.sq.show(b, one)
	q.e.Doorbell() // it is ignored before RTS
}

// qpEvents are the types of events, by the engine's.
var qpEvents = map[verbs.AsyncEventType]uint8{
	verbs.EventCommEst: eventCommEst, verbs.EventSQDrained: eventSqDrained, verbs.EventQPFatal: eventWqCatasError,
	verbs.EventQPReqErr: eventWqInvalReqError, verbs.EventQPAccessErr: eventWqAccessError,
	verbs.EventQPLastWQEReached: eventSrqLastWqe,
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
	verbs.StateReset: qpStateRst, verbs.StateInit: qpStateInit, verbs.StateRTR: qpStateRtr, verbs.StateRTS: qpStateRts,
	verbs.StateSQD: qpStateSqd, verbs.StateSQE: qpStateSqer, verbs.StateErr: qpStateErr,
}

func (q *qp) query(c *call) status {
	a := q.e.Query()
	ctx := queryQpOutQpc.at(c.out)
	copy(ctx, q.context)
	qpcState.set(ctx, uint64(qpStates[a.State]))
	qpcNextSendPsn.set(ctx, uint64(a.SQPSN))
	qpcNextRcvPsn.set(ctx, uint64(a.RQPSN))
	if q.sq.count > 0 {
		qpcSwSqWqebbCounter.set(ctx, uint64(q.sq.posted(sendRecord)))
	}
	if q.rq.count > 0 {
		qpcSwRqCounter.set(ctx, uint64(q.rq.posted(recvRecord)))
	}
	return statusOk
}

func (q *qp) attachMulticast(c *call) status {
	gid := verbs.GID(attachToMcgInMulticastGid.at(c.in))
	if c.op == opDetachFromMcg {
		if q.e.DetachMulticast(gid) != nil {
			return statusBadParamErr
		}
		q.groups = slices.DeleteFunc(q.groups, func(g verbs.GID) bool { return g == gid })
		return statusOk
	}
	if q.e.AttachMulticast(gid) != nil {
		return statusBadParamErr
	}
	if !slices.Contains(q.groups, gid) {
		q.groups = append(q.groups, gid)
	}
	return statusOk
}
