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
	taken  uint32 // as in a SendQueue
	size   uint32 // how many elements are used; see withSpare
	num    uint32 // of the QP or SRQ
	maxSGE int
	maxMsg uint64
}

func newRecvQueue(a array[abi.SiwRqe], size int, init *provider.QPInit, info provider.QPInfo, dev *provider.Device) *RecvQueue {
	cq, _ := init.RecvCQ.(*CompletionQueue)
	return &RecvQueue{
		op: "post recv", queue: a, size: min(uint32(size), a.mask+1), cq: cq, num: info.QPNum,
		maxSGE: min(int(info.Cap.MaxRecvSGE), abi.SIW_MAX_SGE), maxMsg: uint64(uint32(dev.Port.MaxMessage)),
	}
}

func newSRQ(a array[abi.SiwRqe], info provider.SRQInfo, dev *provider.Device) *RecvQueue {
	return &RecvQueue{
		Gate: provider.Gate{State: verbs.StateInit},
		op:   verbs.OpPostSRQ, queue: a, size: a.mask + 1, num: info.Handle,
		maxSGE: min(info.MaxSGE, abi.SIW_MAX_SGE), maxMsg: uint64(uint32(dev.Port.MaxMessage)),
	}
}

// Post implements [provider.RecvQueue].
func (q *RecvQueue) Post(wrs []verbs.RecvWR) (int, error) {
	q.Lock() // nothing below panics, and a deferred call would take longer
	queue, most := q.queue.slots, min(len(wrs), int(q.size))
	if q.Closed || q.State == verbs.StateErr || q.State == verbs.StateReset || q.queue.region == nil {
		most = 0
	}
	if most > 0 && most > int(q.size)-int(q.put-q.taken) {
		most = q.freeSlots(most)
	}
	put := q.put
	var first uint32 // the word that publishes the batch
	n := 0
	for ; n < most; n++ {
		wr, rqe := &wrs[n], queue.at(put+uint32(n))
		if len(wr.SGL) > q.maxSGE {
			break
		}
		sges, length := copySGL(&rqe.Sge, wr.SGL)
		if length > q.maxMsg {
			break
		}
		rqe.Id = wr.ID
		if v := word(abi.SIW_WQE_VALID, uint8(sges), 0); n == 0 {
			first = v
		} else {
			fillRqe(rqe, v)
		}
	}
	if n > 0 {
		mmap.StoreRelease(rqeWord(queue.at(q.put)), first)
		q.put += uint32(n)
	}
	var err error
	if n < len(wrs) || q.Closed {
		n, err = q.postSlow(wrs, n)
	}
	q.Unlock()
	return n, err
}

// freeSlots returns how many of n requests fit, like [SendQueue.freeSlots].
func (q *RecvQueue) freeSlots(n int) int {
	if !isValid(rqeWord(q.queue.at(q.put - 1)).Load()) {
		q.taken = q.put
		return n
	}
	for n > 0 && isValid(rqeWord(q.queue.at(q.put+uint32(n)-1-q.size)).Load()) {
		n--
	}
	q.taken = q.put + uint32(n) - q.size
	return n
}

// postSlow handles the requests that Post has not posted, all but n. It returns how many
// have been posted, and the error for the others.
func (q *RecvQueue) postSlow(wrs []verbs.RecvWR, n int) (int, error) {
	if q.Closed {
		return 0, q.Err()
	}
	if q.State == verbs.StateErr {
		for i := range wrs {
			q.cq.flush(wrs[i].ID, q.num, verbs.WCRecv)
		}
		return len(wrs), nil
	}
	err := verbs.ErrQueueFull
	switch {
	case q.queue.region == nil:
		err = verbs.ErrNoRecvRoom
	case q.State == verbs.StateReset:
		err = verbs.ErrState
	case len(wrs[n].SGL) > q.maxSGE:
		err = verbs.ErrTooManySGEs
	case sglLength(wrs[n].SGL) > q.maxMsg:
		err = verbs.ErrMessageTooLong
	default:
		return n, err
	}
	return n, &verbs.PostError{Op: q.op, QPNum: q.num, Index: n, ID: wrs[n].ID, Err: err}
}

// hasReceived reports whether a message has used a receive.
func (q *RecvQueue) hasReceived() bool {
	if !q.TryLock() { // a change of state, which waits for the send queue, holds the lock
		return false
	}
	defer q.Unlock()
	return !q.Closed && q.put != 0 && (q.put > q.queue.mask+1 || !isValid(rqeWord(q.queue.at(0)).Load()))
}

// Cap implements [provider.RecvQueue].
func (q *RecvQueue) Cap() int { return int(q.size) }

// Settle implements [provider.Stateful].
func (q *RecvQueue) Settle(s verbs.QPState, moved bool) {
	if moved && s == verbs.StateErr && !q.Closed {
		q.flush()
	}
	q.Gate.Settle(s, moved)
}

// flush completes all requests that the kernel has left in the queue of a failed QP.
func (q *RecvQueue) flush() {
	if q.queue.region == nil {
		return
	}
	for i := q.put - q.queue.mask - 1; i != q.put; i++ {
		rqe := q.queue.at(i)
		if w := rqeWord(rqe); isValid(w.Load()) {
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
func (q *RecvQueue) Release() {
	q.Stop(true)
	q.queue.region.Close()
}
