package mlx5

import (
	"errors"
	"fmt"
	"math/bits"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/provider"
)

// completionQueue is an mlx5 CQ.
type completionQueue struct {
	provider.Completions
	cqes
	next   uint32 // index of the next completion, without end
	first  uint32 // index of the first completion that the device wrote to this ring
	ctx    *context
	buf    *mmap.Buffer
	rec    []byte         // doorbell record
	record *atomic.Uint32 // its first word: completions taken
	arm    *atomic.Uint32 // its second word: the last request for an event
	events atomic.Uint32  // events read, which number the requests
	num    uint32
	stamps verbs.TimestampFormat
}

// cqes is the ring of CQEs, whose length is a power of two. A bit that changes with each round
// shows who owns a CQE; before the first round an invalid opcode does.
type cqes struct {
	base  unsafe.Pointer // the 64 bytes of the first CQE that have the completion
	mask  uint32
	shift uint8
}

// at returns CQE i.
func (c *cqes) at(i uint32) unsafe.Pointer {
	return unsafe.Add(c.base, uintptr(i&c.mask)<<(c.shift&63)) // & 63 spares a check for larger shifts
}

// owner returns the owner bit of CQE i once it has been written.
func (c *cqes) owner(i uint32) uint32 {
	if i&(c.mask+1) != 0 {
		return 1
	}
	return 0
}

// written reports whether CQE i has been written; w is its last word.
func (c *cqes) written(i uint32, w last) bool {
	return w.opcode() != cqeInvalid && w.owner() == c.owner(i)
}

// newCQEs allocates n CQEs that belong to the device.
func newCQEs(n, size int) (*mmap.Buffer, cqes, error) {
	b, err := mmap.NewBuffer(n*size, mmap.BufferOptions{})
	if err != nil {
		return nil, cqes{}, err
	}
	c := cqes{
		base: unsafe.Pointer(unsafe.SliceData(b.Bytes()[size-smallCQE:])), mask: uint32(n - 1),
		shift: uint8(bits.TrailingZeros(uint(size))),
	}
	for i := range uint32(n) {
		lastWord(c.at(i)).Store(swap32(uint32(last(0).with(cqeInvalid, 0))))
	}
	return b, c, nil
}

// Bits of the last word of a CQE that show whether it has been written.
const (
	newBits   = 0xf1 // in the first round: opcode and owner
	ownerBits = 0x01
)

// start begins a first round at q.next.
func (q *completionQueue) start() {
	q.first, q.Mask, q.None = q.next, swap32(newBits), swap32(cqeInvalid<<4)
	q.look()
}

// look makes Empty watch CQE q.next: there is no completion while it is new, or has the owner bit
// of the previous round.
func (q *completionQueue) look() {
	q.Word = lastWord(q.at(q.next))
	if q.Mask != swap32(newBits) || q.next-q.first > q.mask {
		q.Mask, q.None = swap32(ownerBits), swap32(1-q.owner(q.next))
	}
}

// CreateCQ makes a CQ. The kernel pins the ring that it computes from the request: one CQE more
// than that, rounded up to a power of two (mlx5_ib_create_cq).
func (c *context) CreateCQ(init *provider.CQInit, create func(provider.UHW) (provider.CQInfo, error)) (provider.CompletionQueue, error) {
	if init.Depth > c.dev.Attr.MaxCQE { // uverbs explains it
		return nil, syscall.EINVAL
	}
	if init.Timestamps == verbs.TimestampRealTime && c.resp.CompMask&abi.MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_REAL_TIME_TS == 0 {
		return nil, fmt.Errorf("the device has no timestamps of a real-time clock: %w", errors.ErrUnsupported)
	}
	n := provider.RoundUp(init.Depth + 1)
	init.Depth = n - 1
	q := &completionQueue{ctx: c, stamps: init.Timestamps}
	q.SingleThreaded = init.SingleThreaded
	var err error
	if q.buf, q.cqes, err = newCQEs(n, c.bounds.cqeSize); err != nil {
		return nil, err
	}
	if q.rec, err = c.records.Get(); err != nil {
		q.free()
		return nil, err
	}
	q.record, q.arm = mmap.Word(q.rec, 0), mmap.Word(q.rec, 4) // MLX5_CQ_SET_CI, MLX5_CQ_ARM_DB
	req := abi.Mlx5IbCreateCq{BufAddr: q.buf.Addr(), DbAddr: mmap.Addr(q.rec), CqeSize: uint32(c.bounds.cqeSize)}
	if init.Timestamps == verbs.TimestampRealTime {
		req.Flags |= abi.MLX5_IB_CREATE_CQ_FLAGS_REAL_TIME_TS
	}
	c.regs.createCQ(&req)
	var resp abi.Mlx5IbCreateCqResp
	if _, err := create(provider.UHW{In: mmap.Bytes(&req), Out: mmap.Bytes(&resp), Pins: provider.Pins(n * c.bounds.cqeSize)}); err != nil {
		q.free()
		return nil, err
	}
	q.num = resp.Cqn & indexMask
	q.start()
	return q, nil
}

// Take implements [provider.CompletionQueue].
func (q *completionQueue) Take(wcs []verbs.WC) int {
	if q.SingleThreaded {
		q.Taker.Lock()
	}
	ring, next, n, stamped := q.cqes, q.next, 0, q.stamps != verbs.TimestampNone
	var qp *queuePair // of the previous completion, and usually of the next one as well
	for n < len(wcs) {
		// Count the completions that are there and have room: one barrier is enough for all.
		end := next
		for end-next < uint32(len(wcs)-n) && end-next <= ring.mask && ring.written(end, loadLast(ring.at(end))) {
			end++
		}
		if end == next {
			break
		}
		mmap.BarrierFromDevice() // the CQEs are read after their owner bits
		for ; next != end; next++ {
			p := ring.at(next)
			w := loadLast(p)
			if w.opcode() == cqeDropped {
				continue
			}
			if index := get32(unsafe.Add(p, cqeIndex)) & indexMask; qp == nil || qp.index != index {
				if qp = q.ctx.qps.get(index); qp == nil {
					continue
				}
			}
			if q.decode(p, w, qp, &wcs[n]) {
				n++
				if stamped {
					q.stamp(p, &wcs[n-1])
				}
			}
		}
	}
	if next != q.next {
		q.next = next
		// The device overwrites the CQEs before this index, so they are loaded before it is stored.
		mmap.StoreRelease(q.record, swap32(next&indexMask))
		q.look()
	}
	q.Allow()
	return n
}

// drop makes Poll skip the completions of a QP that has been destroyed or reset, and so gets no
// more of them. Receives of an SRQ go back to it.
func (q *completionQueue) drop(qp *queuePair) {
	q.Exclude()
	defer q.Allow()
	if q.base == nil {
		return
	}
	for i := q.next; i-q.next <= q.mask; i++ {
		p := q.at(i)
		w := loadLast(p)
		if !q.written(i, w) {
			break
		}
		mmap.BarrierFromDevice() // the index is read after the owner bit
		if w.opcode() == cqeDropped || get32(unsafe.Add(p, cqeIndex))&indexMask != qp.index {
			continue
		}
		if w.isReceive() && qp.recv != nil && qp.recv.shared != nil {
			qp.recv.complete(w.counter())
		}
		lastWord(p).Store(swap32(uint32(w.with(cqeDropped, w.owner()))))
	}
}

// Commands in the second word of a CQ's doorbell record, and of its doorbell (cq.h).
const (
	armSolicited = 1 << 24 // MLX5_CQ_DB_REQ_NOT_SOL
	armNumber    = 28      // arm_sn, two bits
)

// Arm implements [provider.CompletionQueue]. A request carries the number of events before it, by
// which the device recognizes an old one.
func (q *completionQueue) Arm(solicitedOnly bool) error {
	q.Lock()
	defer q.Unlock()
	if q.Closed {
		return q.Err()
	}
	v := q.events.Load()&3<<armNumber | q.next&indexMask
	if solicitedOnly {
		v |= armSolicited
	}
	q.arm.Store(swap32(v))
	mmap.FlushDevice() // the record before the register, as in sendQueue.ring
	mmap.StoreDevice(q.ctx.regs.cq, swap64(uint64(v)<<32|uint64(q.num)))
	mmap.FlushDevice() // the program is about to wait: the store leaves the processor now
	return nil
}

// CountEvent implements [provider.EventCounter].
func (q *completionQueue) CountEvent() { q.events.Add(1) }

// Cap implements [provider.CompletionQueue].
func (q *completionQueue) Cap() int {
	q.Lock()
	defer q.Unlock()
	return int(q.mask)
}

// Resize implements [provider.Resizer]. The device ends the old ring with a CQE that says so, and
// continues in the new one. Resize copies the CQEs before it that have not been polled, to one
// place later: the device has counted the end mark as well.
func (q *completionQueue) Resize(size int, resize func(int, provider.UHW) error) error {
	q.Exclude()
	defer q.Allow()
	if q.Closed {
		return q.Err()
	}
	if size > q.ctx.dev.Attr.MaxCQE {
		return syscall.EINVAL
	}
	n := provider.RoundUp(size + 1)
	if uint32(n) == q.mask+1 {
		return nil // the kernel would keep the old ring (mlx5_ib_resize_cq)
	}
	cqeSize := 1 << q.shift
	buf, to, err := newCQEs(n, cqeSize)
	if err != nil {
		return err
	}
	req := abi.Mlx5IbResizeCq{BufAddr: buf.Addr(), CqeSize: uint16(cqeSize)}
	if err := resize(n-1, provider.UHW{In: mmap.Bytes(&req), Pins: provider.Pins(n * cqeSize)}); err != nil {
		buf.Close()
		return err
	}
	from := q.cqes
	for i := q.next; ; i++ {
		p := from.at(i)
		w := loadLast(p)
		if from.written(i, w) && w.opcode() == cqeResized {
			break
		}
		if !from.written(i, w) || i-q.next >= min(from.mask, to.mask) {
			q.Fail(errors.New("resize: the old ring has no end mark"))
			break
		}
		mmap.BarrierFromDevice() // the rest of the CQE is read after the owner bit
		d := to.at(i + 1)
		*(*[cqeLast]byte)(d) = *(*[cqeLast]byte)(p)
		lastWord(d).Store(swap32(uint32(w.with(w.opcode(), to.owner(i+1)))))
	}
	q.next++
	q.record.Store(swap32(q.next & indexMask))
	q.cqes, q.buf, buf = to, buf, q.buf
	q.start()
	buf.Close()
	if q.Closed {
		return q.Err()
	}
	return nil
}

// Recycle implements [provider.CompletionQueue].
func (q *completionQueue) Recycle() provider.CompletionQueue {
	q.Stop(true)
	r := &completionQueue{cqes: q.cqes, next: q.next, ctx: q.ctx, buf: q.buf, rec: q.rec, record: q.record, arm: q.arm, num: q.num, stamps: q.stamps}
	r.SingleThreaded, r.first, r.Mask, r.None = q.SingleThreaded, q.first, q.Mask, q.None
	r.events.Store(q.events.Load())
	if err := q.Err(); errors.Is(err, verbs.ErrQueueFailed) {
		r.Fail(err)
	}
	for r.written(r.next, loadLast(r.at(r.next))) {
		r.next++
	}
	r.record.Store(swap32(r.next & indexMask))
	r.look()
	return r
}

// Release implements [provider.Queue].
func (q *completionQueue) Release() {
	q.Stop(true)
	q.Exclude()
	defer q.Allow()
	q.free()
}

func (q *completionQueue) free() {
	q.buf.Close()
	q.base = nil
	q.ctx.records.Put(q.rec)
}
