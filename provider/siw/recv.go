package siw

import (
	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/provider"
)

// recvQueue is the receive queue of a QP, or an SRQ. The kernel looks for receives when a message
// arrives, so posting needs no doorbell.
type recvQueue struct {
	provider.Requests
	queue array[abi.SiwRqe] // no region if the QP takes no receives
	cq    *completionQueue  // nil for an SRQ
	put   uint32
	taken uint32 // as in a sendQueue
	size  uint32 // how many elements are used; see withSpare

	maxSimple uint32 // longest receive with one SGE; 0 if there are none
}

func newRecvQueue(a array[abi.SiwRqe], size int, init *provider.QPInit, info provider.QPInfo, dev *provider.Device) *recvQueue {
	cq, _ := init.RecvCQ.(*completionQueue)
	q := &recvQueue{queue: a, size: min(uint32(size), a.mask+1), cq: cq}
	q.InitReceives(dev, init, info)
	q.SingleThreaded = false // until the send queue disables the locks
	q.MaxSGE = min(q.MaxSGE, abi.SIW_MAX_SGE)
	q.maxSimple = q.MaxOneSGE()
	return q
}

func newSRQ(a array[abi.SiwRqe], info provider.SRQInfo, dev *provider.Device) *recvQueue {
	q := &recvQueue{queue: a, size: a.mask + 1}
	q.InitShared(dev, info.Handle, min(info.MaxSGE, abi.SIW_MAX_SGE))
	q.maxSimple = q.MaxOneSGE()
	return q
}

// Post implements [provider.RecvQueue]. Receives with one SGE, which are the most frequent, are
// written without a call.
func (q *recvQueue) Post(wrs []verbs.RecvWR) (n int, err error) {
	q.Lock() // nothing below panics, and a deferred call would take longer
	room, queue, put := 0, q.queue.slots, q.put
	if q.State != verbs.StateReset && q.State != verbs.StateErr && !q.Closed {
		room = q.room(len(wrs))
	}
	var first uint32 // the word that publishes the batch
	for ; n < room; n++ {
		wr := &wrs[n]
		if len(wr.SGL) != 1 {
			break
		}
		sge := &wr.SGL[0]
		if sge.Length-1 >= q.maxSimple {
			break
		}
		rqe := queue.at(put + uint32(n))
		rqe.Id = wr.ID
		copySGE(&rqe.Sge[0], sge)
		if v := word(abi.SIW_WQE_VALID, 1, 0); n == 0 {
			first = v
		} else {
			fillRqe(rqe, v)
		}
	}
	if n == len(wrs) && n > 0 {
		q.publish(n, first)
	} else {
		n, err = q.postRest(wrs, n, first)
	}
	q.Unlock()
	return n, err
}

// postRest posts receives, of which the first n have been written; first is the word of the first
// one. It returns how many it posted, and why not the others.
func (q *recvQueue) postRest(wrs []verbs.RecvWR, n int, first uint32) (int, error) {
	switch {
	case q.Closed:
		return 0, q.Err()
	case q.State == verbs.StateErr: // as with sends, the kernel ignores receives
		for i := range wrs {
			if !q.cq.flushPosted(&q.Requests, q.size, wrs[i].ID, verbs.WCRecv) {
				return i, q.refuse(wrs, i)
			}
		}
		return len(wrs), nil
	case q.State == verbs.StateReset:
		return 0, q.refuse(wrs, 0)
	}
	for room := q.room(len(wrs)); n < room && len(wrs[n].SGL) <= q.MaxSGE; n++ {
		rqe := q.queue.at(q.put + uint32(n))
		sges, length := copySGL(&rqe.Sge, wrs[n].SGL)
		if length > q.MaxMessage {
			break
		}
		rqe.Id = wrs[n].ID
		if v := word(abi.SIW_WQE_VALID, uint8(sges), 0); n == 0 {
			first = v
		} else {
			fillRqe(rqe, v)
		}
	}
	if n > 0 {
		q.publish(n, first)
	}
	return n, q.refuse(wrs, n)
}

// publish makes n receives visible to the kernel, of which first is the word of the first.
func (q *recvQueue) publish(n int, first uint32) {
	mmap.StoreRelease(rqeWord(q.queue.at(q.put)), first)
	q.put += uint32(n)
}

// refuse returns why the receives from n on, if there are any, were not posted.
func (q *recvQueue) refuse(wrs []verbs.RecvWR, n int) error {
	if n == len(wrs) {
		return nil
	}
	return q.Refuse(wrs, n, int(q.size))
}

// room returns how many of n receives fit.
func (q *recvQueue) room(n int) int {
	if n > int(q.size)-int(q.put-q.taken) {
		n = q.freeSlots(n)
	}
	return n
}

// freeSlots returns how many of n requests fit, like [sendQueue.freeSlots].
func (q *recvQueue) freeSlots(n int) int {
	if n = min(n, int(q.size)); n == 0 {
		return 0
	}
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

// hasReceived reports whether a message has used a receive: the first element was used, and is free
// or has been posted again. Completions would not tell, as only the program polls them.
func (q *recvQueue) hasReceived() bool {
	if !q.TryLock() { // a change of state holds the lock, and waits for the send queue
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

// flush completes all requests that the kernel has left in the queue of a failed QP (siw_rq_flush
// may have run before they were posted).
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

// Release implements [provider.Queue].
func (q *recvQueue) Release() {
	q.Stop(true)
	q.queue.region.Close()
}
