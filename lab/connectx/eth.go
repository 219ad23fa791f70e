//go:build linux

package connectx

import (
	"bytes"
	"sync"
	"sync/atomic"

	"github.com/goverbs/verbs/lab/connectx/internal/ifc"
	"github.com/goverbs/verbs/lab/connectx/internal/wire"
)

// ethernet is the network function, which mlx5e drives. It sends the requests of send queues to the
// wire, and puts frames from the wire into the receive queue that the indirection table (RQT) has for
// their flow.
type ethernet struct {
	env  *env
	caps *capabilities
	uars *objects[struct{}]
	tds  *objects[struct{}]
	cqs  *cqTable
	keys *keyTable
	port *port
	wire *wire.EthernetPort // nil without one

	tises objects[struct{}]
	tirs  objects[[]byte] // contexts
	rqts  objects[*rqt]
	sqs   objects[*sendQueue]
	rqs   objects[*receiveQueue]
	flow  flowTables

	rss      atomic.Uint32 // number of the RQT that frames are spread over, or 0
	rx, tx   [3]traffic    // by class
	noBuffer atomic.Uint32 // frames dropped for want of a posted receive
	discards atomic.Uint32 // frames dropped by the wire's queue
}

// rqt is an indirection table of receive queues.
type rqt struct {
	e    *ethernet
	num  uint32
	most int // queues

	mu   sync.Mutex
	rqns []uint32
}

// States of send and receive queues, MLX5_SQC_STATE_* and MLX5_RQC_STATE_*.
const (
	stateReset = 0
	stateReady = 1
	stateError = 3
)

// Numbers of these queues. They differ from those of QPs, as a doorbell names either in the same field.
const (
	minSQ, maxSQ = 0x800000, 0x80ffff
	minRQ, maxRQ = 0x900000, 0x90ffff
)

// ethQueue is what send and receive queues have in common.
type ethQueue struct {
	num     uint32
	context []byte // struct sqc or rqc
	cq      *cq
	pd      uint32

	mu    sync.Mutex
	ring  ring
	state int
	head  uint16 // index of the next entry
}

type sendQueue struct {
	ethQueue
	uar   uint32 // where it takes doorbells
	shown shown
}

type receiveQueue struct {
	ethQueue
	keepVLAN bool
}

func tises(e *ethernet) *objects[struct{}]    { return &e.tises }
func tirs(e *ethernet) *objects[[]byte]       { return &e.tirs }
func rqts(e *ethernet) *objects[*rqt]         { return &e.rqts }
func sqs(e *ethernet) *objects[*sendQueue]    { return &e.sqs }
func rqs(e *ethernet) *objects[*receiveQueue] { return &e.rqs }

var ethCommands = map[uint16]func(*ethernet, *call) ifc.Status{
	ifc.OpCreateTis:  (*ethernet).createTIS,
	ifc.OpModifyTis:  on(tises, ifc.ModifyTisInTisn, ignore), // its priority and port: there is one of each
	ifc.OpDestroyTis: (*ethernet).destroyTIS,
	ifc.OpCreateTir:  (*ethernet).createTIR,
	ifc.OpModifyTir:  on(tirs, ifc.ModifyTirInTirn, ignore), // hashing, loopback and aggregation: frames here show nothing of them
	ifc.OpDestroyTir: drop(tirs, ifc.DestroyTirInTirn, nil),
	ifc.OpCreateRqt:  (*ethernet).createRQT,
	ifc.OpModifyRqt:  on(rqts, ifc.ModifyRqtInRqtn, (*rqt).modify),
	ifc.OpDestroyRqt: drop(rqts, ifc.DestroyRqtInRqtn, (*rqt).end),
	ifc.OpCreateSq:   (*ethernet).createSQ,
	ifc.OpModifySq:   on(sqs, ifc.ModifySqInSqn, (*sendQueue).modify),
	ifc.OpDestroySq:  drop(sqs, ifc.DestroySqInSqn, (*sendQueue).close),
	ifc.OpQuerySq: on(sqs, ifc.QuerySqInSqn, func(q *sendQueue, c *call) ifc.Status {
		return q.query(ifc.QuerySqOutSqContext.At(c.out), ifc.SqcState, ifc.SqcWq)
	}),
	ifc.OpCreateRq:  (*ethernet).createRQ,
	ifc.OpModifyRq:  on(rqs, ifc.ModifyRqInRqn, (*receiveQueue).modify),
	ifc.OpDestroyRq: drop(rqs, ifc.DestroyRqInRqn, (*receiveQueue).close),
	ifc.OpQueryRq: on(rqs, ifc.QueryRqInRqn, func(q *receiveQueue, c *call) ifc.Status {
		return q.query(ifc.QueryRqOutRqContext.At(c.out), ifc.RqcState, ifc.RqcWq)
	}),
}

func (e *ethernet) reset() {
	e.rss.Store(0)
	e.tirs.clear(nil)
	e.tises.clear(nil)
	e.rqts.clear(nil)
	e.sqs.clear((*sendQueue).close)
	e.rqs.clear((*receiveQueue).close)
	e.flow.reset()
}

func (q *ethQueue) close() ifc.Status {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.state = stateReset
	q.ring.close()
	return ifc.StatusOk
}

func (e *ethernet) createTIS(c *call) ifc.Status {
	ctx := ifc.CreateTisInCtx.At(c.in)
	if !e.tds.Has(ifc.TiscTransportDomain.U32(ctx)) {
		return ifc.StatusBadResErr
	}
	if ifc.TiscTlsEn.Is(ctx) || ifc.TiscUnderlayQpn.Is(ctx) {
		return ifc.StatusBadParamErr
	}
	_, st := e.tises.give(struct{}{}, 1, 1<<16, c, ifc.CreateTisOutTisn)
	return st
}

func (e *ethernet) destroyTIS(c *call) ifc.Status {
	num := ifc.DestroyTisInTisn.U32(c.in)
	for _, q := range e.sqs.All() {
		if ifc.SqcTisLstSz.Is(q.context) && ifc.SqcTisNum0.U32(q.context) == num {
			return ifc.StatusBadResStateErr
		}
	}
	if _, ok := e.tises.Remove(num); !ok {
		return ifc.StatusBadResErr
	}
	return ifc.StatusOk
}

// Values of tirc.disp_type, MLX5_TIRC_DISP_TYPE_*.
const (
	tirDirect   = 0
	tirIndirect = 1
)

func (e *ethernet) createTIR(c *call) ifc.Status {
	ctx := bytes.Clone(ifc.CreateTirInCtx.At(c.in))
	switch typ := ifc.TircDispType.Int(ctx); {
	case !e.tds.Has(ifc.TircTransportDomain.U32(ctx)),
		typ == tirDirect && !e.rqs.Has(ifc.TircInlineRqn.U32(ctx)), typ == tirIndirect && !e.rqts.Has(ifc.TircIndirectTable.U32(ctx)):
		return ifc.StatusBadResErr
	case typ != tirDirect && typ != tirIndirect:
		return ifc.StatusBadParamErr
	}
	_, st := e.tirs.give(ctx, 1, 1<<16, c, ifc.CreateTirOutTirn)
	// mlx5e creates TIRs for each type of packets over one RQT: its RSS. Its TIRs of single queues have
	// an RQT too, but hash no fields.
	if st == ifc.StatusOk && ifc.TircRxHashFieldSelectorOuter.Is(ctx) {
		e.rss.Store(ifc.TircIndirectTable.U32(ctx))
	}
	return st
}

// queuesOf returns the queues of an RQT, whose numbers follow its context.
func (e *ethernet) queuesOf(ctx []byte, most int) (rqns []uint32, st ifc.Status) {
	n, rest := ifc.RqtcRqtActualSize.Int(ctx), ctx[ifc.RqtcSize:]
	switch {
	case n > most:
		return nil, ifc.StatusBadParamErr
	case n == 0 || n > len(rest)/4:
		return nil, ifc.StatusBadInpLenErr
	}
	rqns = make([]uint32, n)
	for i := range rqns {
		rqns[i] = be.Uint32(rest[i*4:]) & 0xffffff
		if !e.rqs.Has(rqns[i]) {
			return nil, ifc.StatusBadResErr
		}
	}
	return rqns, ifc.StatusOk
}

func (e *ethernet) createRQT(c *call) ifc.Status {
	ctx := ifc.CreateRqtInRqtContext.From(c.in)
	most := ifc.RqtcRqtMaxSize.Int(ctx)
	if most > 1<<e.caps.int(ifc.CapGeneral, ifc.CmdHcaCapLogMaxRqtSize) {
		return ifc.StatusBadParamErr
	}
	rqns, st := e.queuesOf(ctx, most)
	if st != ifc.StatusOk {
		return st
	}
	t := &rqt{e: e, most: most, rqns: rqns}
	t.num, st = e.rqts.give(t, 1, 1<<logRQTs, c, ifc.CreateRqtOutRqtn)
	return st
}

func (t *rqt) modify(c *call) ifc.Status {
	rqns, st := t.e.queuesOf(ifc.ModifyRqtInCtx.From(c.in), t.most)
	if st != ifc.StatusOk {
		return st
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rqns = rqns
	return ifc.StatusOk
}

func (t *rqt) end() ifc.Status {
	for _, ctx := range t.e.tirs.All() {
		if ifc.TircDispType.Int(ctx) == tirIndirect && ifc.TircIndirectTable.U32(ctx) == t.num {
			return ifc.StatusBadResStateErr
		}
	}
	return ifc.StatusOk
}

// wqCyclic is MLX5_WQ_TYPE_CYCLIC of wq.wq_type. Striding queues would need a capability.
const wqCyclic = 1

// open maps the ring of a queue. w is the struct wq in its context, and the list of pages behind it.
func (q *ethQueue) open(e *ethernet, w []byte, cqn uint32) ifc.Status {
	var ok bool
	if q.cq, ok = e.cqs.Get(cqn); !ok {
		return ifc.StatusBadResErr
	}
	logSize, logStride := ifc.WqLogWqSz.Int(w), ifc.WqLogWqStride.Int(w)
	switch {
	case ifc.WqWqType.Int(w) != wqCyclic, ifc.WqWqSignature.Is(w), ifc.WqDbrUmemValid.Is(w), ifc.WqWqUmemValid.Is(w),
		logSize > e.caps.int(ifc.CapGeneral, ifc.CmdHcaCapLogMaxWqSz), logStride < 4, logStride > 10:
		return ifc.StatusBadParamErr
	}
	q.pd = ifc.WqPd.U32(w) // none for mlx5e's drop queue
	q.ring.Count, q.ring.Stride = 1<<logSize, 1<<logStride
	return e.env.mapRing(&q.ring, ifc.WqPas.At(w), ifc.WqLogWqPgSz.Int(w), ifc.WqPageOffset.Int(w), ifc.WqDbrAddr.Get(w))
}

// move changes a queue's state: from reset to ready, and from any state to error or reset. from is the
// state that the driver takes the queue to be in; if it is wrong, the command fails.
func (q *ethQueue) move(from, to int) ifc.Status {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.state != from:
		return ifc.StatusBadResStateErr
	// A queue enters the error state by itself, and mlx5e brings it back through reset
	// (mlx5e_health_sq_to_ready, mlx5e_rq_to_ready).
	case to == from:
	case to == stateReset:
		q.head = 0
	case to == stateReady && from != stateReset, to != stateReady && to != stateError:
		return ifc.StatusBadResStateErr
	}
	q.state = to
	return ifc.StatusOk
}

// query writes the context of a queue, with its present state and index.
func (q *ethQueue) query(ctx []byte, state, wq ifc.Field) ifc.Status {
	copy(ctx, q.context)
	q.mu.Lock()
	defer q.mu.Unlock()
	state.Set(ctx, uint64(q.state))
	ifc.WqHwCounter.Set(wq.At(ctx), uint64(q.head))
	return ifc.StatusOk
}

func (e *ethernet) createSQ(c *call) ifc.Status {
	ctx := ifc.CreateSqInCtx.From(c.in)
	w := ifc.SqcWq.From(ctx)
	switch {
	case ifc.SqcHairpin.Is(ctx), ifc.SqcAllowMultiPktSendWqe.Is(ctx):
		return ifc.StatusBadParamErr
	case ifc.SqcTisLstSz.Is(ctx) && !e.tises.Has(ifc.SqcTisNum0.U32(ctx)), !e.uars.Has(ifc.WqUarPage.U32(w)):
		return ifc.StatusBadResErr
	case ifc.WqLogWqStride.Int(w) != 6: // MLX5_SEND_WQE_BB, 64 bytes
		return ifc.StatusBadParamErr
	}
	q := &sendQueue{ethQueue: ethQueue{context: bytes.Clone(ctx[:ifc.SqcSize])}, uar: ifc.WqUarPage.U32(w)}
	st := q.open(e, w, ifc.SqcCqn.U32(ctx))
	if st != ifc.StatusOk {
		return st
	}
	if q.num, st = e.sqs.give(q, minSQ, maxSQ, c, ifc.CreateSqOutSqn); st != ifc.StatusOk {
		q.close()
	}
	return st
}

func (q *sendQueue) modify(c *call) ifc.Status {
	to := ifc.SqcState.Int(ifc.ModifySqInCtx.At(c.in))
	st := q.move(ifc.ModifySqInSqState.Int(c.in), to)
	if st == ifc.StatusOk && to == stateReset {
		q.shown.reset()
	}
	return st
}

func (e *ethernet) createRQ(c *call) ifc.Status {
	ctx := ifc.CreateRqInCtx.From(c.in)
	if ifc.RqcHairpin.Is(ctx) || ifc.RqcMemRqType.Is(ctx) || ifc.RqcScatterFcs.Is(ctx) {
		return ifc.StatusBadParamErr
	}
	q := &receiveQueue{ethQueue: ethQueue{context: bytes.Clone(ctx[:ifc.RqcSize])}, keepVLAN: ifc.RqcVsd.Is(ctx)}
	st := q.open(e, ifc.RqcWq.From(ctx), ifc.RqcCqn.U32(ctx))
	if st != ifc.StatusOk {
		return st
	}
	if q.num, st = e.rqs.give(q, minRQ, maxRQ, c, ifc.CreateRqOutRqn); st != ifc.StatusOk {
		q.close()
	}
	return st
}

func (q *receiveQueue) modify(c *call) ifc.Status {
	const selectVSD, selectCounters = 1 << 1, 1 << 3 // MLX5_MODIFY_RQ_IN_MODIFY_BITMASK_*: mlx5e_modify_rq_vsd
	mask := ifc.ModifyRqInModifyBitmask.Get(c.in)
	if mask&^(selectVSD|selectCounters) != 0 {
		return ifc.StatusBadParamErr
	}
	if st := q.move(ifc.ModifyRqInRqState.Int(c.in), ifc.RqcState.Int(ifc.ModifyRqInCtx.At(c.in))); st != ifc.StatusOk {
		return st
	}
	if mask&selectVSD != 0 {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.keepVLAN = ifc.RqcVsd.Is(ifc.ModifyRqInCtx.At(c.in))
	}
	return ifc.StatusOk
}
