package toy

import (
	"sync/atomic"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/provider"
)

// window is the requests of a queue that are in flight, from tail to head.
type window struct {
	ids  []uint64
	mask uint32
	head atomic.Uint32 // requests posted since RESET
	tail atomic.Uint32 // requests completed; Take advances it, with the CQ's lock
}

func newWindow(n int) window { return window{ids: make([]uint64, n), mask: uint32(n - 1)} }

// full reports whether there is no room for another request behind head.
func (w *window) full(head uint32) bool { return head-w.tail.Load() > w.mask }

// complete returns the ID of request i, and frees its room and that of those before it, which were not
// signaled. ok is false if it is not in flight.
func (w *window) complete(i uint32) (id uint64, ok bool) {
	tail := w.tail.Load()
	if i-tail >= w.head.Load()-tail {
		return 0, false
	}
	id = w.ids[i&w.mask]
	w.tail.Store(i + 1)
	return id, true
}

func (w *window) reset() {
	w.head.Store(0)
	w.tail.Store(0)
}

// sendQueue is the send queue of a QP.
type sendQueue struct {
	provider.Sends
	window
	qp       *queuePair
	record   *atomic.Uint64
	register *uint64
}

func (q *sendQueue) init(p *queuePair, init *provider.QPInit, info provider.QPInfo) {
	q.InitSends(p.card.dev, init, info)
	q.MaxSGE, q.MaxInline = init.Cap.MaxSendSGE, init.Cap.MaxInline // whatever the kernel says: the elements have no more
	q.window = newWindow(init.Cap.MaxSendWR)
	q.qp, q.record, q.register = p, mmap.Word64(p.record, 0), p.card.register(TOY_DB_SEND)
}

// Post implements [provider.SendQueue].
func (q *sendQueue) Post(wrs []verbs.SendWR) (n int, err error) {
	q.Lock()
	defer q.Unlock()
	if q.Closed {
		return 0, q.Err()
	}
	head := q.head.Load()
	for ; n < len(wrs); n++ {
		switch {
		case q.State < verbs.StateRTS:
			err = verbs.ErrState
		case q.full(head):
			err = verbs.ErrQueueFull
		default:
			err = q.encode(q.qp.sends.at(head), &wrs[n])
		}
		if err != nil {
			err = q.Refused(n, wrs[n].ID, err)
			break
		}
		q.ids[head&q.mask] = wrs[n].ID
		head++
	}
	if n > 0 {
		q.head.Store(head)
		mmap.StoreDoorbell64(q.record, q.register, uint64(q.Num)<<32|uint64(head))
	}
	return n, err
}

// encode writes a request.
func (q *sendQueue) encode(e *ToyWqe, wr *verbs.SendWR) error {
	w := ToyWqe{Imm: wr.Imm, RemoteAddr: wr.RemoteAddr, Rkey: wr.RKey}
	switch wr.Opcode {
	case verbs.OpSendImm:
		w.Flags |= TOY_IMM
		fallthrough
	case verbs.OpSend:
		w.Opcode = TOY_SEND
	case verbs.OpRDMAWrite:
		w.Opcode = TOY_WRITE
	case verbs.OpRDMARead:
		w.Opcode = TOY_READ
	default:
		return provider.RefuseOpcode(wr.Opcode)
	}
	if q.SignalAll || wr.Flags&verbs.SendSignaled != 0 {
		w.Flags |= TOY_SIGNALED
	}
	if wr.Flags&verbs.SendSolicited != 0 {
		w.Flags |= TOY_SOLICITED
	}
	if wr.Flags&verbs.SendFence != 0 {
		w.Flags |= TOY_FENCE
	}
	switch {
	case provider.HasInline(wr):
		n, err := q.CopyInline(mmap.Bytes(&w.Sge)[:q.MaxInline], wr, w.Opcode != TOY_READ)
		if err != nil {
			return err
		}
		w.Flags |= TOY_INLINE
		w.Num = uint16(n)
	case len(wr.SGL) > q.MaxSGE:
		return verbs.ErrTooManySGEs
	case provider.SumLengths(wr.SGL) > q.MaxMessage:
		return verbs.ErrMessageTooLong
	default:
		w.Num = uint16(len(wr.SGL))
		putSGL(&w.Sge, wr.SGL)
	}
	*e = w
	return nil
}

// putSGL writes a list, which is not too long.
func putSGL(to *[TOY_MAX_SGE]ToySge, sgl []verbs.SGE) {
	for i, s := range sgl {
		to[i] = ToySge{Addr: s.Addr, Length: s.Length, Lkey: s.LKey}
	}
}

// Settle implements [provider.Stateful].
func (q *sendQueue) Settle(s verbs.QPState, moved bool) {
	if moved && s == verbs.StateReset && !q.Closed {
		q.qp.drop()
		q.reset()
		q.record.Store(0)
	}
	q.Gate.Settle(s, moved)
}

// Cap implements [provider.SendQueue].
func (q *sendQueue) Cap() int { return len(q.ids) }

// Release implements [provider.Queue].
func (q *sendQueue) Release() {
	q.Stop(true)
	q.qp.release()
}
