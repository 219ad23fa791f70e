package mlx5

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/provider"
)

// SendQueue is an mlx5 QP's send queue. It is exported so that uverbs can call it
// without an interface, through which the caller's work requests would escape
// to the heap.
//
// Requests are counted in two ways: the device counts blocks, of which a request takes one or more,
// and the queue's room is in requests. The room of a request is free when its completion, or that of a
// later one, has been polled.
type SendQueue struct {
	provider.Gate
	qp        *queuePair
	base      unsafe.Pointer
	mask      uint32 // blocks - 1
	bytes     uintptr
	put       uint32 // blocks posted
	most      uint32 // requests that the queue takes
	known     uint32 // tail as last read: another processor may have written it
	head      atomic.Uint32
	record    *atomic.Uint32
	maxSGE    int
	maxInline int
	maxMsg    uint64
	typ       verbs.QPType
	signalAll bool
	num       uint32
	sent      []sent // by a request's first block

	_    [64]byte      // Poll writes what follows, perhaps on another processor
	tail atomic.Uint32 // requests completed
}

// sent is a request that has been posted.
type sent struct {
	id     uint64
	number uint32 // of the request
}

func newSendQueue(p *queuePair, mem []byte, size plan, init *provider.QPInit) *SendQueue {
	port := &p.ctx.dev.Port
	q := &SendQueue{
		Gate: provider.Gate{SingleThreaded: init.SingleThreaded}, qp: p, base: unsafe.Pointer(unsafe.SliceData(mem)),
		mask: uint32(max(size.entries, 1) - 1), bytes: uintptr(size.entries) * block, most: uint32(size.requests),
		record: mmap.Word(p.record, sendWord), maxSGE: init.Cap.MaxSendSGE, maxInline: init.Cap.MaxInline,
		maxMsg: uint64(uint32(port.MaxMessage)), typ: init.Type, signalAll: init.SignalAll, num: p.num, sent: make([]sent, size.entries),
	}
	for i := range q.sent {
		q.sent[i].number = 1<<32 - 1 // none
	}
	if init.Type == verbs.UD {
		q.maxMsg = uint64(port.ActiveMTU.Bytes())
	}
	return q
}

// Post implements [provider.SendQueue].
func (q *SendQueue) Post(wrs []verbs.SendWR) (int, error) {
	q.Lock() // a deferred call would take longer; only encodeInline can panic
	n, err := q.post(wrs)
	q.Unlock()
	return n, err
}

func (q *SendQueue) post(wrs []verbs.SendWR) (int, error) {
	if q.Closed {
		return 0, q.Err()
	}
	var err error
	if q.State < verbs.StateRTS {
		err = verbs.ErrState
	}
	head, put, first := q.head.Load(), q.put, q.put // a panic leaves the queue as it was
	if uint64(q.most-(head-q.known)) < uint64(len(wrs)) {
		q.known = q.tail.Load()
	}
	n, room := 0, int(q.most-(head-q.known))
	for ; err == nil && n < len(wrs); n++ {
		if n == room {
			if err = verbs.ErrQueueFull; q.most == 0 {
				err = verbs.ErrNoSendRoom
			}
			break
		}
		i := put & q.mask
		var units int
		if units, err = q.encode(put, &wrs[n]); err != nil {
			break
		}
		q.sent[i] = sent{wrs[n].ID, head + uint32(n)}
		first = put
		put += uint32(units*unit+block-1) / block
	}
	if n > 0 {
		q.put = put
		mmap.StoreRelease(&q.head, head+uint32(n)) // Poll finds the requests in sent
		q.ring(first, n == 1)
	}
	if err != nil && err != verbs.ErrQueueFull && len(wrs) > 0 {
		err = &verbs.PostError{Op: "post send", QPNum: q.num, Index: n, ID: wrs[n].ID, Err: err}
	}
	return n, err
}

// ring tells the device that there are requests up to put, of which the last begins at block first.
func (q *SendQueue) ring(first uint32, single bool) {
	mmap.BarrierToDevice() // a device that sees the record's count sees the requests
	mmap.StoreRelease(q.record, swap32(q.put&0xffff))
	// The record before the register, from which the device goes to the record. The store to it
	// may be combined with others, so no barrier for memory is enough (libmlx5: mmio_wc_start).
	mmap.FlushDevice()
	reg, p := q.qp.reg, unsafe.Add(q.base, uintptr(first&q.mask)*block)
	if size := uintptr(q.put-first) * block; single && size <= reg.half {
		to := unsafe.Add(reg.mem, reg.offset)
		for i := uintptr(0); i < size; i += block {
			at := (uintptr(first&q.mask)*block + i) & (q.bytes - 1)
			mmap.CopyDevice((*[block]byte)(unsafe.Add(to, i)), (*[block]byte)(unsafe.Add(q.base, at)))
		}
	} else {
		mmap.StoreDevice((*uint64)(unsafe.Add(reg.mem, reg.offset)), *(*uint64)(p))
	}
	// The store leaves the processor before the lock is released: else that of a later request,
	// by another processor, might overtake it (mmio_flush_writes).
	mmap.FlushDevice()
	if reg.half != 0 { // other QPs may share one without halves
		reg.offset ^= reg.half
	}
}

// encode writes a request at block put, and returns how many units it takes. Only its data may wrap
// around: a block has room for all that precedes it.
func (q *SendQueue) encode(put uint32, wr *verbs.SendWR) (int, error) {
	if int(wr.Opcode) >= len(operations) || operations[wr.Opcode].types&(1<<q.typ) == 0 {
		return 0, provider.RefuseOpcode(wr.Opcode)
	}
	off := uintptr(put&q.mask) * block
	o, p := &operations[wr.Opcode], unsafe.Add(q.base, off)
	var flags uint8
	if q.signalAll || wr.Flags&verbs.SendSignaled != 0 {
		flags = flagSignaled
	}
	if wr.Flags&verbs.SendSolicited != 0 {
		flags |= flagSolicited
	}
	if wr.Flags&verbs.SendFence != 0 {
		flags |= flagFence
	}
	size := int(o.head)
	if o.remote {
		putRemote(unsafe.Add(p, ctrlSize), wr.RemoteAddr, wr.RKey)
	}
	var imm uint32
	switch wr.Opcode {
	case verbs.OpSendImm, verbs.OpRDMAWriteImm:
		imm = wr.Imm
	case verbs.OpSendInv:
		imm = wr.InvalidateRKey
	case verbs.OpCompareSwap: // struct mlx5_wqe_atomic_seg: swap_add, compare
		put64(unsafe.Add(p, ctrlSize+remoteSize), wr.Swap)
		put64(unsafe.Add(p, ctrlSize+remoteSize+8), wr.CompareAdd)
	case verbs.OpFetchAdd: // which has nothing to compare
		put64(unsafe.Add(p, ctrlSize+remoteSize), wr.CompareAdd)
	}
	if q.typ == verbs.UD {
		a := q.qp.ctx.ahs.get(wr.To.AH)
		if a == nil {
			return 0, fmt.Errorf("there is no address handle with number %d", wr.To.AH)
		}
		a.put(unsafe.Add(p, ctrlSize), &wr.To)
		size += avSize
	}
	var n int
	var err error
	if len(wr.Inline) > 0 || len(wr.InlineList) > 0 {
		n, err = q.encodeInline(off+uintptr(size), wr, o)
	} else {
		n, err = q.encodeSGL(off+uintptr(size), wr)
	}
	if err != nil {
		return 0, err
	}
	units := (size + n + unit - 1) / unit
	putControl(p, o.opcode, uint16(put), q.num, units, flags, imm)
	return units, nil
}

// encodeSGL writes the data segments, and returns how many bytes they take.
func (q *SendQueue) encodeSGL(off uintptr, wr *verbs.SendWR) (int, error) {
	if len(wr.SGL) > q.maxSGE {
		return 0, verbs.ErrTooManySGEs
	}
	var length uint64
	n := 0
	for i := range wr.SGL {
		s := &wr.SGL[i]
		if s.Length == 0 { // it would mean 2 GiB
			continue
		}
		if s.Length > maxSegment {
			return 0, verbs.ErrMessageTooLong
		}
		length += uint64(s.Length)
		putSegment(unsafe.Add(q.base, (off+uintptr(n))&(q.bytes-1)), s)
		n += segmentSize
	}
	switch {
	case length > q.maxMsg:
		return 0, verbs.ErrMessageTooLong
	case length != 8 && (wr.Opcode == verbs.OpCompareSwap || wr.Opcode == verbs.OpFetchAdd):
		return 0, verbs.ErrAtomicSGL
	}
	return n, nil
}

// encodeInline copies the data, which may wrap around, behind struct mlx5_wqe_inline_seg, and returns
// how many bytes both take.
func (q *SendQueue) encodeInline(off uintptr, wr *verbs.SendWR, o *operation) (int, error) {
	switch {
	case len(wr.SGL) > 0:
		return 0, verbs.ErrInlineSGL
	case o.reads:
		return 0, verbs.ErrInlineOp
	}
	ring := unsafe.Slice((*byte)(q.base), q.bytes)
	head := off & (q.bytes - 1)
	at, n := head+inlineHead, 0 // the word itself does not wrap around
	defer q.UnlockIfPanicking() // the caller's memory may be gone
	if at, n = q.copyInline(ring, at, n, wr.Inline); n < 0 {
		return 0, verbs.ErrInlineTooLong
	}
	for _, b := range wr.InlineList {
		if at, n = q.copyInline(ring, at, n, b); n < 0 {
			return 0, verbs.ErrInlineTooLong
		}
	}
	if uint64(n) > q.maxMsg {
		return 0, verbs.ErrMessageTooLong
	}
	if n == 0 { // no segment: planQP leaves no room for one in a queue without inline data
		return 0, nil
	}
	put32(unsafe.Add(q.base, head), uint32(n)|inlineBit)
	return inlineHead + n, nil
}

// copyInline copies b to the ring, behind n bytes, and returns where it ends and how many bytes there are
// then, or -1 if that is too many.
func (q *SendQueue) copyInline(ring []byte, at uintptr, n int, b []byte) (uintptr, int) {
	if len(b) > q.maxInline-n {
		return at, -1
	}
	k := copy(ring[at:], b)
	copy(ring, b[k:])
	if at += uintptr(len(b)); at >= q.bytes {
		at -= q.bytes
	}
	return at, n + len(b)
}

// complete returns the ID of the request that begins at a block, of which the device has counted 16
// bits, and frees its room and that of all before it. It reports false if no such request is in flight.
// The caller holds the CQ's lock.
func (q *SendQueue) complete(counter uint16) (id uint64, ok bool) {
	i := int(uint32(counter) & q.mask)
	head, tail := q.head.Load(), q.tail.Load()
	if i >= len(q.sent) {
		return 0, false
	}
	s := &q.sent[i]
	if s.number-tail >= head-tail {
		return 0, false
	}
	id = s.id
	mmap.StoreRelease(&q.tail, s.number+1)
	return id, true
}

// Flush implements [provider.Flusher].
func (q *SendQueue) Flush() (wcs []verbs.WC) {
	defer q.Unlock()
	if !q.Lose() {
		return nil
	}
	q.qp.sendCQ.Lock() // for tail
	defer q.qp.sendCQ.Unlock()
	head, tail := q.head.Load(), q.tail.Load()
	for i := range uint32(len(q.sent)) {
		if s := &q.sent[(q.put+i)&q.mask]; s.number-tail < head-tail {
			wcs = append(wcs, verbs.WC{ID: s.id, Status: verbs.WCFlushErr, QPNum: q.num})
		}
	}
	q.tail.Store(head)
	return wcs
}

// Cap implements [provider.SendQueue].
func (q *SendQueue) Cap() int { return int(q.most) }

// Modify implements [provider.SendQueue]. It notes the port, which completions of datagrams name.
func (q *SendQueue) Modify(attr verbs.QPAttr, mask verbs.QPAttrMask, modify func(provider.UHW) error) error {
	err := modify(provider.UHW{})
	if err == nil && mask&verbs.MaskPort != 0 {
		q.qp.port.Store(uint32(attr.Port))
	}
	return err
}

// Settle implements [provider.Stateful]. It is called before that of the receive queue, while both are
// suspended. A QP that has been reset begins with block 0 again, as the device does.
func (q *SendQueue) Settle(s verbs.QPState, moved bool) {
	if moved && s == verbs.StateReset && !q.Closed {
		q.qp.clean()
		q.put, q.known = 0, q.head.Load() // numbers go on, so that those in sent stay old ones
		q.tail.Store(q.known)
		q.record.Store(0)
	}
	q.Gate.Settle(s, moved)
}

// Release implements [provider.Queue].
func (q *SendQueue) Release() {
	q.Stop(true)
	q.qp.release()
}
