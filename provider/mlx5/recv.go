package mlx5

import (
	"errors"
	"fmt"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/provider"
)

// recvQueue is the receive queue of a QP, or an SRQ.
//
// The queue of a QP is a ring of lists of segments. It has no register: the device reads the
// doorbell record when a message arrives.
type recvQueue struct {
	provider.Requests
	base     unsafe.Pointer
	stride   uintptr
	mask     uint32
	most     uint32 // receives that the queue takes
	known    uint32 // tail, as last read
	head     atomic.Uint32
	record   *atomic.Uint32
	maxFirst uint32 // longest receive of one segment; 0 if the queue takes none
	ids      []uint64
	qp       *queuePair // nil for an SRQ
	shared   *shared    // of an SRQ

	_    [64]byte      // Poll writes what follows, perhaps on another processor
	tail atomic.Uint32 // receives completed
}

func newRecvQueue(p *queuePair, mem []byte, size plan, init *provider.QPInit, info provider.QPInfo) *recvQueue {
	q := &recvQueue{
		qp: p, base: unsafe.Pointer(unsafe.SliceData(mem)), stride: uintptr(size.stride), mask: uint32(max(size.entries, 1) - 1), most: uint32(size.requests),
		record: mmap.Word(p.record, recvWord), ids: make([]uint64, size.entries),
	}
	q.InitReceives(p.ctx.dev, init, info)
	q.MaxSGE = init.Cap.MaxRecvSGE
	q.maxFirst = min(q.MaxOneSGE(), maxSegment)
	return q
}

// Post implements [provider.RecvQueue]. The common case, one receive with one segment, makes no
// calls, so nothing is spilled.
func (q *recvQueue) Post(wrs []verbs.RecvWR) (int, error) {
	if len(wrs) != 1 || len(wrs[0].SGL) != 1 || !q.TryLock() {
		return q.postList(wrs)
	}
	head := q.head.Load()
	i := head & q.mask
	if head-q.known >= q.most || q.shared != nil || q.Closed || q.State == verbs.StateReset || wrs[0].SGL[0].Length-1 >= q.maxFirst {
		q.Unlock()
		return q.postList(wrs)
	}
	p := unsafe.Add(q.base, uintptr(i)*q.stride)
	putSegment(p, &wrs[0].SGL[0])
	if q.stride > segmentSize {
		putSegment(unsafe.Add(p, segmentSize), &endOfList)
	}
	q.ids[i] = wrs[0].ID
	mmap.StoreRelease(&q.head, head+1)
	q.publish(head + 1)
	q.Unlock()
	return 1, nil
}

// postList is Post of any list.
func (q *recvQueue) postList(wrs []verbs.RecvWR) (int, error) {
	q.Lock() // nothing below panics, and a deferred call would take longer
	head, n := q.head.Load(), 0
	if uint64(q.most-(head-q.known)) < uint64(len(wrs)) {
		q.known = q.tail.Load()
	}
	room := min(len(wrs), int(q.most-(head-q.known)))
	if q.shared != nil || q.Closed || q.State == verbs.StateReset {
		room = 0
	}
	var err error
	for ; n < room; n++ {
		wr, i := &wrs[n], (head+uint32(n))&q.mask
		p := unsafe.Add(q.base, uintptr(i)*q.stride)
		if len(wr.SGL) == 1 && wr.SGL[0].Length-1 < q.maxFirst {
			putSegment(p, &wr.SGL[0])
			if q.stride > segmentSize {
				putSegment(unsafe.Add(p, segmentSize), &endOfList)
			}
		} else if err = q.encode(p, 0, wr.SGL); err != nil {
			break
		}
		q.ids[i] = wr.ID
	}
	if n > 0 {
		mmap.StoreRelease(&q.head, head+uint32(n)) // Poll finds the receives in ids
		q.publish(head + uint32(n))
	}
	if n < len(wrs) || n == 0 {
		n, err = q.postRest(wrs, n, err)
	}
	q.Unlock()
	return n, err
}

// postRest ends Post if err refused request n, there was no room for it, or the queue is an SRQ.
func (q *recvQueue) postRest(wrs []verbs.RecvWR, n int, err error) (int, error) {
	switch {
	case q.Closed:
		return 0, q.Err()
	case err != nil:
	case q.State == verbs.StateReset:
		err = verbs.ErrState
	case q.shared != nil:
		n, err = q.postShared(wrs)
	case n == len(wrs):
	case q.most == 0:
		err = verbs.ErrNoRecvRoom
	default:
		err = verbs.ErrQueueFull
	}
	if err != nil && n < len(wrs) {
		err = q.Refused(n, wrs[n].ID, err)
	}
	return n, err
}

// publish tells the device how many receives there have been.
func (q *recvQueue) publish(count uint32) {
	mmap.BarrierToDevice() // a device that sees the count sees the receives
	mmap.StoreRelease(q.record, swap32(count&0xffff))
}

// encode writes a list of segments at an offset of the entry p.
func (q *recvQueue) encode(p unsafe.Pointer, off uintptr, sgl []verbs.SGE) error {
	if len(sgl) > q.MaxSGE {
		return verbs.ErrTooManySGEs
	}
	var length uint64
	for i := range sgl {
		s := &sgl[i]
		if s.Length == 0 { // it would mean 2 GiB
			continue
		}
		if s.Length > maxSegment {
			return verbs.ErrMessageTooLong
		}
		length += uint64(s.Length)
		putSegment(unsafe.Add(p, off), s)
		off += segmentSize
	}
	if length > q.MaxMessage {
		return verbs.ErrMessageTooLong
	}
	if off < q.stride {
		putSegment(unsafe.Add(p, off), &endOfList)
	}
	return nil
}

var endOfList = verbs.SGE{LKey: invalidKey}

// complete returns the ID of a completed receive, and frees its room. The receives of a QP's own
// queue complete in order; in an SRQ, index names the receive. ok is false if none is in flight.
// The caller holds the CQ's lock.
func (q *recvQueue) complete(index uint16) (id uint64, ok bool) {
	if q.shared != nil {
		return q.completeShared(index)
	}
	head, tail := q.head.Load(), q.tail.Load()
	if head == tail {
		return 0, false
	}
	id = q.ids[tail&q.mask]
	mmap.StoreRelease(&q.tail, tail+1)
	return id, true
}

// Flush implements [provider.Flusher].
func (q *recvQueue) Flush() (wcs []verbs.WC) {
	defer q.Unlock()
	if !q.Lose() {
		return nil
	}
	if q.shared == nil {
		q.qp.recvCQ.Exclude() // for complete
		defer q.qp.recvCQ.Allow()
	}
	for i := range q.ids {
		if id, ok := q.complete(uint16(i)); ok {
			wcs = append(wcs, verbs.WC{ID: id, Status: verbs.WCFlushErr, Opcode: verbs.WCRecv, QPNum: q.Num})
		}
	}
	return wcs
}

// Cap implements [provider.RecvQueue].
func (q *recvQueue) Cap() int { return int(q.most) }

// Resize implements [provider.Resizer]. The kernel refuses it as if the size were wrong
// (mlx5_ib_modify_srq).
func (q *recvQueue) Resize(size int, resize func(int, provider.UHW) error) error {
	err := q.Requests.Resize(size, resize)
	if errors.Is(err, syscall.EINVAL) {
		return fmt.Errorf("mlx5 does not resize SRQs: %w", errors.ErrUnsupported)
	}
	return err
}

// Settle implements [provider.Stateful]. Settle of the send queue has removed the completions.
func (q *recvQueue) Settle(s verbs.QPState, moved bool) {
	if moved && s == verbs.StateReset && !q.Closed {
		q.known = 0
		q.head.Store(0)
		q.tail.Store(0)
		q.record.Store(0)
	}
	q.Gate.Settle(s, moved)
}

// Release implements [provider.Queue].
func (q *recvQueue) Release() {
	q.Stop(true)
	if q.shared != nil {
		q.shared.release()
		return
	}
	q.qp.release()
}
