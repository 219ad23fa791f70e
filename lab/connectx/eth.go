//go:build linux

package connectx

import (
	"bytes"
	"sync"
	"sync/atomic"

	"github.com/goverbs/verbs/lab/connectx/internal/wire"
)

// ethernet is the network function: what mlx5e drives. Requests of its send queues go to the wire,
// and frames from there to the receive queue that the indirection table has for their flow.
type ethernet struct {
	env  *env
	caps *capabilities
	uars *objects[struct{}]
	tds  *objects[struct{}]
	cqs  *cqTable
	keys *keyTable
	port *port
	wire *wire.End // nil without one

	tises objects[*tis]
	tirs  objects[[]byte] // contexts
	rqts  objects[*rqt]
	sqs   objects[*sendQueue]
	rqs   objects[*receiveQueue]
	flow  flowTables

	rss      atomic.Uint32 // number of the RQT whose TIRs hash, 0 without
	rx, tx   [3]traffic    // by class
	noBuffer atomic.Uint32 // frames for which no receive was posted
	discards atomic.Uint32 // frames for which the wire had no room
}

// tis is what the requests of send queues go through. It has nothing to tell of its own here.
type tis struct {
	e   *ethernet
	num uint32
}

// rqt is a table of receive queues.
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

// Numbers of these queues. A doorbell names an SQ as it names a QP, whose numbers are smaller.
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
	head  uint16 // counts entries that have been executed
}

type sendQueue struct {
	ethQueue
	uar   uint32 // whose doorbells are its
	shown shown
}

type receiveQueue struct {
	ethQueue
	keepVLAN bool
}

func tises(e *ethernet) *objects[*tis]        { return &e.tises }
func tirs(e *ethernet) *objects[[]byte]       { return &e.tirs }
func rqts(e *ethernet) *objects[*rqt]         { return &e.rqts }
func sqs(e *ethernet) *objects[*sendQueue]    { return &e.sqs }
func rqs(e *ethernet) *objects[*receiveQueue] { return &e.rqs }

var ethCommands = map[uint16]func(*ethernet, *call) status{
	opCreateTis:  (*ethernet).createTIS,
	opModifyTis:  on(tises, modifyTisInTisn, ignore), // its priority and port: there is one of each
	opDestroyTis: drop(tises, destroyTisInTisn, (*tis).end),
	opCreateTir:  (*ethernet).createTIR,
	opModifyTir:  on(tirs, modifyTirInTirn, ignore), // hashing, loopback and aggregation: frames here show nothing of them
	opDestroyTir: drop(tirs, destroyTirInTirn, nil),
	opCreateRqt:  (*ethernet).createRQT,
	opModifyRqt:  on(rqts, modifyRqtInRqtn, (*rqt).modify),
	opDestroyRqt: drop(rqts, destroyRqtInRqtn, (*rqt).end),
	opCreateSq:   (*ethernet).createSQ,
	opModifySq:   on(sqs, modifySqInSqn, (*sendQueue).modify),
	opDestroySq:  drop(sqs, destroySqInSqn, (*sendQueue).close),
	opQuerySq: on(sqs, querySqInSqn, func(q *sendQueue, c *call) status {
		return q.query(querySqOutSqContext.at(c.out), sqcState, sqcWq)
	}),
	opCreateRq:  (*ethernet).createRQ,
	opModifyRq:  on(rqs, modifyRqInRqn, (*receiveQueue).modify),
	opDestroyRq: drop(rqs, destroyRqInRqn, (*receiveQueue).close),
	opQueryRq: on(rqs, queryRqInRqn, func(q *receiveQueue, c *call) status {
		return q.query(queryRqOutRqContext.at(c.out), rqcState, rqcWq)
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

func (q *ethQueue) close() status {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.state = stateReset
	q.ring.close()
	return statusOk
}

func (e *ethernet) createTIS(c *call) status {
	ctx := createTisInCtx.at(c.in)
	if !e.tds.has(tiscTransportDomain.u32(ctx)) {
		return statusBadResErr
	}
	if tiscTlsEn.is(ctx) || tiscUnderlayQpn.is(ctx) {
		return statusBadParamErr
	}
	t, st := &tis{e: e}, statusOk
	t.num, st = e.tises.give(t, 1, 1<<16, c, createTisOutTisn)
	return st
}

func (t *tis) end() status {
	for _, q := range t.e.sqs.all() {
		if sqcTisLstSz.is(q.context) && sqcTisNum0.u32(q.context) == t.num {
			return statusBadResStateErr
		}
	}
	return statusOk
}

// Values of tirc.disp_type.
const (
	tirDirect   = 0
	tirIndirect = 1
)

func (e *ethernet) createTIR(c *call) status {
	ctx := bytes.Clone(createTirInCtx.at(c.in))
	switch typ := tircDispType.int(ctx); {
	case !e.tds.has(tircTransportDomain.u32(ctx)),
		typ == tirDirect && !e.rqs.has(tircInlineRqn.u32(ctx)), typ == tirIndirect && !e.rqts.has(tircIndirectTable.u32(ctx)):
		return statusBadResErr
	case typ != tirDirect && typ != tirIndirect:
		return statusBadParamErr
	}
	_, st := e.tirs.give(ctx, 1, 1<<16, c, createTirOutTirn)
	if st == statusOk && tircRxHashFieldSelectorOuter.is(ctx) { // those of single queues have a function without fields
		e.rss.Store(tircIndirectTable.u32(ctx))
	}
	return st
}

// queuesOf returns the queues that the context of an RQT names, which are behind it.
func (e *ethernet) queuesOf(ctx []byte, most int) (rqns []uint32, st status) {
	n, rest := rqtcRqtActualSize.int(ctx), ctx[rqtcSize:]
	switch {
	case n > most:
		return nil, statusBadParamErr
	case n == 0 || n > len(rest)/4:
		return nil, statusBadInpLenErr
	}
	rqns = make([]uint32, n)
	for i := range rqns {
		rqns[i] = be.Uint32(rest[i*4:]) & 0xffffff
		if !e.rqs.has(rqns[i]) {
			return nil, statusBadResErr
		}
	}
	return rqns, statusOk
}

func (e *ethernet) createRQT(c *call) status {
	ctx := createRqtInRqtContext.from(c.in)
	most := rqtcRqtMaxSize.int(ctx)
	if most > 1<<e.caps.int(capGeneral, cmdHcaCapLogMaxRqtSize) {
		return statusBadParamErr
	}
	rqns, st := e.queuesOf(ctx, most)
	if st != statusOk {
		return st
	}
	t := &rqt{e: e, most: most, rqns: rqns}
	t.num, st = e.rqts.give(t, 1, 1<<logRQTs, c, createRqtOutRqtn)
	return st
}

func (t *rqt) modify(c *call) status {
	rqns, st := t.e.queuesOf(modifyRqtInCtx.from(c.in), t.most)
	if st != statusOk {
		return st
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rqns = rqns
	return statusOk
}

func (t *rqt) end() status {
	for _, ctx := range t.e.tirs.all() {
		if tircDispType.int(ctx) == tirIndirect && tircIndirectTable.u32(ctx) == t.num {
			return statusBadResStateErr
		}
	}
	return statusOk
}

// Values of wq.wq_type.
const wqCyclic = 1

// open maps the ring of a queue whose context has w as its struct wq, which the list of pages
// follows.
func (q *ethQueue) open(e *ethernet, w []byte, cqn uint32) status {
	var ok bool
	if q.cq, ok = e.cqs.get(cqn); !ok {
		return statusBadResErr
	}
	logSize, logStride := wqLogWqSz.int(w), wqLogWqStride.int(w)
	switch {
	case wqWqType.int(w) != wqCyclic, wqWqSignature.is(w), wqDbrUmemValid.is(w), wqWqUmemValid.is(w),
		logSize > e.caps.int(capGeneral, cmdHcaCapLogMaxWqSz), logStride < 4, logStride > 10:
		return statusBadParamErr
	}
	q.pd = wqPd.u32(w) // of a queue that drops everything, it is none
	q.ring.count, q.ring.stride = 1<<logSize, 1<<logStride
	return e.env.mapRing(&q.ring, wqPas.at(w), wqLogWqPgSz.int(w), wqPageOffset.int(w), wqDbrAddr.get(w))
}

// move changes a queue's state: from reset to ready, from anywhere to error and to reset.
func (q *ethQueue) move(from, to int) status {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.state != from:
		return statusBadResStateErr
	case to == from:
	case to == stateReset:
		q.head = 0
	case to == stateReady && from != stateReset, to != stateReady && to != stateError:
		return statusBadResStateErr
	}
	q.state = to
	return statusOk
}

// query writes the context of a queue, with its state and work queue as they are now.
func (q *ethQueue) query(ctx []byte, state, wq field) status {
	copy(ctx, q.context)
	q.mu.Lock()
	defer q.mu.Unlock()
	state.set(ctx, uint64(q.state))
	wqHwCounter.set(wq.at(ctx), uint64(q.head))
	return statusOk
}

func (e *ethernet) createSQ(c *call) status {
	ctx := createSqInCtx.from(c.in)
	w := sqcWq.from(ctx)
	switch {
	case sqcHairpin.is(ctx), sqcAllowMultiPktSendWqe.is(ctx):
		return statusBadParamErr
	case sqcTisLstSz.is(ctx) && !e.tises.has(sqcTisNum0.u32(ctx)), !e.uars.has(wqUarPage.u32(w)):
		return statusBadResErr
	case wqLogWqStride.int(w) != 6:
		return statusBadParamErr
	}
	q := &sendQueue{ethQueue: ethQueue{context: bytes.Clone(ctx[:sqcSize])}, uar: wqUarPage.u32(w)}
	st := q.open(e, w, sqcCqn.u32(ctx))
	if st != statusOk {
		return st
	}
	if q.num, st = e.sqs.give(q, minSQ, maxSQ, c, createSqOutSqn); st != statusOk {
		q.close()
	}
	return st
}

func (q *sendQueue) modify(c *call) status {
	to := sqcState.int(modifySqInCtx.at(c.in))
	st := q.move(modifySqInSqState.int(c.in), to)
	if st == statusOk && to == stateReset {
		q.shown.reset()
	}
	return st
}

func (e *ethernet) createRQ(c *call) status {
	ctx := createRqInCtx.from(c.in)
	if rqcHairpin.is(ctx) || rqcMemRqType.is(ctx) || rqcScatterFcs.is(ctx) {
		return statusBadParamErr
	}
	q := &receiveQueue{ethQueue: ethQueue{context: bytes.Clone(ctx[:rqcSize])}, keepVLAN: rqcVsd.is(ctx)}
	st := q.open(e, rqcWq.from(ctx), rqcCqn.u32(ctx))
	if st != statusOk {
		return st
	}
	if q.num, st = e.rqs.give(q, minRQ, maxRQ, c, createRqOutRqn); st != statusOk {
		q.close()
	}
	return st
}

func (q *receiveQueue) modify(c *call) status {
	const selectVSD, selectCounters = 1 << 1, 1 << 3 // modify_bitmask
	mask := modifyRqInModifyBitmask.get(c.in)
	if mask&^(selectVSD|selectCounters) != 0 {
		return statusBadParamErr
	}
	if st := q.move(modifyRqInRqState.int(c.in), rqcState.int(modifyRqInCtx.at(c.in))); st != statusOk {
		return st
	}
	if mask&selectVSD != 0 {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.keepVLAN = rqcVsd.is(modifyRqInCtx.at(c.in))
	}
	return statusOk
}
