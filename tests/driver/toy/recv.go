package toy

import (
	"sync/atomic"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/provider"
)

// recvQueue is the receive queue of a QP.
type recvQueue struct {
	provider.Requests
	window
	qp       *queuePair
	record   *atomic.Uint64
	register *uint64
}

func (q *recvQueue) init(p *queuePair, init *provider.QPInit, info provider.QPInfo) {
	q.InitReceives(p.card.dev, init, info)
	q.MaxSGE = init.Cap.MaxRecvSGE
	q.window = newWindow(init.Cap.MaxRecvWR)
	q.qp, q.record, q.register = p, mmap.Word64(p.record, 8), p.card.register(TOY_DB_RECV)
}

// Post implements [provider.RecvQueue].
func (q *recvQueue) Post(wrs []verbs.RecvWR) (n int, err error) {
	q.Lock()
	defer q.Unlock()
	if q.Closed {
		return 0, q.Err()
	}
	head := q.head.Load()
	for ; n < len(wrs); n++ {
		wr := &wrs[n]
		if q.State == verbs.StateReset || q.full(head) || len(wr.SGL) > q.MaxSGE || provider.SumLengths(wr.SGL) > q.MaxMessage {
			err = q.Refuse(wrs, n, len(q.ids))
			break
		}
		e := q.qp.recvs.at(head)
		*e = ToyRqe{}
		putSGL(&e.Sge, wr.SGL)
		q.ids[head&q.mask] = wr.ID
		head++
	}
	if n > 0 {
		q.head.Store(head)
		mmap.StoreDoorbell64(q.record, q.register, uint64(q.Num)<<32|uint64(head))
	}
	return n, err
}

// Settle implements [provider.Stateful]. Settle of the send queue, which comes first, has dropped the
// completions.
func (q *recvQueue) Settle(s verbs.QPState, moved bool) {
	if moved && s == verbs.StateReset && !q.Closed {
		q.reset()
		q.record.Store(0)
	}
	q.Gate.Settle(s, moved)
}

// Cap implements [provider.RecvQueue].
func (q *recvQueue) Cap() int { return len(q.ids) }

// Release implements [provider.Queue].
func (q *recvQueue) Release() {
	q.Stop(true)
	q.qp.release()
}
