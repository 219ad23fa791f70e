package siw

import (
	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/provider"
)

// recvQueue is the receive queue of a QP, or an SRQ. The kernel looks for receives when messages come, so posting
// takes no doorbell.
type recvQueue struct {
	provider.Requests
	queue array[abi.SiwRqe] // no region if the QP takes no receives
	cq    *completionQueue  // nil for an SRQ
	put   uint32
	taken uint32 // as in a sendQueue
	size  uint32 // how many elements are used; see withSpare
}

func newRecvQueue(a array[abi.SiwRqe], size int, init *provider.QPInit, info provider.QPInfo, dev *provider.Device) *recvQueue {
	cq, _ := init.RecvCQ.(*completionQueue)
	q := &recvQueue{queue: a, size: min(uint32(size), a.mask+1), cq: cq}
	q.InitReceives(dev, init, info)
	q.SingleThreaded = false // until the send queue disables the locks
	q.MaxSGE = min(q.MaxSGE, abi.SIW_MAX_SGE)
	return q
}

func newSRQ(a array[abi.SiwRqe], info provider.SRQInfo, dev *provider.Device) *recvQueue {
	q := &recvQueue{queue: a, size: a.mask + 1}
	q.InitShared(dev, info.Handle, min(info.MaxSGE, abi.SIW_MAX_SGE))
	return q
}

// Post implements [provider.RecvQueue].
func (q *recvQueue) Post(wrs []verbs.RecvWR) (int, error) {
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
		if len(wr.SGL) > q.MaxSGE {
			break
		}
		sges, length := copySGL(&rqe.Sge, wr.SGL)
		if length > q.MaxMessage {
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

// freeSlots returns how many of n requests fit, like [sendQueue.freeSlots].
func (q *recvQueue) freeSlots(n int) int {
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
func (q *recvQueue) postSlow(wrs []verbs.RecvWR, n int) (int, error) {
	if q.Closed {
		return 0, q.Err()
	}
	// As with sends, the kernel ignores receives of a QP in the error state.
	if q.State == verbs.StateErr {
		for i := range wrs {
			q.cq.flush(wrs[i].ID, q.Num, verbs.WCRecv)
		}
		return len(wrs), nil
	}
	return n, q.Refuse(wrs, n, int(q.size))
}

// hasReceived reports whether a message has used a receive: the first element has been used, and is free or has been
// posted again. No completion is needed for that, which only the program polls.
func (q *recvQueue) hasReceived() bool {
	if !q.TryLock() { // a change of state, which waits for the send queue, holds the lock
		return false
	}
	defer q.Unlock()
	return !q.Closed && q.put != 0 && (q.put > q.queue.mask+1 || !isValid(rqeWord(q.queue.at(0)).Load()))
}

// Cap implements [provider.RecvQueue].
func (q *recvQueue) Cap() int { return int(q.size) }

// Settle implements [provider.Stateful].
func (q *recvQueue) Settle(s verbs.QPState, moved bool) {
	if moved && s == verbs.StateErr && !q.Closed {
		q.flush()
	}
	q.Gate.Settle(s, moved)
}

// flush completes all requests that the kernel has left in the queue of a failed QP (siw_rq_flush may have run before
// they were posted).
func (q *recvQueue) flush() {
	if q.queue.region == nil {
		return
	}
	for i := q.put - q.queue.mask - 1; i != q.put; i++ {
		rqe := q.queue.at(i)
		if w := rqeWord(rqe); isValid(w.Load()) {
			w.Store(0)
			q.cq.flush(rqe.Id, q.Num, verbs.WCRecv)
		}
	}
}

// Resize implements [provider.Resizer]: it lets the kernel refuse.
func (q *recvQueue) Resize(size int, resize func(int, provider.UHW) error) error {
	return resize(size, provider.UHW{})
}

// SetLimit implements [provider.RecvQueue] for an SRQ.
func (q *recvQueue) SetLimit(_ int, set func(provider.UHW) error) error { return set(provider.UHW{}) }

// Release implements [provider.Queue].
func (q *recvQueue) Release() {
	q.Stop(true)
	q.queue.region.Close()
}
