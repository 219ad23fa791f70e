//go:build linux

package connectx

import (
	"bytes"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goverbs/verbs/internal/engine"
	"github.com/goverbs/verbs/lab/connectx/internal/ifc"
	"github.com/goverbs/verbs/lab/internal/pcidev"
)

var cqCommands = map[uint16]func(*cqTable, *call) ifc.Status{
	ifc.OpCreateCq:  (*cqTable).create,
	ifc.OpDestroyCq: drop((*cqTable).table, ifc.DestroyCqInCqn, (*cq).destroy),
	ifc.OpQueryCq:   on((*cqTable).table, ifc.QueryCqInCqn, (*cq).query),
	ifc.OpModifyCq:  on((*cqTable).table, ifc.ModifyCqInCqn, (*cq).modify),
}

// cqTable has the completion queues.
type cqTable struct {
	env  *env
	caps *capabilities
	uars *objects[struct{}]
	eqs  *eqTable
	eng  *engine.Device
	objects[*cq]

	overflows atomic.Uint64
}

// cq is a completion queue: a ring of entries whose owner bit changes with each round, so that the
// driver knows a new entry without a producer index. Word 0 of its doorbell record has the consumer
// index, of the first entry that the guest has not taken. Indexes count on over rounds, in 24 bits.
type cq struct {
	num uint32
	uar uint32 // where it takes doorbells
	t   *cqTable
	e   *engine.CQ

	mu      sync.Mutex
	context []byte // struct cqc
	ring    ring   // unmapped when the CQ has been destroyed
	logSize int
	eqn     uint32
	pi      uint32 // producer index
	failed  bool   // it has overrun
	arming  pcidev.Arming
	count   uint32 // entries since the last event
	timer   *time.Timer
	late    []lateEntry // a late entry and those behind it, see FaultLate
}

type lateEntry struct {
	e         cqe
	op        byte
	solicited bool
}

const (
	maxCQs       = 1 << 18 // log_max_cq
	cqRecord     = 0       // word of the doorbell record
	cqOverflow   = 0x9     // cqc.status
	cqErrOverrun = 1       // syndrome of the event
)

func (t *cqTable) create(c *call) ifc.Status {
	ctx := bytes.Clone(ifc.CreateCqInCqContext.At(c.in))
	q := &cq{t: t, uar: ifc.CqcUarPage.U32(ctx), context: ctx, logSize: ifc.CqcLogCqSize.Int(ctx), eqn: ifc.CqcCEqnOrApuElement.U32(ctx)}
	switch {
	// Features without a capability: memory by umem, entries of other sizes than 64 and 128 bytes,
	// compression, and the CQs of the data path accelerator (apu).
	case ifc.CreateCqInCqUmemValid.Is(c.in), ifc.CqcCqeSz.Int(ctx) > 1, ifc.CqcCqeCompEn.Is(ctx), ifc.CqcApuCq.Is(ctx), ifc.CqcDbrUmemValid.Is(ctx),
		q.logSize > t.caps.int(ifc.CapGeneral, ifc.CmdHcaCapLogMaxCqSz):
		return ifc.StatusBadParamErr
	case !t.eqs.Has(q.eqn), !t.uars.Has(q.uar):
		return ifc.StatusBadResErr
	}
	if st := q.mapRing(&q.ring, ctx, ifc.CreateCqInPas.At(c.in), ifc.CqcDbrAddr.Get(ctx)); st != ifc.StatusOk {
		return st
	}
	var err error
	if q.e, err = t.eng.CreateCQ(engine.CQInit{Deliver: q.deliver}); err != nil {
		q.ring.close()
		return ifc.StatusNoResErr
	}
	// The engine has the queue first: once it has a number, a QP may use it, and complete there.
	q.mu.Lock() // a doorbell may guess the number before q.num is set
	var st ifc.Status
	q.num, st = t.give(q, 1, maxCQs-1, c, ifc.CreateCqOutCqn)
	q.mu.Unlock()
	if st != ifc.StatusOk {
		q.e.Destroy()
		q.ring.close()
	}
	return st
}

// completer is the owner of a completion, as the engine has it: a QP.
type completer interface {
	complete(*cq, engine.Completion) bool
}

// deliver hands a completion to its QP. The engine's QP is locked.
func (q *cq) deliver(w engine.Completion) bool { return w.Owner.(completer).complete(q, w) }

func (q *cq) mapRing(r *ring, ctx, list []byte, record uint64) ifc.Status {
	r.Count, r.Stride = 1<<ifc.CqcLogCqSize.Int(ctx), 64<<ifc.CqcCqeSz.Int(ctx)
	return q.t.env.mapRing(r, list, ifc.CqcLogPageSize.Int(ctx), ifc.CqcPageOffset.Int(ctx), record)
}

// destroy ends the queue. After it, nothing writes to the queue's memory.
func (q *cq) destroy() ifc.Status {
	if q.e.Destroy() != nil {
		return ifc.StatusResBusy
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.timer != nil {
		q.timer.Stop()
	}
	q.ring.close()
	q.arming.State, q.late = pcidev.NotArmed, nil
	return ifc.StatusOk
}

func (q *cq) query(c *call) ifc.Status {
	q.mu.Lock()
	defer q.mu.Unlock()
	ctx := ifc.QueryCqOutCqContext.At(c.out)
	copy(ctx, q.context)
	ifc.CqcProducerCounter.Set(ctx, uint64(q.pi))
	ifc.CqcConsumerCounter.Set(ctx, uint64(q.ring.posted(cqRecord)))
	ifc.CqcLastSolicitIndex.Set(ctx, uint64(q.arming.Solicited))
	ifc.CqcLastNotifiedIndex.Set(ctx, uint64(q.arming.Notified))
	// MLX5_CQC_ST_FIRED, _SOLICITED_NOTIFICATION_REQUEST_ARMED and _NOTIFICATION_REQUEST_ARMED.
	ifc.CqcSt.Set(ctx, uint64([...]int{pcidev.NotArmed: 10, pcidev.ArmedSolicited: 6, pcidev.ArmedAny: 9}[q.arming.State]))
	if q.failed {
		ifc.CqcStatus.Set(ctx, cqOverflow)
	}
	return ifc.StatusOk
}

// Bits of modify_field_select, MLX5_MODIFY_CQ_MASK_* of a resize and MLX5_CQ_MODIFY_* of others.
const (
	cqResize     = 1 // op_mod
	cqSelectSize = 1<<0 | 1<<1 | 1<<2
	cqPeriod     = 1 << 0
	cqCount      = 1 << 1
	cqOverrun    = 1 << 2
	cqPeriodMode = 1 << 4
)

func (q *cq) modify(c *call) ifc.Status {
	ctx, mask := ifc.ModifyCqInCqContext.At(c.in), ifc.ModifyCqInModifyFieldSelectResizeFieldSelect.Int(c.in)
	if c.mod == cqResize {
		if mask&cqSelectSize != cqSelectSize || mask&^cqSelectSize != 0 {
			return ifc.StatusBadParamErr
		}
		return q.resize(ctx, ifc.ModifyCqInPas.At(c.in))
	}
	if c.mod != 0 || mask&^(cqPeriod|cqCount|cqOverrun|cqPeriodMode) != 0 {
		return ifc.StatusBadParamErr
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for bit, f := range map[int]ifc.Field{cqPeriod: ifc.CqcCqPeriod, cqCount: ifc.CqcCqMaxCount, cqOverrun: ifc.CqcOi, cqPeriodMode: ifc.CqcCqPeriodMode} {
		if mask&bit != 0 {
			f.Copy(q.context, ctx)
		}
	}
	return ifc.StatusOk
}

// resize moves the queue to another ring. Entries do not move: the adapter ends the old ring with an
// entry of its own, and the driver copies those before it that it has not taken (mlx5_ib's
// copy_resize_cqes and libmlx5's mlx5_cq_resize_copy_cqes look for MLX5_CQE_RESIZE_CQ).
func (q *cq) resize(ctx, list []byte) ifc.Status {
	if ifc.CqcLogCqSize.Int(ctx) > q.t.caps.int(ifc.CapGeneral, ifc.CmdHcaCapLogMaxCqSz) || ifc.CqcCqeSz.Int(ctx) > 1 || ifc.CqcCqeSz.Get(ctx) != ifc.CqcCqeSz.Get(q.context) {
		return ifc.StatusBadParamErr
	}
	var to ring
	if st := q.mapRing(&to, ctx, list, ifc.CqcDbrAddr.Get(q.context)); st != ifc.StatusOk {
		return st
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if n := q.used() + uint32(len(q.late)); n >= to.Count || n >= q.ring.Count || q.failed {
		to.close()
		return ifc.StatusBadSizeOutsCqesErr
	}
	q.flushLate()
	q.write(new(cqe), cqeResize, false)
	q.ring.close()
	q.ring, q.logSize = to, ifc.CqcLogCqSize.Int(ctx)
	for _, f := range []ifc.Field{ifc.CqcLogCqSize, ifc.CqcLogPageSize, ifc.CqcPageOffset} {
		f.Copy(q.context, ctx)
	}
	return ifc.StatusOk
}

// used returns the number of entries that the guest has not taken. It is more than the ring has if
// the guest's consumer index is invalid: callers treat that as full.
func (q *cq) used() uint32 { return (q.pi - q.ring.posted(cqRecord)) & indexMask }

// put adds an entry, and raises an event if the guest has armed the queue for it. It reports false if
// there is no room: the queue has then failed for good, and so have the QPs that complete there.
func (q *cq) put(e *cqe, op byte, solicited bool) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ring.View == nil || q.failed {
		return false
	}
	if q.used()+uint32(len(q.late)) >= q.ring.Count && !ifc.CqcOi.Is(q.context) {
		q.failed = true
		q.t.overflows.Add(1)
		// mlx5_core logs it (eq.c, cq_err_event_notifier), and mlx5_ib reports IBV_EVENT_CQ_ERR.
		var data [12]byte // struct mlx5_eqe_cq_err
		be.PutUint32(data[:], q.num)
		data[11] = cqErrOverrun
		q.t.eqs.event(ifc.EventCqError, 0, data[:])
		return false
	}
	op, ok := e.spoil(&q.t.env.faults, op)
	if !ok {
		return true
	}
	if q.t.env.faults.Late(q.writeLate) || len(q.late) > 0 {
		q.late = append(q.late, lateEntry{*e, op, solicited})
		return true
	}
	q.add(e, op, solicited)
	return true
}

func (q *cq) add(e *cqe, op byte, solicited bool) {
	q.write(e, op, solicited)
	q.count++
	q.notify()
}

// writeLate writes the late entries.
func (q *cq) writeLate() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.flushLate()
}

func (q *cq) flushLate() {
	if q.ring.View != nil {
		for i := range q.late {
			q.add(&q.late[i].e, q.late[i].op, q.late[i].solicited)
		}
	}
	q.late = nil
}

// write writes an entry: the word with the owner bit last, as the driver takes the entry once it sees
// the bit (mlx5_ib's get_sw_cqe). Of an entry of 128 bytes it is the second half.
func (q *cq) write(e *cqe, op byte, solicited bool) {
	i := q.pi & (q.ring.Count - 1)
	to := q.ring.At(i)
	to = to[len(to)-64:]
	e[cqeOpOwn] = op<<4 | byte(q.pi>>q.logSize&1)
	q.pi = (q.pi + 1) & indexMask
	if solicited {
		e[cqeOpOwn] |= 1 << 1
		q.arming.Solicited = q.pi
	}
	copy(to[:60], e[:60])
	q.t.env.record(Event{Kind: RecordCQE, Number: q.num, Offset: int(i), In: e[:]})
	q.ring.Word(i, q.ring.Stride-4).Store(pcidev.BigEndian(be.Uint32(e[60:])))
}

// arm requests an event for an entry, or a solicited entry, from index ci on.
func (q *cq) arm(ci uint32, solicitedOnly bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ring.View != nil && q.arming.Arm(q.pi, ci, solicitedOnly) {
		q.fire()
	}
}

// notify raises the event if the queue is armed for its last entry. With moderation it waits for
// cq_max_count entries or for cq_period microseconds.
func (q *cq) notify() {
	if !q.arming.Due(q.pi) {
		return
	}
	// mlx5_core_modify_cq_moderation and mlx5e's net_dim set them. Zero of either turns moderation off.
	most, period := ifc.CqcCqMaxCount.U32(q.context), ifc.CqcCqPeriod.Int(q.context)
	if most <= 1 || period == 0 || q.count >= most {
		q.fire()
		return
	}
	if q.timer == nil {
		q.timer = time.AfterFunc(time.Duration(period)*time.Microsecond, func() {
			q.mu.Lock()
			defer q.mu.Unlock()
			q.timer = nil
			if q.arming.State != pcidev.NotArmed && q.ring.View != nil {
				q.fire()
			}
		})
	}
}

func (q *cq) fire() {
	q.arming.Fired(q.pi)
	q.count = 0
	q.t.eqs.completion(q.eqn, q.num)
}

// arm handles the two words of a CQ's doorbell: the consumer index with a flag, and the CQ's number
// (mlx5_cq_arm, libmlx5's mlx5_arm_cq).
func (t *cqTable) arm(uar, cmd, cqn uint32) {
	const solicitedOnly = 1 << 24
	if q, ok := t.Get(cqn & indexMask); ok && q.uar == uar {
		q.arm(cmd&indexMask, cmd&solicitedOnly != 0)
	}
}
