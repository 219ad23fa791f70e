//go:build linux

package connectx

import (
	"bytes"
	"sync"
	"sync/atomic"
)

// ethernet is the network function: what mlx5e drives. Requests of its send queues go to the wire,
// and frames from there to the receive queue that the indirection table has for their flow.
type ethernet struct {
	d    *Device
	wire *frames // nil without one

	tises, tirs objects[[]byte] // contexts
	rqts        objects[*rqt]
	sqs         objects[*sendQueue]
	rqs         objects[*receiveQueue]
	flow        flowTables

	rss      atomic.Uint32 // number of the RQT whose TIRs hash, 0 without
	rx, tx   [3]traffic    // by class
	noBuffer atomic.Uint32 // frames for which no receive was posted
}

// rqt is a table of receive queues.
type rqt struct {
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
	shown shown
}

type receiveQueue struct {
	ethQueue
	keepVLAN bool
}

func tises(d *Device) *objects[[]byte]      { return &d.eth.tises }
func tirs(d *Device) *objects[[]byte]       { return &d.eth.tirs }
func rqts(d *Device) *objects[*rqt]         { return &d.eth.rqts }
func sqs(d *Device) *objects[*sendQueue]    { return &d.eth.sqs }
func rqs(d *Device) *objects[*receiveQueue] { return &d.eth.rqs }

var ethCommands = map[uint16]func(*Device, *call) status{
	opCreateTis:  (*Device).createTIS,
	opModifyTis:  on(tises, modifyTisInTisn, ignore), // its priority and port: there is one of each
	opDestroyTis: drop(tises, destroyTisInTisn, (*Device).endTIS),
	opCreateTir:  (*Device).createTIR,
	opModifyTir:  on(tirs, modifyTirInTirn, ignore), // hashing, loopback and aggregation: frames here show nothing of them
	opDestroyTir: drop(tirs, destroyTirInTirn, nil),
	opCreateRqt:  (*Device).createRQT,
	opModifyRqt:  on(rqts, modifyRqtInRqtn, (*Device).modifyRQT),
	opDestroyRqt: drop(rqts, destroyRqtInRqtn, (*Device).endRQT),
	opCreateSq:   (*Device).createSQ,
	opModifySq:   on(sqs, modifySqInSqn, (*Device).modifySQ),
	opDestroySq:  drop(sqs, destroySqInSqn, func(_ *Device, q *sendQueue, _ uint32) status { return q.close() }),
	opQuerySq: on(sqs, querySqInSqn, func(_ *Device, q *sendQueue, c *call) status {
		return q.query(querySqOutSqContext.at(c.out), sqcState, sqcWq)
	}),
	opCreateRq:  (*Device).createRQ,
	opModifyRq:  on(rqs, modifyRqInRqn, (*Device).modifyRQ),
	opDestroyRq: drop(rqs, destroyRqInRqn, func(_ *Device, q *receiveQueue, _ uint32) status { return q.close() }),
	opQueryRq: on(rqs, queryRqInRqn, func(_ *Device, q *receiveQueue, c *call) status {
		return q.query(queryRqOutRqContext.at(c.out), rqcState, rqcWq)
	}),
}

func ignore[T any](*Device, T, *call) status { return statusOk }

func (e *ethernet) init(d *Device) {
	e.d = d
	if d.cfg.Wire != nil && !d.cfg.InfiniBand {
		e.wire = d.cfg.Wire.attach(d.cfg.MAC, e.receive)
	}
}

func (e *ethernet) end() {
	if e.wire != nil {
		e.wire.detach()
	}
}

func (e *ethernet) reset() {
	e.rss.Store(0)
	e.tirs.clear()
	e.tises.clear()
	e.rqts.clear()
	for _, q := range e.sqs.clear() {
		q.close()
	}
	for _, q := range e.rqs.clear() {
		q.close()
	}
	e.flow.reset()
}

func (q *ethQueue) close() status {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.state = stateReset
	q.ring.close()
	return statusOk
}

func (d *Device) createTIS(c *call) status {
	ctx := bytes.Clone(createTisInCtx.at(c.in))
	if _, ok := d.res.tds.get(tiscTransportDomain.u32(ctx)); !ok {
		return statusBadResErr
	}
	if tiscTlsEn.is(ctx) || tiscUnderlayQpn.is(ctx) {
		return statusBadParamErr
	}
	num, ok := d.eth.tises.add(ctx, 1, 1<<16)
	if !ok {
		return statusNoResErr
	}
	createTisOutTisn.set(c.out, uint64(num))
	return statusOk
}

func (d *Device) endTIS(_ []byte, num uint32) status {
	for _, q := range d.eth.sqs.all() {
		if sqcTisLstSz.is(q.context) && sqcTisNum0.u32(q.context) == num {
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

func (d *Device) createTIR(c *call) status {
	ctx := bytes.Clone(createTirInCtx.at(c.in))
	if _, ok := d.res.tds.get(tircTransportDomain.u32(ctx)); !ok {
		return statusBadResErr
	}
	switch tircDispType.int(ctx) {
	case tirDirect:
		if _, ok := d.eth.rqs.get(tircInlineRqn.u32(ctx)); !ok {
			return statusBadResErr
		}
	case tirIndirect:
		if _, ok := d.eth.rqts.get(tircIndirectTable.u32(ctx)); !ok {
			return statusBadResErr
		}
	default:
		return statusBadParamErr
	}
	num, ok := d.eth.tirs.add(ctx, 1, 1<<16)
	if !ok {
		return statusNoResErr
	}
	if tircRxHashFieldSelectorOuter.is(ctx) { // those of single queues have a function without fields
		d.eth.rss.Store(tircIndirectTable.u32(ctx))
	}
	createTirOutTirn.set(c.out, uint64(num))
	return statusOk
}

// queuesOf returns the queues that the context of an RQT names, which are behind it.
func (d *Device) queuesOf(ctx []byte) (rqns []uint32, st status) {
	n, rest := rqtcRqtActualSize.int(ctx), ctx[rqtcSize:]
	if n == 0 || n > len(rest)/4 {
		return nil, statusBadInpLenErr
	}
	for i := range n {
		num := be.Uint32(rest[i*4:]) & 0xffffff
		if _, ok := d.eth.rqs.get(num); !ok {
			return nil, statusBadResErr
		}
		rqns = append(rqns, num)
	}
	return rqns, statusOk
}

func (d *Device) createRQT(c *call) status {
	ctx := createRqtInRqtContext.from(c.in)
	if rqtcRqtMaxSize.int(ctx) > 1<<d.caps.int(capGeneral, cmdHcaCapLogMaxRqtSize) || rqtcRqtActualSize.get(ctx) > rqtcRqtMaxSize.get(ctx) {
		return statusBadParamErr
	}
	rqns, st := d.queuesOf(ctx)
	if st != statusOk {
		return st
	}
	num, ok := d.eth.rqts.add(&rqt{rqns: rqns}, 1, 1<<16)
	if !ok {
		return statusNoResErr
	}
	createRqtOutRqtn.set(c.out, uint64(num))
	return statusOk
}

func (d *Device) modifyRQT(t *rqt, c *call) status {
	rqns, st := d.queuesOf(modifyRqtInCtx.from(c.in))
	if st != statusOk {
		return st
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rqns = rqns
	return statusOk
}

func (d *Device) endRQT(_ *rqt, num uint32) status {
	for _, ctx := range d.eth.tirs.all() {
		if tircDispType.int(ctx) == tirIndirect && tircIndirectTable.u32(ctx) == num {
			return statusBadResStateErr
		}
	}
	return statusOk
}

// Values of wq.wq_type.
const wqCyclic = 1

// open maps the ring of a queue whose context has w as its struct wq, which the list of pages
// follows.
func (q *ethQueue) open(d *Device, w []byte, cqn uint32) status {
	var ok bool
	if q.cq, ok = d.t.cqs.get(cqn); !ok {
		return statusBadResErr
	}
	logSize, logStride := wqLogWqSz.int(w), wqLogWqStride.int(w)
	switch {
	case wqWqType.int(w) != wqCyclic, wqWqSignature.is(w), wqDbrUmemValid.is(w), wqWqUmemValid.is(w),
		logSize > d.caps.int(capGeneral, cmdHcaCapLogMaxWqSz), logStride < 4, logStride > 10:
		return statusBadParamErr
	}
	q.pd = wqPd.u32(w) // of a queue that drops everything, it is none
	q.ring.count, q.ring.stride = 1<<logSize, 1<<logStride
	return d.mapRing(&q.ring, wqPas.at(w), wqLogWqPgSz.int(w), wqPageOffset.int(w), wqDbrAddr.get(w))
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

func (d *Device) createSQ(c *call) status {
	ctx := createSqInCtx.from(c.in)
	if sqcHairpin.is(ctx) || sqcAllowMultiPktSendWqe.is(ctx) {
		return statusBadParamErr
	}
	if _, ok := d.eth.tises.get(sqcTisNum0.u32(ctx)); !ok && sqcTisLstSz.is(ctx) {
		return statusBadResErr
	}
	w := sqcWq.from(ctx)
	if _, ok := d.res.uars.get(wqUarPage.u32(w)); !ok {
		return statusBadResErr
	}
	if wqLogWqStride.int(w) != 6 {
		return statusBadParamErr
	}
	q := &sendQueue{ethQueue: ethQueue{context: bytes.Clone(ctx[:sqcSize])}}
	if st := q.open(d, w, sqcCqn.u32(ctx)); st != statusOk {
		return st
	}
	num, ok := d.eth.sqs.add(q, minSQ, maxSQ)
	if !ok {
		q.close()
		return statusNoResErr
	}
	q.num = num
	createSqOutSqn.set(c.out, uint64(num))
	return statusOk
}

func (d *Device) modifySQ(q *sendQueue, c *call) status {
	to := sqcState.int(modifySqInCtx.at(c.in))
	st := q.move(modifySqInSqState.int(c.in), to)
	if st == statusOk && to == stateReset {
		q.shown.reset()
	}
	return st
}

func (d *Device) createRQ(c *call) status {
	ctx := createRqInCtx.from(c.in)
	if rqcHairpin.is(ctx) || rqcMemRqType.is(ctx) || rqcScatterFcs.is(ctx) {
		return statusBadParamErr
	}
	q := &receiveQueue{ethQueue: ethQueue{context: bytes.Clone(ctx[:rqcSize])}, keepVLAN: rqcVsd.is(ctx)}
	if st := q.open(d, rqcWq.from(ctx), rqcCqn.u32(ctx)); st != statusOk {
		return st
	}
	num, ok := d.eth.rqs.add(q, minRQ, maxRQ)
	if !ok {
		q.close()
		return statusNoResErr
	}
	q.num = num
	createRqOutRqn.set(c.out, uint64(num))
	return statusOk
}

func (d *Device) modifyRQ(q *receiveQueue, c *call) status {
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
