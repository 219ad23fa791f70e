//go:build linux

package connectx

import (
	"bytes"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goverbs/verbs/internal/engine"
	"github.com/goverbs/verbs/lab/connectx/internal/ifc"
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

// cq is a completion queue: a ring of entries whose owner bit changes with each round. Word 0 of
// its doorbell record has the index of the first entry that the guest has not taken. Indexes have
// 24 bits.
type cq struct {
	num uint32
	uar uint32 // whose doorbells are its
	t   *cqTable
	e   *engine.CQ

	mu        sync.Mutex
	context   []byte // struct cqc
	ring      ring   // unmapped when the CQ has been destroyed
	logSize   int
	eqn       uint32
	pi        uint32
	solicited uint32 // index behind the last solicited entry
	notified  uint32 // index behind the last entry when an event was raised
	failed    bool   // it has overrun
	armed     armState
	count     uint32 // entries since the last event
	timer     *time.Timer
	late      []lateEntry // behind a late one, see FaultLate
}

type lateEntry struct {
	e         cqe
	op        byte
	solicited bool
}

type armState uint8

const (
	notArmed armState = iota
	armedSolicited
	armedAny
)

const (
	maxCQs       = 1 << 18 // log_max_cq
	cqRecord     = 0       // word of the record
	cqOverflow   = 0x9     // cqc.status
	cqErrOverrun = 1       // syndrome of the event
)

func (t *cqTable) create(c *call) ifc.Status {
	ctx := bytes.Clone(ifc.CreateCqInCqContext.At(c.in))
	q := &cq{t: t, uar: ifc.CqcUarPage.U32(ctx), context: ctx, logSize: ifc.CqcLogCqSize.Int(ctx), eqn: ifc.CqcCEqnOrApuElement.U32(ctx)}
	switch {
	// Without what the adapter has not: memory by umem, entries of other sizes than 64 and 128
	// bytes, compression, and the CQs of DPA (apu).
	case ifc.CreateCqInCqUmemValid.Is(c.in), ifc.CqcCqeSz.Int(ctx) > 1, ifc.CqcCqeCompEn.Is(ctx), ifc.CqcApuCq.Is(ctx), ifc.CqcDbrUmemValid.Is(ctx),
		q.logSize > t.caps.int(ifc.CapGeneral, ifc.CmdHcaCapLogMaxCqSz):
		return ifc.StatusBadParamErr
	case !t.eqs.has(q.eqn), !t.uars.has(q.uar):
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
	// The engine knows the queue first, as a completion may come as soon as a QP has it.
	q.mu.Lock() // a doorbell may guess the number
	var st ifc.Status
	q.num, st = t.give(q, 1, maxCQs-1, c, ifc.CreateCqOutCqn)
	q.mu.Unlock()
	if st != ifc.StatusOk {
		q.e.Destroy()
		q.ring.close()
	}
	return st
}

// completer is what the engine knows as the owner of a completion: a QP.
type completer interface {
	complete(*cq, engine.Completion) bool
}

// deliver takes a completion. The engine's QP is locked.
func (q *cq) deliver(w engine.Completion) bool { return w.Owner.(completer).complete(q, w) }

func (q *cq) mapRing(r *ring, ctx, list []byte, record uint64) ifc.Status {
	r.count, r.stride = 1<<ifc.CqcLogCqSize.Int(ctx), 64<<ifc.CqcCqeSz.Int(ctx)
	return q.t.env.mapRing(r, list, ifc.CqcLogPageSize.Int(ctx), ifc.CqcPageOffset.Int(ctx), record)
}

// destroy ends the queue. Nothing is written to it afterwards.
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
	q.armed, q.late = notArmed, nil
	return ifc.StatusOk
}

func (q *cq) query(c *call) ifc.Status {
	q.mu.Lock()
	defer q.mu.Unlock()
	ctx := ifc.QueryCqOutCqContext.At(c.out)
	copy(ctx, q.context)
	ifc.CqcProducerCounter.Set(ctx, uint64(q.pi))
	ifc.CqcConsumerCounter.Set(ctx, uint64(q.ring.posted(cqRecord)))
	ifc.CqcLastSolicitIndex.Set(ctx, uint64(q.solicited))
	ifc.CqcLastNotifiedIndex.Set(ctx, uint64(q.notified))
	// MLX5_CQC_ST_FIRED, _SOLICITED_NOTIFICATION_REQUEST_ARMED and _NOTIFICATION_REQUEST_ARMED.
	ifc.CqcSt.Set(ctx, uint64([...]int{notArmed: 10, armedSolicited: 6, armedAny: 9}[q.armed]))
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

// resize moves the queue to another ring. Its last entry in the old one tells the driver, which
// copies what it has not taken to the places behind theirs (mlx5_ib's copy_resize_cqes, libmlx5's
// mlx5_cq_resize_copy_cqes: both look for MLX5_CQE_RESIZE_CQ).
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
	if n := q.used() + uint32(len(q.late)); n >= to.count || n >= q.ring.count || q.failed {
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

// used returns the number of entries that the guest has not taken. A number that is larger than the
// ring is an index that the guest has made up.
func (q *cq) used() uint32 { return (q.pi - q.ring.posted(cqRecord)) & indexMask }

// put adds an entry, and raises the event that the guest has asked for. It reports false if there
// is no room: the queue has then failed for good, as has what completes there.
func (q *cq) put(e *cqe, op byte, solicited bool) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ring.view == nil || q.failed {
		return false
	}
	if q.used()+uint32(len(q.late)) >= q.ring.count && !ifc.CqcOi.Is(q.context) {
		q.failed = true
		q.t.overflows.Add(1)
		// mlx5_core logs it (eq.c, cq_err_event_notifier) and mlx5_ib tells the program:
		// IBV_EVENT_CQ_ERR.
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
	if q.t.env.faults.late(q) || len(q.late) > 0 {
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

// writeLate writes the entries that are late.
func (q *cq) writeLate() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.flushLate()
}

func (q *cq) flushLate() {
	if q.ring.view != nil {
		for i := range q.late {
			q.add(&q.late[i].e, q.late[i].op, q.late[i].solicited)
		}
	}
	q.late = nil
}

// write writes an entry: the word with the owner bit last. The bit changes with each round through
// the ring, so that a driver knows a new entry from an old one (mlx5_ib's get_sw_cqe). In entries
// of 128 bytes it is the upper half, with the owner bit at the very end.
func (q *cq) write(e *cqe, op byte, solicited bool) {
	i := q.pi & (q.ring.count - 1)
	to := q.ring.at(i)
	to = to[len(to)-64:]
	e[cqeOpOwn] = op<<4 | byte(q.pi>>q.logSize&1)
	q.pi = (q.pi + 1) & indexMask
	if solicited {
		e[cqeOpOwn] |= 1 << 1
		q.solicited = q.pi
	}
	copy(to[:60], e[:60])
	q.t.env.record(Event{Kind: RecordCQE, Number: q.num, Offset: int(i), In: e[:]})
	last := q.ring.start + int(i+1)*q.ring.stride - 4
	q.ring.view.Word(last).Store(bigEndian(be.Uint32(e[60:])))
}

// arm asks for an event when there is an entry behind index ci, or a solicited one. An entry that
// the last event was about raises no other, as perftest relies on: it arms the queue before it
// takes the entries.
func (q *cq) arm(ci uint32, solicitedOnly bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ring.view == nil {
		return
	}
	q.armed = armedAny
	last := q.pi
	if solicitedOnly {
		q.armed, last = armedSolicited, q.solicited
	}
	if after(last, ci) && after(last, q.notified) {
		q.fire()
	}
}

// notify raises the event if the queue is armed for its last entry. With moderation it waits until
// there are several, or for a time.
func (q *cq) notify() {
	if q.armed == notArmed || q.armed == armedSolicited && q.solicited != q.pi {
		return
	}
	// As mlx5_core_modify_cq_moderation and mlx5e's net_dim set them: zero of either is no
	// moderation.
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
			if q.armed != notArmed && q.ring.view != nil {
				q.fire()
			}
		})
	}
}

// after reports whether index a is behind index b.
func after(a, b uint32) bool {
	ahead := (a - b) & indexMask
	return ahead > 0 && ahead <= indexMask/2
}

func (q *cq) fire() {
	q.armed, q.count, q.notified = notArmed, 0, q.pi
	q.t.eqs.completion(q.eqn, q.num)
}

// arm takes the two words of a CQ's doorbell (libmlx5's mlx5_arm_cq).
func (t *cqTable) arm(uar, cmd, cqn uint32) {
	const solicitedOnly = 1 << 24
	if q, ok := t.get(cqn & indexMask); ok && q.uar == uar {
		q.arm(cmd&indexMask, cmd&solicitedOnly != 0)
	}
}
