package erdma

import (
	"sync/atomic"
	"unsafe"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/provider"
)

// Fields of a receive, struct erdma_rqe. Its first 8 bytes are its doorbell too: qe_idx, the number of
// the next receive, in two of them, and from the fifth on the QP's number.
const (
	rqeAddr   = 16 // to
	rqeLength = 24
)

// recvQueue is the receive queue of a QP.
type recvQueue struct {
	provider.Requests
	qp       *queuePair
	base     unsafe.Pointer
	mask     uint32
	most     uint32 // receives that the queue takes
	known    uint32 // tail, as last read
	put      uint32 // receives posted since the last reset
	head     atomic.Uint32
	refusing refusing
	limit    uint64 // a receive of one segment is shorter
	record   *atomic.Uint64
	register *uint64
	ids      []uint64

	flushAfter atomic.Uint32 // receives that complete before those that are flushed here

	_     [64]byte      // Poll writes what follows, perhaps on another processor
	tail  atomic.Uint32 // receives completed
	taken uint32        // since the last reset
}

func newRecvQueue(p *queuePair, base unsafe.Pointer, register *uint64, init *provider.QPInit, info provider.QPInfo) *recvQueue {
	n := init.Cap.MaxRecvWR
	q := &recvQueue{
		qp: p, base: base, mask: uint32(n - 1), most: uint32(n), record: mmap.Word64(p.record, recvRecord), register: register, ids: make([]uint64, n),
	}
	q.InitReceives(p.ctx.dev, init, info)
	if q.MaxSGE = init.Cap.MaxRecvSGE; q.MaxSGE > 0 {
		q.limit = q.MaxMessage + 1
	}
	if p.ctx.dev.IWARP {
		q.State = verbs.StateInit // for Refuse
	}
	q.refusing.settle(verbs.StateReset, verbs.StateInit, p.ctx.dev.IWARP)
	return q
}

// Post implements [provider.RecvQueue].
func (q *recvQueue) Post(wrs []verbs.RecvWR) (n int, err error) {
	q.Lock() // nothing below panics, and a deferred call would take longer
	head, put := q.head.Load(), q.put
	if uint64(q.most-(head-q.known)) < uint64(len(wrs)) {
		q.known = q.tail.Load()
	}
	room := min(len(wrs), int(q.most-(head-q.known)))
	if q.Closed || q.refusing.Load() != 0 {
		room = 0
	}
	for ; n < room; n++ {
		wr, i := &wrs[n], put&q.mask
		p := unsafe.Add(q.base, uintptr(i)*unit)
		if len(wr.SGL) == 1 && uint64(wr.SGL[0].Length) < q.limit {
			putSegment(unsafe.Add(p, rqeAddr), wr.SGL[0].Addr, wr.SGL[0].Length, wr.SGL[0].LKey)
		} else if len(wr.SGL) == 0 {
			put32(unsafe.Add(p, rqeLength), 0)
		} else {
			break
		}
		q.ids[i] = wr.ID
		put++
		bell := uint64(put&indexMask) | uint64(q.Num)<<32
		put64(p, bell)
		mmap.StoreRelease(&q.head, head+uint32(n)+1) // Poll finds the receive in ids
		mmap.StoreDoorbell64(q.record, q.register, bell)
	}
	q.put = put
	if n < len(wrs) || n == 0 {
		n, err = q.postRest(wrs, n)
	}
	q.Unlock()
	return n, err
}

// postRest ends Post if the queue has not taken receive n.
//
//go:noinline
func (q *recvQueue) postRest(wrs []verbs.RecvWR, n int) (int, error) {
	switch {
	case q.Closed:
		return n, q.Err()
	case q.refusing.Load()&refusesFailed != 0: // as in sendQueue.postRest
		q.flushAfter.Store(q.head.Load())
		for i := n; i < len(wrs); i++ {
			if !q.qp.recvCQ.flush(&q.Requests, q.most, wrs[i].ID, verbs.WCRecv) {
				return i, q.Refuse(wrs, i, int(q.most))
			}
		}
		return len(wrs), nil
	case n == len(wrs):
		if q.refusing.Load() != 0 {
			return n, verbs.ErrState
		}
		return n, nil
	case q.refusing.Load() != 0:
		return n, q.Refused(n, wrs[n].ID, verbs.ErrState)
	}
	return n, q.Refuse(wrs, n, int(q.most))
}

// complete returns the ID of a completed receive, and frees its room. Receives complete in order, and
// index is the receive's number: liberdma uses as much of it as the queue is long. ok is false if
// that receive is not the next. The caller holds the CQ's lock.
func (q *recvQueue) complete(index uint32) (id uint64, ok bool) {
	head, tail := q.head.Load(), q.tail.Load()
	if head == tail || (index^q.taken)&q.mask != 0 {
		return 0, false
	}
	id = q.ids[index&q.mask]
	q.taken++
	mmap.StoreRelease(&q.tail, tail+1)
	return id, true
}

// Flush implements [provider.Flusher].
func (q *recvQueue) Flush() (wcs []verbs.WC) {
	defer q.Unlock()
	if !q.Lose() {
		return nil
	}
	q.qp.recvCQ.Exclude() // for complete
	defer q.qp.recvCQ.Allow()
	return q.takeAll()
}

// takeAll completes all receives as flushed. The caller has the lock, and excludes Take.
func (q *recvQueue) takeAll() (wcs []verbs.WC) {
	for {
		id, ok := q.complete(q.taken)
		if !ok {
			return wcs
		}
		wcs = append(wcs, verbs.WC{ID: id, Status: verbs.WCFlushErr, Opcode: verbs.WCRecv, QPNum: q.Num})
	}
}

// Cap implements [provider.RecvQueue].
func (q *recvQueue) Cap() int { return int(q.most) }

// Settle implements [provider.Stateful]. Settle of the send queue has removed the completions.
func (q *recvQueue) Settle(s verbs.QPState, moved bool) {
	iwarp := q.qp.ctx.dev.IWARP
	if moved && s == verbs.StateReset && !q.Closed && !iwarp {
		q.put, q.known = 0, q.head.Load()
		q.qp.recvCQ.Exclude() // for taken
		q.taken = 0
		q.tail.Store(q.known)
		q.qp.recvCQ.Allow()
		q.record.Store(0)
	}
	if moved {
		q.refusing.settle(s, verbs.StateInit, iwarp)
	}
	q.Gate.Settle(s, moved)
}

// Release implements [provider.Queue].
func (q *recvQueue) Release() {
	q.Stop(true)
	q.qp.release()
}
