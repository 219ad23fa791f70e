//go:build linux

package erdma

import (
	"fmt"
	"sync"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/engine"
	"github.com/goverbs/verbs/lab/internal/pcidev"
	"github.com/goverbs/verbs/mmap"
)

// cq is a completion queue: a ring of entries whose owner bit changes with each round. The driver tells
// its consumer index only when it arms the queue, so that the adapter cannot know whether it overruns:
// drivers make their queues large enough.
type cq struct {
	d     *Device
	num   uint32
	eqn   uint32
	owner owner
	e     *engine.CQ

	mu     sync.Mutex
	ring   pcidev.Ring // unmapped when the CQ has been destroyed
	pi     uint32      // counts on over rounds
	arming pcidev.Arming
	late   []lateEntry // a late entry and those behind it, see FaultLate
}

type cqe [unit]byte

type lateEntry struct {
	e         cqe
	solicited bool
}

// Offsets in a completion, struct erdma_cqe, which is big-endian.
const (
	cqeIndex = 4
	cqeQPN   = 8
	cqeImm   = 12
	cqeSize  = 16

	cqeSource = 28 // of a datagram
)

// createCQ is struct erdma_cmdq_create_cq_req.
func (d *Device) createCQ(b []byte, _ *response) error {
	cfg0, cfg1, off := le.Uint32(b[8:]), le.Uint32(b[20:]), le.Uint32(b[32:])
	q := &cq{d: d, num: cfg0 & 0xfffff, eqn: cfg1 & 0x3ff}
	block, depth := uint64(4096)<<(cfg0>>20&15), cfg0>>24
	switch {
	case q.num == 0 || q.num >= maxCQs || d.cqs.Has(q.num), depth > logCQEs, uint64(off) >= block:
		return fmt.Errorf("CQ %d of 1<<%d entries at %#x of a block of %#x: %w", q.num, depth, off, block, errInvalid)
	case q.eqn == 0 || !d.eqs.Has(q.eqn): // 0 is the one of commands
		return fmt.Errorf("CQ %d: no EQ %d: %w", q.num, q.eqn, errInvalid)
	}
	var err error
	if cfg1>>11&1 != 0 { // a program's
		if q.owner, err = d.ownerOf(le.Uint32(b[36:]) & 0xffff); err != nil {
			return err
		}
	}
	if err = d.record8(le.Uint64(b[24:])); err != nil {
		return err
	}
	level, count := int(cfg1>>15&1), int(cfg1>>16)
	if count == 1 {
		level = 0 // the address is that of the block, which the driver of 6.1 calls a table (create_cq_cmd)
	}
	list, err := d.table(level, le.Uint64(b[12:]), nil, count)
	if err != nil {
		return err
	}
	if q.ring, err = d.ring(list, block, int(off), 1<<depth, unit); err != nil {
		return err
	}
	if q.e, err = d.eng.CreateCQ(engine.CQInit{Deliver: q.deliver}); err != nil {
		q.ring.Unmap()
		return err
	}
	d.cqs.Put(q.num, q)
	return nil
}

// destroyCQ is struct erdma_cmdq_destroy_cq_req.
func (d *Device) destroyCQ(b []byte, _ *response) error {
	num := le.Uint32(b[8:])
	q, ok := d.cqs.Get(num)
	if !ok {
		return fmt.Errorf("no CQ %d: %w", num, errInvalid)
	}
	if err := q.e.Destroy(); err != nil { // QPs use it
		return fmt.Errorf("CQ %d: %w", num, err)
	}
	d.cqs.Remove(num)
	q.unmap()
	return nil
}

// destroy ends the queue, which no QP uses.
func (q *cq) destroy() {
	q.e.Destroy()
	q.unmap()
}

// unmap ends the queue's use of the guest's memory.
func (q *cq) unmap() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ring.Unmap()
	q.arming.State, q.late = pcidev.NotArmed, nil
}

// deliver makes an entry of a completion. The engine's QP is locked.
func (q *cq) deliver(w engine.Completion) bool {
	p := w.Owner.(*qp)
	if p.half(&w) {
		return true
	}
	if status := verbs.WCStatus(w.Status); status != verbs.WCSuccess {
		p.failed()
		if !w.Recv && status != verbs.WCFlushErr {
			p.broken()
		}
	}
	e := p.entry(&w)
	q.put(&e, w.Solicited)
	return true
}

// put adds an entry, and raises an event if the guest has armed the queue for it.
func (q *cq) put(e *cqe, solicited bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ring.View == nil || !q.d.spoil(e) {
		return
	}
	if q.d.faults.Late(q.writeLate) || len(q.late) > 0 {
		q.late = append(q.late, lateEntry{*e, solicited})
		return
	}
	q.write(e, solicited)
}

// writeLate writes the late entries.
func (q *cq) writeLate() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range q.late {
		q.write(&q.late[i].e, q.late[i].solicited)
	}
	q.late = nil
}

func (q *cq) write(e *cqe, solicited bool) {
	h := be.Uint32(e[:]) | ownerBit(&q.ring, q.pi)
	copy(q.ring.At(q.pi)[4:], e[4:])
	q.d.record("cqe %d +%#x %08x%x", q.num, q.pi%q.ring.Count, h, e[4:])
	q.ring.Word(q.pi, 0).Store(pcidev.BigEndian(h)) // last, as it hands the entry to the driver
	q.pi++
	if solicited {
		q.arming.Solicited = q.pi
	}
	if q.arming.Due(q.pi) {
		q.fire()
	}
}

// fire raises the event.
func (q *cq) fire() {
	q.arming.Fired(q.pi)
	q.d.event(q.eqn, q.num, q.pi&pcidev.IndexMask)
}

// arm requests an event for an entry, or a solicited entry, from index ci on.
func (q *cq) arm(ci uint32, solicitedOnly bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ring.View != nil && q.arming.Arm(q.pi, ci, solicitedOnly) {
		q.fire()
	}
}

// spoil applies the pending faults to an entry. It reports false if the entry is to be lost.
func (d *Device) spoil(e *cqe) bool {
	if _, lost := d.faults.Take(pcidev.FaultLost); lost {
		return false
	}
	h := be.Uint32(e[:])
	if s, ok := d.faults.Take(pcidev.FaultCompletion); ok {
		h = h&^0xff | uint32(s)
	}
	if op, ok := d.faults.Take(pcidev.FaultOpcode); ok {
		h = h&^(0xff<<cqeOpcode) | uint32(op)<<cqeOpcode
	}
	be.PutUint32(e[:], h)
	if n, ok := d.faults.Take(pcidev.FaultQPN); ok {
		be.PutUint32(e[cqeQPN:], be.Uint32(e[cqeQPN:])+uint32(n))
	}
	if n, ok := d.faults.Take(pcidev.FaultCounter); ok {
		be.PutUint32(e[cqeIndex:], be.Uint32(e[cqeIndex:])+uint32(n))
	}
	return true
}

// Statuses of completions, enum erdma_wc_status.
const (
	wcGeneral       = 1
	wcRecvFormat    = 2
	wcRecvKey       = 3
	wcRecvAddress   = 4
	wcRecvRights    = 5
	wcSendFormat    = 8
	wcSendKey       = 10
	wcSendAddress   = 11
	wcSendRights    = 12
	wcFlush         = 15
	wcRetryExceeded = 16
)

// statuses are those of sends, and of receives, by the engine's. The engine does not tell a key that
// does not exist from one that lacks a right, or that ends too early.
var statuses = map[verbs.WCStatus][2]uint32{
	verbs.WCSuccess: {0, 0}, verbs.WCFlushErr: {wcFlush, wcFlush},
	verbs.WCLocQPOpErr: {wcSendFormat, wcRecvFormat}, verbs.WCLocProtErr: {wcSendAddress, wcRecvAddress}, verbs.WCLocAccessErr: {wcSendRights, wcRecvRights},
	verbs.WCLocLenErr: {wcSendFormat, wcRecvFormat}, verbs.WCMWBindErr: {wcSendKey, wcGeneral},
	verbs.WCRemAccessErr: {wcRecvAddress, wcRecvAddress}, verbs.WCRemInvReqErr: {wcGeneral, wcGeneral}, verbs.WCRemOpErr: {wcGeneral, wcGeneral},
	verbs.WCRetryExcErr: {wcRetryExceeded, wcGeneral}, verbs.WCRNRRetryExcErr: {wcRetryExceeded, wcGeneral},
}

// entry returns the entry of a completion, without the owner bit.
func (q *qp) entry(w *engine.Completion) (e cqe) {
	typ, op := uint32(typeSend), uint32(byte(w.WrId>>idOpcode))
	if w.Recv {
		typ, op = typeRecv, opRecv
	}
	both, ok := statuses[verbs.WCStatus(w.Status)]
	if !ok {
		both = [2]uint32{wcGeneral, wcGeneral}
	}
	status := both[typ]
	if w.Recv && w.WrId&idMalformed != 0 {
		status = wcRecvFormat
	}
	if w.Recv && status == 0 {
		const withInvalidate = 1 << 2 // of the engine
		q.d.counts.received.Add(uint64(w.ByteLen))
		switch {
		case w.WcFlags&withInvalidate != 0:
			op = opRecvInv
			be.PutUint32(e[cqeImm:], *w.Ex.InvalidateRkey())
		case w.WcFlags&uint32(verbs.WCWithImm) != 0:
			op = opRecvSendImm
			if w.Opcode == uint32(verbs.WCRecvRDMAImm) {
				op = opRecvImm
			}
			le.PutUint32(e[cqeImm:], be.Uint32(mmap.Bytes(w.Ex.ImmData())))
		}
		if q.datagram {
			be.PutUint32(e[cqeSource:], source(w))
		}
	}
	be.PutUint32(e[:], op<<cqeOpcode|typ<<cqeType|status)
	be.PutUint32(e[cqeIndex:], uint32(uint16(w.WrId)))
	be.PutUint32(e[cqeQPN:], q.num)
	be.PutUint32(e[cqeSize:], w.ByteLen)
	return e
}
