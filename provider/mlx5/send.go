package mlx5

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/provider"
)

// sendQueue is the send queue of a QP.
//
// The device counts blocks, of which a request takes one or more. The queue's room is counted in
// requests; a long UMR request counts as several. A request's room becomes free when Poll returns
// its completion, or the completion of a later request.
type sendQueue struct {
	provider.Sends
	qp       *queuePair
	base     unsafe.Pointer
	mask     uint32 // blocks - 1
	bytes    uintptr
	put      uint32 // blocks posted
	most     uint32 // requests that the queue takes
	size     uint32 // blocks of the longest request, UMR requests excepted
	known    uint32 // tail, as last read: reading it may fetch its cache line from another processor
	head     atomic.Uint32
	record   *atomic.Uint32
	maxFirst uint32 // longest message of one segment
	accepts  uint8  // bit of the QP type, or 0 behind a UMR request, see postRare
	key      uint64 // of a DCI's targets
	sent     []sent // by the request's first block

	_    [64]byte      // Poll writes what follows, perhaps on another processor
	tail atomic.Uint32 // requests completed
}

// sent is a request that has been posted.
type sent struct {
	id     uint64
	number uint32 // with a mark if it is a UMR request
}

func newSendQueue(p *queuePair, mem []byte, size plan, init *provider.QPInit, info provider.QPInfo) *sendQueue {
	q := &sendQueue{
		qp: p, base: unsafe.Pointer(unsafe.SliceData(mem)),
		mask: uint32(max(size.entries, 1) - 1), bytes: uintptr(size.entries) * block, most: uint32(size.requests), size: uint32(sendSize(init.Type, init.Cap.MaxSendSGE, init.Cap.MaxInline) / block),
		record: mmap.Word(p.record, sendWord), accepts: typeBit(init.Type), key: init.DCKey, sent: make([]sent, size.entries),
	}
	q.InitSends(p.ctx.dev, init, info)
	q.MaxSGE, q.MaxInline = init.Cap.MaxSendSGE, init.Cap.MaxInline // the kernel returns more
	q.maxFirst = min(q.MaxOneSGE(), maxSegment)
	for i := range q.sent {
		q.sent[i].number = 1<<32 - 1 // none
	}
	return q
}

// Post implements [provider.SendQueue]. The common case, one request with one segment, makes no
// calls, so nothing is spilled.
func (q *sendQueue) Post(wrs []verbs.SendWR) (int, error) {
	if len(wrs) != 1 {
		return q.postList(wrs)
	}
	if len(wrs[0].Inline) > 0 {
		return q.postShort(wrs)
	}
	if len(wrs[0].SGL) != 1 || wrs[0].Args != nil || !q.TryLock() {
		return q.postList(wrs)
	}
	wr := &wrs[0]
	o, head, put := operationOf(wr.Opcode), q.head.Load(), q.put
	if head-q.known >= q.most || q.Closed || q.State < verbs.StateRTS || o.simple&q.accepts == 0 || wr.SGL[0].Length-1 >= q.maxFirst {
		return q.postLocked(wrs)
	}
	i := put & q.mask
	p := unsafe.Add(q.base, uintptr(i)*block)
	at, imm := q.encodeHead(p, wr, o)
	putSegment(unsafe.Add(p, at), &wr.SGL[0])
	putControl(p, o.opcode, uint16(put), q.Num, int(at/unit)+1, q.flags(wr.Flags), imm)
	q.sent[i] = sent{wr.ID, head}
	q.put = put + 1
	mmap.StoreRelease(&q.head, head+1) // Poll finds the request in sent
	q.ring(p, swap32((put+1)&0xffff), true)
	q.Unlock()
	return 1, nil
}

// postShort posts a request whose inline data fits in its block.
func (q *sendQueue) postShort(wrs []verbs.SendWR) (int, error) {
	wr := &wrs[0]
	o, length := operationOf(wr.Opcode), len(wr.Inline)
	at := uintptr(o.head)
	n := (inlineHead + length + 7) / 8
	if length > q.MaxInline || at+uintptr(n*8) > block || o.reads || len(wr.SGL) != 0 || wr.Args != nil || q.Type > verbs.UC {
		return q.postList(wrs)
	}
	// The data is read without the lock, as reading it may panic. It is assembled in words: the
	// copy to the register would wait for stores of parts of one. Zeros, which the device does not
	// read, fill the last word. Both processors of OrdersDevice are little-endian.
	var words [block/8 + 1]uint64
	data, last, k := wr.Inline, uint64(swap32(uint32(length)|inlineBit)), 0
	for ; len(data) >= 8; data = data[8:] {
		v := binary.LittleEndian.Uint64(data)
		words[k&7] = last | v<<32
		last = v >> 32
		k++
	}
	for i, c := range data {
		if i == 4 {
			words[k&7], last = last, 0
			k++
		}
		last |= uint64(c) << ((32 + 8*i) & 63)
	}
	words[k&7] = last
	if !q.TryLock() {
		return q.postList(wrs)
	}
	head, put := q.head.Load(), q.put
	if head-q.known >= q.most || q.Closed || q.State < verbs.StateRTS || o.simple&q.accepts == 0 {
		return q.postLocked(wrs)
	}
	i := put & q.mask
	p := unsafe.Add(q.base, uintptr(i)*block)
	_, imm := q.encodeHead(p, wr, o)
	for k, w := range words[:n] {
		*(*uint64)(unsafe.Add(p, at+uintptr(k)*8)) = w
	}
	putControl(p, o.opcode, uint16(put), q.Num, (int(at)+inlineHead+length+unit-1)/unit, q.flags(wr.Flags), imm)
	q.sent[i] = sent{wr.ID, head}
	q.put = put + 1
	mmap.StoreRelease(&q.head, head+1)
	q.ring(p, swap32((put+1)&0xffff), true)
	q.Unlock()
	return 1, nil
}

// ring rings the doorbell for the requests up to block count. A single request, in the block p, is
// copied to the register.
func (q *sendQueue) ring(p unsafe.Pointer, count uint32, single bool) {
	// The record is stored before the register, which makes the device read the record. Stores to
	// the register may be combined with others, so a barrier for memory is not enough (libmlx5:
	// mmio_wc_start). The store to the register leaves the processor before the lock is released,
	// or another processor's store for a later request might overtake it (mmio_flush_writes).
	mmap.BarrierToDevice() // a device that sees the record's count sees the requests
	reg := q.qp.reg
	if reg.half == 0 { // shared: to write the struct would take its cache line from other QPs
		mmap.StoreDoorbell(q.record, count, (*uint64)(reg.mem), *(*uint64)(p))
		return
	}
	to := unsafe.Add(reg.mem, reg.offset)
	if single {
		mmap.CopyDoorbell(q.record, count, (*[block]byte)(to), (*[block]byte)(p))
	} else {
		mmap.StoreDoorbell(q.record, count, (*uint64)(to), *(*uint64)(p))
	}
	reg.offset ^= reg.half
}

// postList is Post of any list. It leaves the requests from the first with inline data on to
// postInline.
func (q *sendQueue) postList(wrs []verbs.SendWR) (int, error) {
	q.Lock() // a deferred call would take longer; only postInline can panic
	return q.postLocked(wrs)
}

// postLocked is postList of a queue that is locked.
func (q *sendQueue) postLocked(wrs []verbs.SendWR) (int, error) {
	if q.Type > verbs.UC {
		return q.postTo(wrs)
	}
	head, put, n := q.head.Load(), q.put, 0
	first, room := put, q.room(len(wrs))
	var err error
	for ; n < room; n++ {
		wr, i := &wrs[n], put&q.mask
		if provider.HasInline(wr) {
			return q.postInline(wrs, n, room, put, first)
		}
		blocks := uint32(1)
		if o := operationOf(wr.Opcode); len(wr.SGL) == 1 && o.simple&q.accepts != 0 && wr.SGL[0].Length-1 < q.maxFirst {
			p := unsafe.Add(q.base, uintptr(i)*block)
			at, imm := q.encodeHead(p, wr, o)
			putSegment(unsafe.Add(p, at), &wr.SGL[0])
			putControl(p, o.opcode, uint16(put), q.Num, int(at/unit)+1, q.flags(wr.Flags), imm)
		} else if blocks, err = q.encode(put, wr); err != nil {
			if err == errRare {
				return q.postRare(wrs, n, put, first)
			}
			break
		}
		q.sent[i] = sent{wr.ID, head + uint32(n)}
		first = put
		put += blocks
	}
	return q.finish(wrs, n, put, first, err)
}

// postTo is postLocked of requests with an address vector. That and the control segment fill the first
// block, so the rest is in the next one, which may be the first of the queue.
func (q *sendQueue) postTo(wrs []verbs.SendWR) (_ int, err error) {
	copied := false
	defer func() {
		if !copied { // the caller's memory may be unmapped; the queue is as it was
			q.Unlock()
		}
	}()
	head, put, n := q.head.Load(), q.put, 0
	first, room := put, q.room(len(wrs))
	for ; n < room; n++ {
		wr, i, blocks := &wrs[n], put&q.mask, uint32(2)
		o, a, length := operationOf(wr.Opcode), q.qp.ctx.ahs.get(wr.To.AH), len(wr.Inline)
		if a != nil && o.simple != 0 && o.types&q.accepts != 0 && wr.Args == nil &&
			(length == 0 && len(wr.SGL) == 1 && wr.SGL[0].Length-1 < q.maxFirst ||
				length > 0 && length <= min(q.MaxInline, block-inlineHead-remoteSize) && len(wr.SGL) == 0 && !o.reads) {
			p, rest := unsafe.Add(q.base, uintptr(i)*block), unsafe.Add(q.base, uintptr((put+1)&q.mask)*block)
			if q.Type == verbs.DCI {
				a.putDC(unsafe.Add(p, ctrlSize), wr.To.QPNum, q.key)
			} else {
				a.put(unsafe.Add(p, ctrlSize), &wr.To)
			}
			size, imm := int(o.head)+avSize, uint32(0)
			if o.remote {
				putRemote(rest, wr.RemoteAddr, wr.RKey)
				rest = unsafe.Add(rest, remoteSize)
			}
			if o.imm {
				imm = wr.Imm
			}
			if length == 0 {
				putSegment(rest, &wr.SGL[0])
				size += segmentSize
			} else {
				put32(rest, uint32(length)|inlineBit)
				copy(unsafe.Slice((*byte)(unsafe.Add(rest, inlineHead)), length), wr.Inline)
				size += inlineHead + length
			}
			putControl(p, o.opcode, uint16(put), q.Num, (size+unit-1)/unit, q.flags(wr.Flags), imm)
		} else if blocks, err = q.encode(put, wr); err != nil {
			if copied = true; err == errRare {
				return q.postRare(wrs, n, put, first)
			}
			break
		}
		q.sent[i] = sent{wr.ID, head + uint32(n)}
		first = put
		put += blocks
	}
	copied = true
	return q.finish(wrs, n, put, first, err)
}

// postInline is the rest of Post from request n on.
func (q *sendQueue) postInline(wrs []verbs.SendWR, n, room int, put, first uint32) (_ int, err error) {
	copied := false
	defer func() {
		if !copied { // the caller's memory may be unmapped; the queue is as it was
			q.Unlock()
		}
	}()
	for head := q.head.Load(); n < room; n++ {
		wr, i := &wrs[n], put&q.mask
		blocks := uint32(1)
		o, length := operationOf(wr.Opcode), len(wr.Inline)
		if at := int(o.head); o.simple&q.accepts != 0 && !o.reads && len(wr.SGL) == 0 && wr.Args == nil &&
			length > 0 && length <= min(q.MaxInline, block-inlineHead-at) {
			p := unsafe.Add(q.base, uintptr(i)*block)
			_, imm := q.encodeHead(p, wr, o)
			put32(unsafe.Add(p, at), uint32(length)|inlineBit)
			copy(unsafe.Slice((*byte)(unsafe.Add(p, at+inlineHead)), length), wr.Inline)
			putControl(p, o.opcode, uint16(put), q.Num, (at+inlineHead+length+unit-1)/unit, q.flags(wr.Flags), imm)
		} else if blocks, err = q.encode(put, wr); err != nil {
			if copied = true; err == errRare {
				return q.postRare(wrs, n, put, first)
			}
			break
		}
		q.sent[i] = sent{wr.ID, head + uint32(n)}
		first = put
		put += blocks
	}
	copied = true
	return q.finish(wrs, n, put, first, err)
}

// room returns how many of n requests can be posted.
func (q *sendQueue) room(n int) int {
	head := q.head.Load()
	if uint64(q.most-(head-q.known)) < uint64(n) {
		q.known = q.tail.Load()
	}
	if q.Closed || q.State < verbs.StateRTS {
		return 0
	}
	return min(n, int(q.most-(head-q.known)))
}

// encodeHead writes the segment of a simple request between control segment and data, if it has
// one, and returns the data's offset and the immediate.
func (q *sendQueue) encodeHead(p unsafe.Pointer, wr *verbs.SendWR, o *operation) (at uintptr, imm uint32) {
	at = ctrlSize
	if o.remote {
		putRemote(unsafe.Add(p, ctrlSize), wr.RemoteAddr, wr.RKey)
		at += remoteSize
	}
	if o.imm {
		imm = wr.Imm
	}
	return at, imm
}

// finish ends Post after n requests. The last one begins at block first and ends before block put;
// err refused the next. finish rings the doorbell and unlocks the queue.
func (q *sendQueue) finish(wrs []verbs.SendWR, n int, put, first uint32, err error) (int, error) {
	if n > 0 {
		q.put = put
		mmap.StoreRelease(&q.head, q.head.Load()+uint32(n)) // Poll finds the requests in sent
		reg, p, count, blocks := q.qp.reg, unsafe.Add(q.base, uintptr(first&q.mask)*block), swap32(put&0xffff), put-first
		if n > 1 || blocks == 1 || uintptr(blocks) > reg.half/block {
			q.ring(p, count, n == 1 && blocks == 1)
		} else {
			q.copyBlocks(first, blocks, count)
		}
	}
	if n < len(wrs) || n == 0 {
		err = q.refused(wrs, n, err)
	}
	q.Unlock()
	return n, err
}

// copyBlocks is ring for a request of several blocks that is copied to the register.
func (q *sendQueue) copyBlocks(first, blocks, count uint32) {
	mmap.BarrierToDevice()
	mmap.StoreRelease(q.record, count)
	mmap.FlushDevice()
	reg := q.qp.reg
	for i := range blocks {
		to, from := unsafe.Add(reg.mem, reg.offset+uintptr(i)*block), unsafe.Add(q.base, uintptr((first+i)&q.mask)*block)
		mmap.CopyDevice((*[block]byte)(to), (*[block]byte)(from))
	}
	mmap.FlushDevice()
	reg.offset ^= reg.half
}

// refused returns why request n was not posted.
//
//go:noinline
func (q *sendQueue) refused(wrs []verbs.SendWR, n int, err error) error {
	switch {
	case q.Closed:
		return q.Err()
	case err != nil:
	case q.Type == verbs.DCT:
		err = errTarget
	case q.State < verbs.StateRTS:
		err = verbs.ErrState
	case n == len(wrs):
		return nil
	case q.most == 0:
		err = verbs.ErrNoSendRoom
	default:
		err = verbs.ErrQueueFull
	}
	if n == len(wrs) {
		return err
	}
	return q.Refused(n, wrs[n].ID, err)
}

// flags returns the flags of a request's control segment.
func (q *sendQueue) flags(f verbs.SendFlags) uint8 {
	v := flagsOf[f&(verbs.SendFence|verbs.SendSignaled|verbs.SendSolicited)]
	if q.SignalAll {
		v |= flagSignaled
	}
	return v
}

// encode writes a request at block put, and returns how many blocks it takes, or errRare if
// postRare is to post it. Only the data may wrap around: the segments before it fit in a block, on a
// DCI in two.
func (q *sendQueue) encode(put uint32, wr *verbs.SendWR) (blocks uint32, err error) {
	o := operationOf(wr.Opcode)
	if o.types&q.accepts == 0 {
		return 0, errRare
	}
	off := uintptr(put&q.mask) * block
	p := unsafe.Add(q.base, off)
	size := int(o.head)
	rest := unsafe.Add(p, ctrlSize)
	if q.Type == verbs.DCI {
		if rest, err = q.putTarget(off, wr); err != nil {
			return 0, err
		}
		size += avSize
	}
	if o.remote {
		putRemote(rest, wr.RemoteAddr, wr.RKey)
	}
	var imm uint32
	switch wr.Opcode {
	case verbs.OpSendImm, verbs.OpRDMAWriteImm:
		imm = wr.Imm
	case verbs.OpSendInv:
		imm = wr.RKey
	case verbs.OpCompareSwap: // struct mlx5_wqe_atomic_seg: swap_add, compare
		put64(unsafe.Add(rest, remoteSize), provider.Args(wr).Swap)
		put64(unsafe.Add(rest, remoteSize+8), provider.Args(wr).CompareAdd)
	case verbs.OpFetchAdd: // has no second operand
		put64(unsafe.Add(rest, remoteSize), provider.Args(wr).CompareAdd)
	}
	if q.Type == verbs.UD {
		a, err := q.handle(wr)
		if err != nil {
			return 0, err
		}
		a.put(unsafe.Add(p, ctrlSize), &wr.To)
		size += avSize
	}
	var n int
	if provider.HasInline(wr) {
		n, err = q.encodeInline(off+uintptr(size), wr, o)
	} else {
		n, err = q.encodeSGL(off+uintptr(size), wr)
	}
	if err != nil {
		return 0, err
	}
	units := (size + n + unit - 1) / unit
	putControl(p, o.opcode, uint16(put), q.Num, units, q.flags(wr.Flags), imm)
	return uint32(units*unit+block-1) / block, nil
}

// handle returns the address handle of a request.
func (q *sendQueue) handle(wr *verbs.SendWR) (*addressHandle, error) {
	a := q.qp.ctx.ahs.get(wr.To.AH)
	if a == nil {
		return nil, fmt.Errorf("there is no address handle with number %d", wr.To.AH)
	}
	return a, nil
}

// encodeSGL writes the data segments, and returns how many bytes they take.
func (q *sendQueue) encodeSGL(off uintptr, wr *verbs.SendWR) (int, error) {
	if len(wr.SGL) > q.MaxSGE {
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
	case length > q.MaxMessage:
		return 0, verbs.ErrMessageTooLong
	// More segments would make the request longer than sendSize says, by which the room is counted.
	case (length != 8 || n != segmentSize) && (wr.Opcode == verbs.OpCompareSwap || wr.Opcode == verbs.OpFetchAdd):
		return 0, verbs.ErrAtomicSGL
	}
	return n, nil
}

// encodeInline copies the data, which may wrap around, behind struct mlx5_wqe_inline_seg, and
// returns how many bytes both take.
func (q *sendQueue) encodeInline(off uintptr, wr *verbs.SendWR, o *operation) (int, error) {
	switch {
	case len(wr.SGL) > 0:
		return 0, verbs.ErrInlineSGL
	case o.reads:
		return 0, verbs.ErrInlineOp
	}
	ring := unsafe.Slice((*byte)(q.base), q.bytes)
	head := off & (q.bytes - 1)
	at, n := head+inlineHead, 0 // the word itself does not wrap around
	if at, n = q.copyInline(ring, at, n, wr.Inline); n < 0 {
		return 0, verbs.ErrInlineTooLong
	}
	for _, b := range provider.Args(wr).InlineList {
		if at, n = q.copyInline(ring, at, n, b); n < 0 {
			return 0, verbs.ErrInlineTooLong
		}
	}
	if uint64(n) > q.MaxMessage {
		return 0, verbs.ErrMessageTooLong
	}
	if n == 0 { // no segment: planQP leaves no room for one in a queue without inline data
		return 0, nil
	}
	put32(unsafe.Add(q.base, head), uint32(n)|inlineBit)
	return inlineHead + n, nil
}

// copyInline copies b to the ring, behind n bytes of data. It returns where it ends and the new
// number of bytes, or -1 if MaxInline does not allow as many.
func (q *sendQueue) copyInline(ring []byte, at uintptr, n int, b []byte) (uintptr, int) {
	if len(b) > q.MaxInline-n {
		return at, -1
	}
	k := copy(ring[at:], b)
	copy(ring, b[k:])
	if at += uintptr(len(b)); at >= q.bytes {
		at -= q.bytes
	}
	return at, n + len(b)
}

// complete returns the ID of the request whose first block has the given counter (16 bits of the
// block's number), and frees the room of it and all earlier requests. ok is false if no such
// request is in flight. The caller holds the CQ's lock.
func (q *sendQueue) complete(counter uint16) (id uint64, ok bool) {
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
func (q *sendQueue) Flush() (wcs []verbs.WC) {
	defer q.Unlock()
	if !q.Lose() {
		return nil
	}
	q.qp.sendCQ.Exclude() // for tail
	defer q.qp.sendCQ.Allow()
	head, tail := q.head.Load(), q.tail.Load()
	for i := range uint32(len(q.sent)) {
		s := &q.sent[(q.put+i)&q.mask]
		if _, _, ok := s.inFlight(head, tail); ok {
			wcs = append(wcs, verbs.WC{ID: s.id, Status: verbs.WCFlushErr, QPNum: q.Num})
		}
	}
	q.tail.Store(head)
	return wcs
}

// Cap implements [provider.SendQueue].
func (q *sendQueue) Cap() int { return int(q.most) }

// Modify implements [provider.SendQueue]. It records the port for completions of datagrams.
func (q *sendQueue) Modify(attr verbs.QPAttr, mask verbs.QPAttrMask, modify func(provider.UHW) error) error {
	if q.Type == verbs.DCT {
		return q.modifyTarget(attr, mask, modify)
	}
	var uhw provider.UHW
	var resp abi.Mlx5IbModifyQpResp
	toRTR := mask&verbs.MaskState != 0 && attr.State == verbs.StateRTR
	if toRTR && attr.ECE.VendorID == vendorID && attr.ECE.Options != 0 {
		uhw = provider.UHW{In: mmap.Bytes(&abi.Mlx5IbModifyQp{EceOptions: attr.ECE.Options}), Out: mmap.Bytes(&resp)}
	}
	err := modify(uhw)
	switch {
	case err != nil:
		return err
	case toRTR:
		q.qp.ece.Store(resp.EceOptions)
	case mask&verbs.MaskState != 0 && attr.State == verbs.StateReset:
		q.qp.ece.Store(q.qp.offer)
	}
	if mask&verbs.MaskPort != 0 {
		q.qp.port.Store(uint32(attr.Port))
	}
	return nil
}

const (
	// askECE in a request for a QP makes the answer have the adapter's extensions; it is a bit of
	// the firmware's, like the others. Kernels and adapters without ECE ignore it.
	askECE   = 1 << 28
	vendorID = 0x15b3 // PCI_VENDOR_ID_MELLANOX
)

// ECE implements [provider.Extended].
func (q *sendQueue) ECE() verbs.ECE {
	if options := q.qp.ece.Load(); options != 0 {
		return verbs.ECE{VendorID: vendorID, Options: options}
	}
	return verbs.ECE{}
}

// Settle implements [provider.Stateful]. uverbs calls it before Settle of the receive queue, while
// both are suspended. After a reset the queue begins at block 0 again, as the device does.
func (q *sendQueue) Settle(s verbs.QPState, moved bool) {
	if moved && s == verbs.StateReset && !q.Closed {
		q.qp.clean()
		q.put, q.known = 0, q.head.Load() // numbers continue, so that those in sent stay old
		q.tail.Store(q.known)
		q.record.Store(0)
	}
	q.Gate.Settle(s, moved)
}

// Release implements [provider.Queue].
func (q *sendQueue) Release() {
	q.Stop(true)
	q.qp.release()
}
