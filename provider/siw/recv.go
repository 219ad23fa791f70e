package siw

import (
	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/provider"
)

// RecvQueue is a siw QP's receive queue, or an SRQ; see [SendQueue] for why it
// is exported.
type RecvQueue struct {
	op string
	provider.Gate
	queue  array[abi.SiwRqe] // no region if the QP takes no receives
	cq     *CompletionQueue  // nil for an SRQ
	put    uint32
	num    uint32 // of the QP or SRQ
	maxSGE int
	maxMsg uint64
}

func newRecvQueue(a array[abi.SiwRqe], init *provider.QPInit, info provider.QPInfo, dev *provider.Device) *RecvQueue {
	cq, _ := init.RecvCQ.(*CompletionQueue)
	return &RecvQueue{
		op: "post recv", queue: a, cq: cq, num: info.QPNum,
		maxSGE: min(int(info.Cap.MaxRecvSGE), abi.SIW_MAX_SGE), maxMsg: uint64(uint32(dev.Port.MaxMessage)),
	}
}

func newSRQ(a array[abi.SiwRqe], info provider.SRQInfo, dev *provider.Device) *RecvQueue {
	return &RecvQueue{
		Gate: provider.Gate{State: verbs.StateInit},
		op:   verbs.OpPostSRQ, queue: a, num: info.Handle,
		maxSGE: min(info.MaxSGE, abi.SIW_MAX_SGE), maxMsg: uint64(uint32(dev.Port.MaxMessage)),
	}
}

// Post implements [provider.RecvQueue].
func (q *RecvQueue) Post(wrs []verbs.RecvWR) (int, error) {
	q.Lock() // nothing below panics, and a deferred call would take longer
	n, err := q.post(wrs)
	q.Unlock()
	return n, err
}

func (q *RecvQueue) post(wrs []verbs.RecvWR) (int, error) {
	if q.Closed {
		return 0, q.Err()
	}
	if q.State == verbs.StateErr {
		for i := range wrs {
			q.cq.flush(wrs[i].ID, q.num, verbs.WCRecv)
		}
		return len(wrs), nil
	}
	if q.queue.region == nil && len(wrs) > 0 {
		return 0, &verbs.PostError{Op: q.op, QPNum: q.num, ID: wrs[0].ID, Err: verbs.ErrNoRecvRoom}
	}
	var n int
	var err error
	var first uint32 // the word that publishes the batch
	for ; n < len(wrs); n++ {
		wr := &wrs[n]
		rqe := q.queue.at(q.put + uint32(n))
		switch {
		case q.State == verbs.StateReset:
			err = verbs.ErrState
		case rqeWord(rqe).Load()&valid != 0 || uint32(n) > q.queue.mask:
			err = verbs.ErrQueueFull
		case len(wr.SGL) > q.maxSGE:
			err = verbs.ErrTooManySGEs
		case copySGL(&rqe.Sge, wr.SGL) > q.maxMsg:
			err = verbs.ErrMessageTooLong
		}
		if err != nil {
			break
		}
		rqe.Id = wr.ID
		v := word(abi.SIW_WQE_VALID, uint8(len(wr.SGL)), 0)
		if n == 0 {
			first = v
		} else {
			fillRqe(rqe, v)
		}
	}
	if n > 0 {
		rqeWord(q.queue.at(q.put)).Store(first)
		q.put += uint32(n)
	}
	if err != nil && err != verbs.ErrQueueFull {
		err = &verbs.PostError{Op: q.op, QPNum: q.num, Index: n, ID: wrs[n].ID, Err: err}
	}
	return n, err
}

// used reports whether a message has come for a receive.
func (q *RecvQueue) used() bool {
	if !q.TryLock() { // by a change of state, which waits for the send queue
		return false
	}
	defer q.Unlock()
	return !q.Closed && q.put != 0 && (q.put > q.queue.mask+1 || rqeWord(q.queue.at(0)).Load()&valid == 0)
}

// Cap implements [provider.RecvQueue].
func (q *RecvQueue) Cap() int {
	if q.queue.region == nil {
		return 0
	}
	return int(q.queue.mask) + 1
}

// Settle implements [provider.Stateful].
func (q *RecvQueue) Settle(s verbs.QPState, moved bool) {
	if moved && s == verbs.StateErr && !q.Closed {
		q.flush()
	}
	q.Gate.Settle(s, moved)
}

// flush completes all that the kernel has left in the queue of a failed QP.
func (q *RecvQueue) flush() {
	if q.queue.region == nil {
		return
	}
	for i := q.put - q.queue.mask - 1; i != q.put; i++ {
		rqe := q.queue.at(i)
		if w := rqeWord(rqe); w.Load()&valid != 0 {
			w.Store(0)
			q.cq.flush(rqe.Id, q.num, verbs.WCRecv)
		}
	}
}

// Resize implements [provider.Resizer]: it lets the kernel refuse.
func (q *RecvQueue) Resize(size int, resize func(int, provider.UHW) error) error {
	return resize(size, provider.UHW{})
}

// SetLimit implements [provider.RecvQueue] for an SRQ.
func (q *RecvQueue) SetLimit(_ int, set func(provider.UHW) error) error { return set(provider.UHW{}) }

// Release implements [provider.Queue].
func (q *RecvQueue) Release() *mmap.Region {
	q.Stop(true)
	return q.queue.region
}
