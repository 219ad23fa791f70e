package erdma

import (
	"errors"
	"fmt"
	"iter"
	"math/bits"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/provider"
)

// Fields of a completion, struct erdma_cqe, which is big-endian but for the immediate.
const (
	cqeSize   = 32
	cqeIndex  = 4  // qe_idx: of the request's first unit, or of the receive
	cqeQPN    = 8  // qpn
	cqeImm    = 12 // imm_data, little-endian, or inv_rkey
	cqeLength = 16 // size

	cqeOwner     = 31 // bit of the header: ERDMA_CQE_HDR_OWNER_MASK
	cqeOpcode    = 16
	cqeQueue     = 8 // ERDMA_CQE_HDR_QTYPE_MASK
	cqeQueueSend = 0 // ERDMA_CQE_QTYPE_SQ
)

// Fields of a CQ's doorbell, ERDMA_CQDB_*.
const (
	bellNumber    = 56 // ERDMA_CQDB_IDX_MASK: counts the doorbells
	bellCQN       = 32
	bellArm       = 1 << 31
	bellSolicited = 1 << 30
	bellEvents    = 28 // ERDMA_CQDB_CMDSN_MASK: counts the events, in two bits
	bellIndex     = 1<<24 - 1
)

// completionQueue is a CQ. A bit of each CQE changes with each round, and shows who owns it.
type completionQueue struct {
	provider.Completions
	base     unsafe.Pointer
	mask     uint32
	next     uint32 // index of the next CQE
	ctx      *context
	buf      *mmap.Buffer
	mem      []byte // doorbell record
	record   *atomic.Uint64
	register *uint64
	num      uint32
	bells    uint8         // doorbells that have been rung
	events   atomic.Uint32 // that have been read
	armed    atomic.Bool   // nobody has been woken since Arm
	wake     func()
}

// CreateCQ makes a CQ. The kernel rounds its depth up to a power of two (erdma_create_cq).
func (c *context) CreateCQ(init *provider.CQInit, create func(provider.UHW) (provider.CQInfo, error)) (provider.CompletionQueue, error) {
	if init.Depth > c.dev.Attr.MaxCQE { // uverbs explains it
		return nil, syscall.EINVAL
	}
	init.Depth = provider.RoundUp(max(init.Depth, minCQ))
	q := &completionQueue{ctx: c, mask: uint32(init.Depth - 1), wake: init.Wake}
	q.SingleThreaded = init.SingleThreaded
	var err error
	if q.buf, err = mmap.NewBuffer(init.Depth*cqeSize, mmap.BufferOptions{}); err != nil {
		return nil, err
	}
	q.base = unsafe.Pointer(unsafe.SliceData(q.buf.Bytes()))
	if q.mem, err = c.records.Get(); err != nil {
		q.free()
		return nil, err
	}
	req := abi.ErdmaUreqCreateCq{DbRecordVa: mmap.Addr(q.mem), QbufVa: q.buf.Addr(), QbufLen: uint32((init.Depth*cqeSize + hardwarePage - 1) &^ (hardwarePage - 1))}
	var resp abi.ErdmaUrespCreateCq
	if _, err := create(provider.UHW{In: mmap.Bytes(&req), Out: mmap.Bytes(&resp), Pins: provider.Pins(init.Depth * cqeSize)}); err != nil {
		q.free()
		return nil, err
	}
	if int(resp.NumCqe) != init.Depth {
		q.free()
		return nil, fmt.Errorf("the kernel made a CQ of %d completions, not of %d", resp.NumCqe, init.Depth)
	}
	q.num, q.record = resp.CqId, mmap.Word64(q.mem, 0)
	q.register = register(c.cqs, q.num%(hardwarePage/cqRegister)*cqRegister)
	// The record of a CQ that has not been armed differs from that of the first doorbell, whatever that
	// says, so that the device sees that one in the record too.
	q.record.Store(0xff<<bellNumber | uint64(q.num&bellIndex)<<bellCQN | 3<<bellEvents)
	q.look()
	q.Ready = q.ready
	return q, nil
}

// at returns CQE i.
func (q *completionQueue) at(i uint32) unsafe.Pointer {
	return unsafe.Add(q.base, uintptr(i&q.mask)*cqeSize)
}

// owner returns the owner bit of CQE i once it has been written.
func (q *completionQueue) owner(i uint32) uint32 {
	if i&(q.mask+1) == 0 {
		return 1
	}
	return 0
}

// get32 loads a big-endian number.
func get32(p unsafe.Pointer) uint32 { return bits.ReverseBytes32(*(*uint32)(p)) }

// header returns the first word of a CQE in memory.
func header(p unsafe.Pointer) *atomic.Uint32 { return (*atomic.Uint32)(p) }

// written reports whether CQE i has been written.
func (q *completionQueue) written(i uint32) bool {
	return bits.ReverseBytes32(header(q.at(i)).Load())>>cqeOwner == q.owner(i)
}

// look makes Empty watch CQE q.next.
func (q *completionQueue) look() {
	q.Word, q.Mask, q.None = header(q.at(q.next)), bits.ReverseBytes32(1<<cqeOwner), bits.ReverseBytes32((1-q.owner(q.next))<<cqeOwner)
}

// Take implements [provider.CompletionQueue].
func (q *completionQueue) Take(wcs []verbs.WC) int {
	if q.SingleThreaded {
		q.Taker.Lock()
	}
	next, n := q.next, 0
	var qp *queuePair // of the previous completion, and usually of the next one as well
	for n < len(wcs) {
		// Count the completions that are there and have room: one barrier is enough for all.
		end := next
		for end-next < uint32(len(wcs)-n) && end-next <= q.mask && q.written(end) {
			end++
		}
		if end == next {
			break
		}
		mmap.BarrierFromDevice() // the CQEs are read after their owner bits
		for ; next != end; next++ {
			p := q.at(next)
			if num := get32(unsafe.Add(p, cqeQPN)); qp == nil || qp.num != num {
				if qp = q.ctx.qps.get(num); qp == nil {
					continue
				}
			}
			if q.decode(p, qp, &wcs[n]) {
				n++
			}
		}
	}
	if next != q.next {
		q.next = next
		q.look()
	}
	q.Allow()
	return n
}

// decode decodes a CQE of qp into wc, and reports whether it completes a request in flight. A QP's
// requests are guarded by the locks of its own CQs, so a CQE in any other CQ completes none.
func (q *completionQueue) decode(p unsafe.Pointer, qp *queuePair, wc *verbs.WC) (ok bool) {
	h, index := get32(p), get32(unsafe.Add(p, cqeIndex))
	var id uint64
	send := h>>cqeQueue&0xff == cqeQueueSend
	if send {
		if qp.sendCQ != q {
			return false
		}
		id, ok = qp.send.complete(index)
	} else {
		if qp.recvCQ != q {
			return false
		}
		id, ok = qp.recv.complete(index)
	}
	if !ok {
		return false
	}
	*wc = verbs.WC{ID: id, QPNum: qp.num}
	if syndrome := h & 0xff; syndrome != 0 {
		s := statuses[min(int(syndrome), len(statuses)-1)]
		wc.Status, wc.VendorErr = s.status, uint32(s.vendor)
		if !send {
			wc.Opcode = verbs.WCRecv
		}
		qp.fail()
		return true
	}
	opcode := h >> cqeOpcode & 0xff
	if opcode < uint32(len(opcodes)) {
		wc.Opcode = opcodes[opcode]
	}
	wc.ByteLen = get32(unsafe.Add(p, cqeLength))
	switch opcode {
	case opRecvImm, opRecvSendImm:
		provider.SetImm(wc, *(*uint32)(unsafe.Add(p, cqeImm)))
	case opRecvInv:
		provider.SetInvalidatedRKey(wc, get32(unsafe.Add(p, cqeImm)))
	}
	return true
}

// opcodes are those of completions (wc_mapping_table).
var opcodes = [numOpcodes]verbs.WCOpcode{
	opWrite: verbs.WCRDMAWrite, opRead: verbs.WCRDMARead, opSend: verbs.WCSend, opSendImm: verbs.WCSend,
	opRecv: verbs.WCRecv, opRecvImm: verbs.WCRecvRDMAImm, opRecvInv: verbs.WCRecv, opWriteImm: verbs.WCRDMAWrite,
	opInvalidate: verbs.WCLocalInv, opRecvSendImm: verbs.WCRecv, opSendInv: verbs.WCSend, opReadInv: verbs.WCRDMARead,
	opCompareSwap: verbs.WCCompareSwap, opFetchAdd: verbs.WCFetchAdd,
}

// statuses has the status and the vendor's number of each syndrome (map_cqe_status), and then those of
// others.
var statuses = [...]struct {
	status verbs.WCStatus
	vendor uint8
}{
	0:  {verbs.WCSuccess, 0},
	1:  {verbs.WCGeneralErr, 0},
	2:  {verbs.WCGeneralErr, 0x01},   // RECV_WQE_FORMAT_ERR
	3:  {verbs.WCRemAccessErr, 0x02}, // RECV_STAG_INVALID_ERR
	4:  {verbs.WCRemAccessErr, 0x03}, // RECV_ADDR_VIOLATION_ERR
	5:  {verbs.WCRemAccessErr, 0x04}, // RECV_RIGHT_VIOLATION_ERR
	6:  {verbs.WCRemAccessErr, 0x05}, // RECV_PDID_ERR
	7:  {verbs.WCRemAccessErr, 0x06}, // RECV_WARRPING_ERR
	8:  {verbs.WCLocQPOpErr, 0x20},   // SEND_WQE_FORMAT_ERR
	9:  {verbs.WCGeneralErr, 0x21},   // SEND_WQE_ORD_EXCEED
	10: {verbs.WCLocAccessErr, 0x30}, // SEND_STAG_INVALID_ERR
	11: {verbs.WCLocAccessErr, 0x31}, // SEND_ADDR_VIOLATION_ERR
	12: {verbs.WCLocAccessErr, 0x32}, // SEND_RIGHT_VIOLATION_ERR
	13: {verbs.WCLocAccessErr, 0x33}, // SEND_PDID_ERR
	14: {verbs.WCLocAccessErr, 0x34}, // SEND_WARRPING_ERR
	15: {verbs.WCFlushErr, 0},        // FLUSH_ERR
	16: {verbs.WCRetryExcErr, 0},     // RETRY_EXC_ERR
	17: {verbs.WCGeneralErr, 0},
}

// drop makes Poll skip the completions of a QP that has been destroyed or reset, and so gets no more of
// them: they name no QP, as no QP has number 0.
func (q *completionQueue) drop(num uint32) {
	q.Exclude()
	defer q.Allow()
	if q.base == nil {
		return
	}
	for p := range q.waiting(num) {
		put32(p, 0)
	}
}

// holds reports whether there are completions of a QP that have not been polled. The caller excludes Take.
func (q *completionQueue) holds(num uint32) bool {
	for range q.waiting(num) {
		return true
	}
	return false
}

// waiting returns where the completions of a QP that have not been polled name it. The caller excludes Take.
func (q *completionQueue) waiting(num uint32) iter.Seq[unsafe.Pointer] {
	return func(yield func(unsafe.Pointer) bool) {
		for i := q.next; i-q.next <= q.mask && q.written(i); i++ {
			mmap.BarrierFromDevice() // the number is read after the owner bit
			if p := unsafe.Add(q.at(i), cqeQPN); get32(p) == num && !yield(p) {
				return
			}
		}
	}
}

// flush adds a completion of a request that the device ignores, and wakes the waiter of an armed CQ as
// the device would. It reports whether the queue, which is of the given size, takes the request. The
// caller has no lock of the CQ.
func (q *completionQueue) flush(of *provider.Requests, size uint32, id uint64, op verbs.WCOpcode) bool {
	ok := q.AddFlushed(of, size, id, op)
	if ok {
		q.notify()
	}
	return ok
}

func (q *completionQueue) notify() {
	if q.armed.Swap(false) && q.wake != nil {
		q.wake()
	}
}

// ready reports whether the device has completed the requests of the QP that precede the one of an
// added completion: it flushes them a while after the QP has failed.
func (q *completionQueue) ready(wc *verbs.WC) bool {
	qp := q.ctx.qps.get(wc.QPNum)
	switch {
	case qp == nil:
		return true
	case wc.Opcode == verbs.WCRecv:
		return qp.recvCQ != q || int32(qp.recv.tail.Load()-qp.recv.flushAfter.Load()) >= 0
	}
	return qp.sendCQ != q || int32(qp.send.tail.Load()-qp.send.flushAfter.Load()) >= 0
}

// Arm implements [provider.CompletionQueue].
func (q *completionQueue) Arm(solicitedOnly bool) error {
	q.Lock()
	defer q.Unlock()
	if q.Closed {
		return q.Err()
	}
	v := uint64(q.bells)<<bellNumber | uint64(q.num&bellIndex)<<bellCQN | bellArm | uint64(q.events.Load()&3)<<bellEvents | uint64(q.next&bellIndex)
	if solicitedOnly {
		v |= bellSolicited
	}
	q.bells++
	q.armed.Store(true)
	mmap.StoreDoorbell64(q.record, q.register, v)
	return nil
}

// CountEvent implements [provider.EventCounter].
func (q *completionQueue) CountEvent() {
	q.events.Add(1)
	q.armed.Store(false)
}

// Cap implements [provider.CompletionQueue].
func (q *completionQueue) Cap() int { return int(q.mask) + 1 }

// Resize implements [provider.Resizer]. The kernel's erdma does not resize CQs.
func (q *completionQueue) Resize(int, func(int, provider.UHW) error) error {
	q.Lock()
	defer q.Unlock()
	if q.Closed {
		return q.Err()
	}
	return fmt.Errorf("erdma does not resize CQs: %w", errors.ErrUnsupported)
}

// Recycle implements [provider.CompletionQueue].
func (q *completionQueue) Recycle() provider.CompletionQueue {
	q.Stop(true)
	r := &completionQueue{
		base: q.base, mask: q.mask, next: q.next, ctx: q.ctx, buf: q.buf, mem: q.mem, record: q.record, register: q.register,
		num: q.num, bells: q.bells, wake: q.wake,
	}
	r.SingleThreaded = q.SingleThreaded
	r.events.Store(q.events.Load())
	if err := q.Err(); errors.Is(err, verbs.ErrQueueFailed) {
		r.Fail(err)
	}
	for r.written(r.next) {
		r.next++
	}
	r.look()
	r.Ready = r.ready
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
	q.ctx.records.Put(q.mem)
}
