//go:build linux

package erdma

import (
	"fmt"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/engine"
	"github.com/goverbs/verbs/mmap"
)

// Opcodes of requests and completions, enum erdma_opcode.
const (
	opWrite       = 0
	opRead        = 1
	opSend        = 2
	opSendImm     = 3
	opRecv        = 4
	opRecvImm     = 5 // of a WRITE
	opRecvInv     = 6
	opWriteImm    = 9
	opRecvSendImm = 12
	opSendInv     = 13
	opRegister    = 14
	opLocalInv    = 15
	opReadInv     = 16
	opCompareSwap = 17
	opFetchAdd    = 18
)

// sendOps are the opcodes of the engine.
var sendOps = map[byte]uint32{
	opWrite: abi.IB_UVERBS_WR_RDMA_WRITE, opWriteImm: abi.IB_UVERBS_WR_RDMA_WRITE_WITH_IMM, opRead: abi.IB_UVERBS_WR_RDMA_READ, opReadInv: abi.IB_UVERBS_WR_RDMA_READ,
	opSend: abi.IB_UVERBS_WR_SEND, opSendImm: abi.IB_UVERBS_WR_SEND_WITH_IMM, opSendInv: abi.IB_UVERBS_WR_SEND_WITH_INV,
	opCompareSwap: abi.IB_UVERBS_WR_ATOMIC_CMP_AND_SWP, opFetchAdd: abi.IB_UVERBS_WR_ATOMIC_FETCH_AND_ADD,
	opRegister: engine.OpDevice, opLocalInv: engine.OpDevice,
}

// invalidOp is no opcode of the engine: a malformed request fails with WCLocQPOpErr after those before
// it.
const invalidOp = 0xffff

// Fields of a request's header, ERDMA_SQE_HDR_*: segments or bytes of inline data, units less one, number
// of the QP, opcode, flags, and the index behind the request.
const (
	sqeLength    = 56 // eight bits
	sqeUnits     = 52 // three bits
	sqeQPN       = 32 // 20 bits
	sqeOpcode    = 27 // five bits
	sqeDirect    = 1 << 26
	sqeInline    = 1 << 25
	sqeFence     = 1 << 24
	sqeSolicited = 1 << 23
	sqeSignaled  = 1 << 22
)

// The engine's ID of a request is the index of its first unit, with the opcode above.
const idOpcode = 32

// Marks of IDs: the first half of a request that the engine executes as two, and a receive that is refused.
const (
	idHalf      = 1 << 40
	idMalformed = 1 << 41
)

// readInvalidate is the offset of the key that a READ invalidates, struct erdma_readreq_sqe.
const readInvalidate = 8

// refillSend translates the requests that doorbells have shown. The engine's QP is locked.
func (q *qp) refillSend(r *engine.Ring) {
	for {
		n := uint16(q.shown.Load()) - q.sent
		if n == 0 && q.then == nil {
			return
		}
		w, sges, inline := r.NextSend()
		if w == nil {
			return
		}
		w.Wr, w.Dma = abi.RxeSendWr{}, abi.RxeDmaInfo{}
		if q.then != nil {
			q.invalidateAfter(w, inline)
			r.Publish()
			continue
		}
		var wqe [maxUnits * unit]byte
		for i := range maxUnits {
			copy(wqe[i*unit:], q.sq.At(uint32(q.sent)+uint32(i)))
		}
		h := le.Uint64(wqe[:])
		op := byte(h >> sqeOpcode & 31)
		w.Wr.WrId = uint64(op)<<idOpcode | uint64(q.sent)
		q.d.record("wqe %d +%#x, of %d units: %x", q.num, q.sent, n, wqe)
		units := uint16(h>>sqeUnits&7) + 1
		switch {
		case units > maxUnits, units > n, uint32(n) > q.sq.Count, uint16(h) != q.sent+units:
			q.refuse(q.sent, "it has %d units of %d, of a queue of %d, and ends at %#x", units, n, q.sq.Count, uint16(h))
			w.Wr.Opcode, units = invalidOp, n // nothing tells where the next request begins
		case !q.translate(w, wqe[:int(units)*unit], h, sges, inline):
			w.Wr.Opcode = invalidOp
		case op == opReadInv:
			q.then = append([]byte(nil), wqe[:]...)
			w.Wr.WrId |= idHalf
			w.Wr.SendFlags &^= uint32(verbs.SendSignaled | verbs.SendSolicited)
		}
		q.sent += units
		r.Publish()
		q.d.counts.requests.Add(1)
		q.d.counts.sent.Add(uint64(w.Dma.Length))
	}
}

// invalidateAfter makes the second half of a READ with Invalidate: the engine executes it when the READ is
// complete, and it completes for both.
func (q *qp) invalidateAfter(w *abi.RxeSendWqe, inline []byte) {
	h := le.Uint64(q.then)
	w.Wr.WrId = opReadInv<<idOpcode | uint64(uint16(h)-uint16(h>>sqeUnits&7)-1)
	w.Wr.Opcode = engine.OpDevice
	w.Wr.SendFlags = flagsOf(h)
	copy(inline, q.then)
	q.then = nil
}

// half reports whether a completion is the second one of a request, whose first half has failed.
func (q *qp) half(w *engine.Completion) bool {
	if w.Recv || byte(w.WrId>>idOpcode) != opReadInv {
		return false
	}
	if w.WrId&idHalf != 0 { // only a failure completes
		q.halfFailed = true
		return false
	}
	second := q.halfFailed
	q.halfFailed = false
	return second
}

func flagsOf(h uint64) (flags uint32) {
	for bit, f := range map[uint64]verbs.SendFlags{sqeSignaled: verbs.SendSignaled, sqeSolicited: verbs.SendSolicited, sqeFence: verbs.SendFence} {
		if h&bit != 0 {
			flags |= uint32(f)
		}
	}
	return flags
}

// refuse records why a request is refused, which its completion does not tell.
func (q *qp) refuse(index uint16, format string, args ...any) verbs.WCStatus {
	q.d.record("refusal %d +%#x: %s", q.num, index, fmt.Sprintf(format, args...))
	return verbs.WCMWBindErr
}

// translate makes the engine's request. It reports false if the request is malformed.
func (q *qp) translate(w *abi.RxeSendWqe, wqe []byte, h uint64, sges []abi.RxeSge, inline []byte) bool {
	bad := func(format string, args ...any) bool {
		q.refuse(q.sent, format, args...)
		return false
	}
	op := byte(h >> sqeOpcode & 31)
	code, known := sendOps[op]
	switch {
	case !known:
		return bad("unknown opcode %d", op)
	case uint32(h>>sqeQPN)&0xfffff != q.num:
		return bad("it names QP %d", uint32(h>>sqeQPN)&0xfffff)
	case h&sqeDirect != 0, h>>55&1 != 0:
		return bad("reserved bits in header %#x", h)
	case q.datagram && op != opSend && op != opSendImm:
		return bad("opcode %d of a datagram", op)
	case h&sqeInline != 0 && op != opWrite && op != opWriteImm && op != opSend && op != opSendImm && op != opSendInv:
		return bad("inline data of opcode %d", op)
	}
	w.Wr.Opcode, w.Wr.SendFlags = code, flagsOf(h)
	length, list := le.Uint32(wqe[12:]), 16
	least := 2 * unit
	switch op {
	case opSend, opSendImm, opSendInv:
		if least = 0; q.datagram {
			least = unit
		}
	case opWrite, opWriteImm, opLocalInv, opRegister:
		least = unit
	}
	if len(wqe) < least {
		return bad("opcode %d in %d bytes", op, len(wqe))
	}
	switch op {
	case opWrite, opWriteImm: // struct erdma_write_sqe
		*w.Wr.Wr.Rdma() = abi.RxeSendWrWrRdma{RemoteAddr: le.Uint64(wqe[20:]), Rkey: le.Uint32(wqe[16:])}
		copy(mmap.Bytes(w.Wr.Ex.ImmData()), wqe[8:12])
		list = 32
	case opSend:
	case opSendImm: // struct erdma_send_sqe
		copy(mmap.Bytes(w.Wr.Ex.ImmData()), wqe[8:12])
	case opSendInv:
		*w.Wr.Ex.InvalidateRkey() = le.Uint32(wqe[8:])
	case opRead, opReadInv: // struct erdma_readreq_sqe, and the remote segment
		if le.Uint32(wqe[40:]) != length {
			return bad("a READ of %d bytes into %d", le.Uint32(wqe[40:]), length)
		}
		*w.Wr.Wr.Rdma() = abi.RxeSendWrWrRdma{RemoteAddr: le.Uint64(wqe[32:]), Rkey: le.Uint32(wqe[44:])}
		q.single(w, sges, le.Uint64(wqe[20:]), length, le.Uint32(wqe[16:]))
		return true
	case opCompareSwap, opFetchAdd: // struct erdma_atomic_sqe
		a := abi.RxeSendWrWrAtomic{RemoteAddr: le.Uint64(wqe[32:]), Rkey: le.Uint32(wqe[44:]), CompareAdd: le.Uint64(wqe[16:])}
		if op == opCompareSwap {
			a.Swap, a.CompareAdd = a.CompareAdd, le.Uint64(wqe[24:])
		}
		*w.Wr.Wr.Atomic() = a
		q.single(w, sges, le.Uint64(wqe[48:]), le.Uint32(wqe[56:]), le.Uint32(wqe[60:]))
		return true
	case opRegister, opLocalInv: // a program could reach all memory
		if !q.kernel {
			return bad("opcode %d of a program", op)
		}
		if op == opRegister && le.Uint32(wqe[regAttrs:])>>6&3 == 0 && len(wqe) < 2*unit {
			return bad("a list of pages behind the request's end")
		}
		clear(inline[copy(inline, wqe):][:maxUnits*unit-len(wqe)])
		return true
	}
	if q.datagram {
		if list = 32; !q.address(w.Wr.Wr.Ud(), wqe) {
			return bad("no address handle %d in the PD", le.Uint32(wqe[udAH:]))
		}
	}
	count, data := int(h>>sqeLength), wqe[list:]
	if h&sqeInline != 0 {
		if count > len(data) || count > maxSGEs*16 || uint32(count) != length {
			return bad("%d bytes of inline data in %d, of a message of %d", count, len(data), length)
		}
		copy(inline, data[:count])
		w.Wr.SendFlags |= sendInline
		w.Dma.Length, w.Dma.Resid = length, length
		return true
	}
	if count > maxSGEs || 16*count > len(data) {
		return bad("%d segments in %d bytes", count, len(data))
	}
	var total uint64
	for i := range count {
		s := data[16*i:]
		sges[i] = abi.RxeSge{Addr: le.Uint64(s), Length: le.Uint32(s[8:]), Lkey: q.localKey(le.Uint32(s[12:]))}
		total += uint64(sges[i].Length)
	}
	if total != uint64(length) {
		return bad("segments of %d bytes for a message of %d", total, length)
	}
	w.Dma.NumSge, w.Dma.Length, w.Dma.Resid = uint32(count), length, length
	return true
}

const sendInline = 1 << 3 // IB_SEND_INLINE

// single sets the only segment of a request.
func (q *qp) single(w *abi.RxeSendWqe, sges []abi.RxeSge, addr uint64, length, key uint32) {
	sges[0] = abi.RxeSge{Addr: addr, Length: length, Lkey: q.localKey(key)}
	w.Dma.NumSge, w.Dma.Length, w.Dma.Resid = 1, length, length
}

// localKey returns the engine's key for a local key.
func (q *qp) localKey(key uint32) uint32 {
	if key == dmaKey && q.kernel {
		return q.pd.dmaKey()
	}
	return key
}

// refillRecv translates the receives that doorbells have shown, struct erdma_rqe. The engine's QP is
// locked.
func (q *qp) refillRecv(r *engine.Ring) {
	for uint16(q.posted.Load()) != q.received {
		w, sges := r.NextRecv()
		if w == nil {
			return
		}
		var b [unit]byte
		copy(b[:], q.rq.At(uint32(q.received)))
		q.d.record("rqe %d +%#x: %x", q.num, q.received, b)
		*w = abi.RxeRecvWqe{WrId: uint64(q.received)}
		n := le.Uint32(b[24:])
		switch waiting := uint16(q.posted.Load()) - q.received; {
		case uint32(waiting) > q.rq.Count, le.Uint16(b[:]) != q.received+1, le.Uint32(b[4:]) != q.num:
			q.refuse(q.received, "receive %d of QP %d, one of %d", le.Uint16(b[:]), le.Uint32(b[4:]), waiting)
			w.Dma.NumSge = 1 << 16 // the engine fails
			w.WrId |= idMalformed
			q.received = uint16(q.posted.Load()) - 1
		case n > 0:
			sges[0] = abi.RxeSge{Addr: le.Uint64(b[16:]), Length: n, Lkey: q.localKey(le.Uint32(b[28:]))}
			w.Dma.NumSge, w.Dma.Length, w.Dma.Resid = 1, n, n
		}
		q.received++
		r.Publish()
	}
}
