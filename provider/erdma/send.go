package erdma

import (
	"encoding/binary"
	"sync/atomic"
	"unsafe"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/provider"
)

// sendQueue is the send queue of a QP.
//
// The device counts units, of which a request takes up to four. The queue's room is counted in
// requests: there are units for the longest of all. A request's room becomes free when Poll returns
// its completion, or the completion of a later request.
type sendQueue struct {
	provider.Sends
	qp       *queuePair
	base     unsafe.Pointer
	mask     uint32 // units - 1
	put      uint32 // units posted
	most     uint32 // requests that the queue takes
	known    uint32 // tail, as last read: reading it may fetch its cache line from another processor
	head     atomic.Uint32
	refusing refusing
	header   uint64 // of each request: the QP's number, and whether all are signaled
	limit    uint64 // a message of one segment is shorter
	record   *atomic.Uint64
	register *uint64
	sent     []sent // by the request's first unit

	flushAfter atomic.Uint32 // requests that complete before those that are flushed here

	_    [64]byte      // Poll writes what follows, perhaps on another processor
	tail atomic.Uint32 // requests completed
}

// sent is a request that has been posted.
type sent struct {
	id     uint64
	number uint32
	put    uint32 // its first unit
}

// refusing is why the device takes no requests of a queue: 0 if it takes them.
type refusing struct{ atomic.Uint32 }

const (
	refusesState  = 1 << 0 // the QP has no connection yet
	refusesFailed = 1 << 1 // the QP is in the error state
)

// settle follows a change of the QP's state; from is the first in which the device takes requests. On
// iWARP the kernel moves a QP to RTS as it connects, and Settle does not hear of it: the device takes
// requests in any state but ERR, as with liberdma, which a QP does not leave there.
func (r *refusing) settle(s, from verbs.QPState, iwarp bool) {
	switch {
	case iwarp && r.Load() != 0:
	case s == verbs.StateErr:
		r.Store(refusesFailed)
	case !iwarp && s < from:
		r.Store(refusesState)
	default:
		r.Store(0)
	}
}

func newSendQueue(p *queuePair, base unsafe.Pointer, register *uint64, init *provider.QPInit, info provider.QPInfo) *sendQueue {
	units := init.Cap.MaxSendWR * maxUnits
	q := &sendQueue{
		qp: p, base: base, mask: uint32(units - 1), most: uint32(init.Cap.MaxSendWR),
		header: uint64(p.num) << headerQPN, record: mmap.Word64(p.record, sendRecord), register: register, sent: make([]sent, units),
	}
	q.InitSends(p.ctx.dev, init, info)
	q.MaxSGE, q.MaxInline = init.Cap.MaxSendSGE, init.Cap.MaxInline
	if q.SignalAll {
		q.header |= flagSignaled
	}
	if q.MaxSGE > 0 {
		q.limit = q.MaxMessage + 1
	}
	for i := range q.sent {
		q.sent[i].number = 1<<32 - 1 // none
	}
	q.refusing.settle(verbs.StateReset, verbs.StateRTS, p.ctx.dev.IWARP)
	return q
}

// at returns unit i.
func (q *sendQueue) at(i uint32) unsafe.Pointer {
	return unsafe.Add(q.base, uintptr(i&q.mask)*unit)
}

// Post implements [provider.SendQueue]. The common case, one request with one segment, makes one call,
// the doorbell.
func (q *sendQueue) Post(wrs []verbs.SendWR) (int, error) {
	if len(wrs) != 1 || wrs[0].Args != nil {
		return q.postList(wrs)
	}
	if len(wrs[0].Inline) > 0 {
		return q.postShort(wrs)
	}
	if len(wrs[0].SGL) != 1 || !q.TryLock() {
		return q.postList(wrs)
	}
	wr := &wrs[0]
	o, head, put := operationOf(wr.Opcode), q.head.Load(), q.put
	if head-q.known >= q.most || q.Closed || q.refusing.Load() != 0 || o.kind-kindSend > kindRead-kindSend || uint64(wr.SGL[0].Length) >= q.limit {
		q.Unlock()
		return q.postList(wrs)
	}
	q.sent[put&q.mask] = sent{wr.ID, head, put}
	put = q.encodeOne(put, wr, o)
	q.put = put
	mmap.StoreRelease(&q.head, head+1) // Poll finds the request in sent
	mmap.StoreDoorbell64(q.record, q.register, uint64(q.Num)<<headerQPN|uint64(put&indexMask))
	q.Unlock()
	return 1, nil
}

// postShort posts a request that isShort, as encodeShort does.
func (q *sendQueue) postShort(wrs []verbs.SendWR) (int, error) {
	wr := &wrs[0]
	o, length := operationOf(wr.Opcode), len(wr.Inline)
	if !q.isShort(wr, o) {
		return q.postList(wrs)
	}
	// The data is read without the lock, as reading it may panic.
	var words [unit / 8]uint64
	data, k := wr.Inline, 0
	for ; len(data) >= 8; data = data[8:] {
		words[k&3] = binary.LittleEndian.Uint64(data)
		k++
	}
	var last uint64
	for i, c := range data {
		last |= uint64(c) << (8 * i & 63)
	}
	if !q.TryLock() {
		return q.postList(wrs)
	}
	head, put := q.head.Load(), q.put
	if head-q.known >= q.most || q.Closed || q.refusing.Load() != 0 {
		q.Unlock()
		return q.postList(wrs)
	}
	q.sent[put&q.mask] = sent{wr.ID, head, put}
	p, first := q.at(put), put
	put64(unsafe.Add(p, sqeExtra), uint64(o.extraOf(wr))|uint64(length)<<32)
	to := unsafe.Add(p, sendData)
	put++
	if o.kind == kindWrite {
		put32(unsafe.Add(p, writeKey), wr.RKey)
		put64(unsafe.Add(p, writeAddr), wr.RemoteAddr)
		to = q.at(put)
		put++
	}
	for _, w := range words[:k] {
		put64(to, w)
		to = unsafe.Add(to, 8)
	}
	if n := len(data); n > 0 {
		put64(to, *(*uint64)(to)&^(1<<(8*n&63)-1)|last)
	}
	put64(p, q.header|uint64(flagsOf[wr.Flags&7]|flagInline)|uint64(o.opcode)<<headerOpcode|uint64(length)<<headerLength|
		uint64(put-first-1)<<headerUnits|uint64(put&indexMask))
	q.put = put
	mmap.StoreRelease(&q.head, head+1)
	mmap.StoreDoorbell64(q.record, q.register, uint64(q.Num)<<headerQPN|uint64(put&indexMask))
	q.Unlock()
	return 1, nil
}

// encodeOne writes a SEND, WRITE or READ of one segment at unit put, and returns the unit behind it.
func (q *sendQueue) encodeOne(put uint32, wr *verbs.SendWR, o operation) uint32 {
	p, s := q.at(put), &wr.SGL[0]
	h := q.header | uint64(flagsOf[wr.Flags&7]) | uint64(o.opcode)<<headerOpcode
	switch o.kind {
	case kindSend:
		put64(unsafe.Add(p, sqeExtra), uint64(o.extraOf(wr))|uint64(s.Length)<<32)
		putSegment(unsafe.Add(p, sendData), s.Addr, s.Length, s.LKey)
		put++
		h |= 1 << headerLength
	case kindWrite:
		put64(unsafe.Add(p, sqeExtra), uint64(o.extraOf(wr))|uint64(s.Length)<<32)
		put32(unsafe.Add(p, writeKey), wr.RKey)
		put64(unsafe.Add(p, writeAddr), wr.RemoteAddr)
		n := q.at(put + 1)
		putSegment(n, s.Addr, s.Length, s.LKey)
		put32(unsafe.Add(n, unitQPN), q.Num)
		put += 2
		h |= 1<<headerLength | 1<<headerUnits
	default:
		q.encodeRead(put, wr, s)
		put += 2
		h |= 1 << headerUnits
	}
	put64(p, h|uint64(put&indexMask))
	return put
}

// isShort reports whether a request has inline data alone, which fits in one unit: all of a
// WRITE's, and the half of a SEND's that its header leaves.
func (q *sendQueue) isShort(wr *verbs.SendWR, o operation) bool {
	room := unit - sendData
	if o.kind == kindWrite {
		room = unit
	}
	return len(wr.Inline) <= min(room, q.MaxInline) && len(wr.SGL) == 0 && o.kind-kindSend <= kindWrite-kindSend && uint64(len(wr.Inline)) < q.limit
}

// encodeShort writes a request that isShort and has no other arguments at unit put, and returns the
// unit behind it. What is behind the data in its unit stays as it was.
func (q *sendQueue) encodeShort(put uint32, wr *verbs.SendWR, o operation) uint32 {
	p, first := q.at(put), put
	h := q.header | uint64(flagsOf[wr.Flags&7]|flagInline) | uint64(o.opcode)<<headerOpcode | uint64(len(wr.Inline))<<headerLength
	put64(unsafe.Add(p, sqeExtra), uint64(o.extraOf(wr))|uint64(len(wr.Inline))<<32)
	to := unsafe.Add(p, sendData)
	put++
	if o.kind == kindWrite {
		put32(unsafe.Add(p, writeKey), wr.RKey)
		put64(unsafe.Add(p, writeAddr), wr.RemoteAddr)
		to = q.at(put)
		put++
	}
	i, from := 0, unsafe.Pointer(unsafe.SliceData(wr.Inline))
	for ; i+8 <= len(wr.Inline); i += 8 {
		put64(unsafe.Add(to, i), *(*uint64)(unsafe.Add(from, i)))
	}
	if i < len(wr.Inline) {
		copy(unsafe.Slice((*byte)(to), len(wr.Inline))[i:], wr.Inline[i:])
	}
	put64(p, h|uint64(put-first-1)<<headerUnits|uint64(put&indexMask))
	return put
}

// encodeRead writes what is behind the header of a READ: struct erdma_readreq_sqe, and the remote
// segment.
func (q *sendQueue) encodeRead(put uint32, wr *verbs.SendWR, s *verbs.SGE) {
	p := q.at(put)
	put32(unsafe.Add(p, sqeLength), s.Length)
	put32(unsafe.Add(p, writeKey), s.LKey)
	put64(unsafe.Add(p, writeAddr), s.Addr)
	putSegment(q.at(put+1), wr.RemoteAddr, s.Length, wr.RKey)
}

// postList is Post of any list.
func (q *sendQueue) postList(wrs []verbs.SendWR) (n int, err error) {
	q.Lock()
	defer q.UnlockIfPanicking() // inline data may be in memory that is unmapped; the queue is as it was
	head, put := q.head.Load(), q.put
	if uint64(q.most-(head-q.known)) < uint64(len(wrs)) {
		q.known = q.tail.Load()
	}
	room := min(len(wrs), int(q.most-(head-q.known)))
	if q.Closed || q.refusing.Load() != 0 {
		room = 0
	}
	for sents := q.sent; n < room; n++ {
		wr, first := &wrs[n], put
		sents[first&uint32(len(sents)-1)] = sent{wr.ID, head + uint32(n), first} // not in flight before head says so
		o := operationOf(wr.Opcode)
		if len(wr.Inline) > 0 {
			if wr.Args == nil && q.isShort(wr, o) {
				put = q.encodeShort(put, wr, o)
				continue
			}
		} else if len(wr.SGL) == 1 && wr.Args == nil && o.kind-kindSend <= kindRead-kindSend && uint64(wr.SGL[0].Length) < q.limit {
			put = q.encodeOne(put, wr, o)
			continue
		}
		if put, err = q.encode(put, wr, o); err != nil {
			break
		}
	}
	if n > 0 {
		q.put = put
		mmap.StoreRelease(&q.head, head+uint32(n))
		mmap.StoreDoorbell64(q.record, q.register, uint64(q.Num)<<headerQPN|uint64(put&indexMask))
	}
	if n < len(wrs) || n == 0 {
		n, err = q.postRest(wrs, n, err)
	}
	q.Unlock()
	return n, err
}

// postRest ends Post if err refused request n, or the queue has not taken it.
//
//go:noinline
func (q *sendQueue) postRest(wrs []verbs.SendWR, n int, err error) (int, error) {
	switch {
	case q.Closed:
		return n, q.Err()
	case err != nil:
	case q.refusing.Load()&refusesFailed != 0:
		// The device completes nothing that is posted to a QP in the error state (for the kernel's own
		// QPs, erdma_flush_worker has it flush again). Verbs promise a flushed completion, behind those of
		// earlier requests.
		q.flushAfter.Store(q.lastSignaled())
		for i := n; i < len(wrs); i++ {
			if !q.qp.sendCQ.flush(&q.Requests, q.most, wrs[i].ID, 0) {
				return i, verbs.ErrQueueFull
			}
		}
		return len(wrs), nil
	case q.refusing.Load() != 0:
		err = verbs.ErrState
	case n == len(wrs):
		return n, nil
	default:
		err = verbs.ErrQueueFull
	}
	if n == len(wrs) {
		return n, err
	}
	return n, q.Refused(n, wrs[n].ID, err)
}

// lastSignaled returns the number of requests up to the last that will complete. The device may have
// executed those behind it, and completes them only if it has not. The caller holds the lock.
func (q *sendQueue) lastSignaled() uint32 {
	head, tail := q.head.Load(), q.tail.Load()
	last := tail
	for i := range q.sent {
		s := &q.sent[i]
		if s.number-tail < head-tail && s.number+1-tail > last-tail && *(*uint64)(q.at(s.put))&flagSignaled != 0 {
			last = s.number + 1
		}
	}
	return last
}

// encode writes any request at unit put, and returns the unit behind it; put with an error.
func (q *sendQueue) encode(put uint32, wr *verbs.SendWR, o operation) (uint32, error) {
	p := q.at(put)
	h := q.header | uint64(flagsOf[wr.Flags&7]) | uint64(o.opcode)<<headerOpcode
	at, off := put, uint32(sendData) // unit and offset of the data
	switch o.kind {
	case kindSend:
	case kindWrite:
		at, off = put+1, 0
	case kindRead:
		s, err := q.single(wr)
		if err != nil {
			return put, err
		}
		q.encodeRead(put, wr, &s)
		put64(p, h|1<<headerUnits|uint64((put+2)&indexMask))
		return put + 2, nil
	case kindAtomic:
		s, err := q.single(wr)
		if err != nil {
			return put, err
		}
		if s.Length != 8 {
			return put, verbs.ErrAtomicSGL
		}
		q.encodeAtomic(put, wr, &s)
		put64(p, h|1<<headerUnits|uint64((put+2)&indexMask))
		return put + 2, nil
	default:
		return put, provider.RefuseOpcode(wr.Opcode)
	}
	var length uint64
	if provider.HasInline(wr) {
		var err error
		if at, off, length, err = q.encodeInline(at, off, wr); err != nil {
			return put, err
		}
		h |= flagInline | length<<headerLength
	} else {
		if len(wr.SGL) > q.MaxSGE {
			return put, verbs.ErrTooManySGEs
		}
		if length = provider.SumLengths(wr.SGL); length > q.MaxMessage {
			return put, verbs.ErrMessageTooLong
		}
		for i := range wr.SGL {
			s, d := &wr.SGL[i], q.at(at)
			putSegment(unsafe.Add(d, off), s.Addr, s.Length, s.LKey)
			if off == 0 {
				put32(unsafe.Add(d, unitQPN), q.Num)
			}
			at, off = at+off/segmentSize, segmentSize-off
		}
		h |= uint64(len(wr.SGL)) << headerLength
	}
	put64(unsafe.Add(p, sqeExtra), uint64(o.extraOf(wr))|length<<32)
	if o.kind == kindWrite {
		put32(unsafe.Add(p, writeKey), wr.RKey)
		put64(unsafe.Add(p, writeAddr), wr.RemoteAddr)
	}
	end := at + (off+unit-1)/unit
	put64(p, h|uint64(end-put-1)<<headerUnits|uint64(end&indexMask))
	return end, nil
}

// encodeAtomic writes what is behind the header of an atomic: struct erdma_atomic_sqe.
func (q *sendQueue) encodeAtomic(put uint32, wr *verbs.SendWR, s *verbs.SGE) {
	p, remote, args := q.at(put), q.at(put+1), provider.Args(wr)
	operand := args.CompareAdd
	if wr.Opcode == verbs.OpCompareSwap {
		operand = args.Swap
		put64(unsafe.Add(p, atomicCompare), args.CompareAdd)
	}
	put64(unsafe.Add(p, atomicOperand), operand)
	put64(remote, wr.RemoteAddr)
	put32(unsafe.Add(remote, atomicKey), wr.RKey)
	putSegment(unsafe.Add(remote, atomicLocal), s.Addr, s.Length, s.LKey)
}

// encodeInline copies inline data to an offset of a unit, and returns where it ends and how many bytes
// there are.
func (q *sendQueue) encodeInline(at, off uint32, wr *verbs.SendWR) (_, _ uint32, length uint64, err error) {
	if len(wr.SGL) > 0 {
		return at, off, length, verbs.ErrInlineSGL
	}
	left := q.MaxInline
	list := provider.Args(wr).InlineList
	for i := -1; i < len(list); i++ {
		b := wr.Inline
		if i >= 0 {
			b = list[i]
		}
		if len(b) > left {
			return at, off, length, verbs.ErrInlineTooLong
		}
		left -= len(b)
		for len(b) > 0 {
			n := copy(unsafe.Slice((*byte)(unsafe.Add(q.at(at), off)), unit-off), b)
			b, off = b[n:], off+uint32(n)
			at, off = at+off/unit, off%unit
		}
	}
	if length = uint64(q.MaxInline - left); length > q.MaxMessage {
		return at, off, length, verbs.ErrMessageTooLong
	}
	return at, off, length, nil
}

// single returns the segment of a request that has one.
func (q *sendQueue) single(wr *verbs.SendWR) (s verbs.SGE, err error) {
	switch {
	case provider.HasInline(wr) && len(wr.SGL) > 0:
		return s, verbs.ErrInlineSGL
	case provider.HasInline(wr):
		return s, verbs.ErrInlineOp
	case len(wr.SGL) > min(q.MaxSGE, 1):
		return s, verbs.ErrTooManySGEs
	case len(wr.SGL) == 0:
		return s, nil
	case uint64(wr.SGL[0].Length) > q.MaxMessage:
		return s, verbs.ErrMessageTooLong
	}
	return wr.SGL[0], nil
}

// complete returns the ID of the request that begins at a unit, and frees the room of it and all
// earlier requests. ok is false if no such request is in flight. The caller holds the CQ's lock.
func (q *sendQueue) complete(index uint32) (id uint64, ok bool) {
	s := &q.sent[index&q.mask]
	head, tail := q.head.Load(), q.tail.Load()
	if s.number-tail >= head-tail || (s.put^index)&indexMask != 0 {
		return 0, false
	}
	id = s.id
	mmap.StoreRelease(&q.tail, s.number+1)
	return id, true
}

// Flush implements [provider.Flusher].
func (q *sendQueue) Flush() (wcs []verbs.WC) {
	defer q.Unlock()
	if !q.Lose() {
		return nil
	}
	q.qp.sendCQ.Exclude() // for tail
	defer q.qp.sendCQ.Allow()
	return q.takeUntil(q.head.Load())
}

// takeUntil completes the requests before a number as flushed. The caller has the lock, and excludes Take.
func (q *sendQueue) takeUntil(end uint32) (wcs []verbs.WC) {
	tail := q.tail.Load()
	for i := range uint32(len(q.sent)) {
		if s := &q.sent[(q.put+i)&q.mask]; s.number-tail < end-tail {
			wcs = append(wcs, verbs.WC{ID: s.id, Status: verbs.WCFlushErr, QPNum: q.Num})
		}
	}
	q.tail.Store(end)
	return wcs
}

// takeLate completes the requests that the device has not flushed; see lastSignaled.
func (q *sendQueue) takeLate() []verbs.WC { return q.takeUntil(q.lastSignaled()) }

// Cap implements [provider.SendQueue].
func (q *sendQueue) Cap() int { return int(q.most) }

// Settle implements [provider.Stateful]. uverbs calls it before Settle of the receive queue, while both
// are suspended. After a reset both begin at 0 again, as the device does and the kernel's own queues
// (erdma_reset_qp). On iWARP there is none: the kernel leaves the state as it is
// (erdma_modify_qp_state_iwarp).
func (q *sendQueue) Settle(s verbs.QPState, moved bool) {
	iwarp := q.qp.ctx.dev.IWARP
	if moved && s == verbs.StateReset && !q.Closed && !iwarp {
		q.qp.clean()
		q.qp.sendCQ.Exclude()             // flushLate
		q.put, q.known = 0, q.head.Load() // numbers continue, so that those in sent stay old
		q.tail.Store(q.known)
		q.qp.sendCQ.Allow()
		q.record.Store(0)
	}
	if moved && s == verbs.StateErr {
		q.qp.fail()
	}
	if moved {
		q.refusing.settle(s, verbs.StateRTS, iwarp)
	}
	q.Gate.Settle(s, moved)
}

// Release implements [provider.Queue].
func (q *sendQueue) Release() {
	q.Stop(true)
	q.qp.release()
}
