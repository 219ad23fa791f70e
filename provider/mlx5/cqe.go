package mlx5

import (
	"sync/atomic"
	"unsafe"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/provider"
)

// A completion (CQE) is a struct mlx5_cqe64 of device.h or, if it reports an error, a struct
// mlx5_err_cqe. A CQE of 128 bytes has that structure in its second half.
const (
	smallCQE = 64
	largeCQE = 128

	cqeSLPath    = 17 // ml_path
	cqeSLID      = 22 // slid
	cqeFlagsRQPN = 24 // flags_rqpn: GRH in bits 28 and 29, service level or type of the L3 header, source QP
	cqeIndex     = 32 // srqn_uidx
	cqeImm       = 36 // imm_inval_pkey
	cqeByteCount = 44 // byte_cnt
	cqeTimestamp = 48 // timestamp
	cqeVendor    = 54 // vendor_err_synd
	cqeSyndrome  = 55 // syndrome
	cqeOpcode    = 56 // s_wqe_opcode: of the request
	cqeLast      = 60 // wqe_counter, signature, op_own: loaded as one word

	indexMask = 0xffffff
)

// Opcodes of CQEs, MLX5_CQE_* of device.h: the upper half of op_own.
const (
	cqeRequest    = 0
	cqeWriteImm   = 1
	cqeSend       = 2
	cqeSendImm    = 3
	cqeSendInval  = 4
	cqeResized    = 5
	cqeDropped    = 12 // not the device's: see completionQueue.drop
	cqeRequestErr = 13
	cqeReceiveErr = 14
	cqeInvalid    = 15
)

// last is the last word of a CQE: the request's counter in the upper half, op_own in the lowest
// byte.
type last uint32

func (w last) opcode() uint32  { return uint32(w) >> 4 & 0xf }
func (w last) owner() uint32   { return uint32(w) & 1 }
func (w last) counter() uint16 { return uint16(w >> 16) }

// isReceive reports whether the CQE completes a receive.
func (w last) isReceive() bool {
	op := w.opcode()
	return op >= cqeWriteImm && op <= cqeSendInval || op == cqeReceiveErr
}

// with returns w with another opcode and owner.
func (w last) with(opcode, owner uint32) last {
	return w&^0xf1 | last(opcode<<4|owner)
}

// lastWord returns the last word of a CQE in memory.
func lastWord(p unsafe.Pointer) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Add(p, cqeLast)) }

func loadLast(p unsafe.Pointer) last { return last(swap32(lastWord(p).Load())) }

// statuses has the status of each syndrome, MLX5_CQE_SYNDROME_* of device.h. Others are general
// errors.
var statuses = [...]verbs.WCStatus{
	0x01: verbs.WCLocLenErr,
	0x02: verbs.WCLocQPOpErr,
	0x04: verbs.WCLocProtErr,
	0x05: verbs.WCFlushErr,
	0x06: verbs.WCMWBindErr,
	0x10: verbs.WCBadRespErr,
	0x11: verbs.WCLocAccessErr,
	0x12: verbs.WCRemInvReqErr,
	0x13: verbs.WCRemAccessErr,
	0x14: verbs.WCRemOpErr,
	0x15: verbs.WCRetryExcErr,
	0x16: verbs.WCRNRRetryExcErr,
	0x22: verbs.WCRemAbortErr,
}

func status(syndrome uint8) verbs.WCStatus {
	if int(syndrome) < len(statuses) && statuses[syndrome] != verbs.WCSuccess {
		return statuses[syndrome]
	}
	return verbs.WCGeneralErr
}

// decode decodes a CQE of qp into wc, and reports whether it completes a request in flight. A QP's
// requests are guarded by the locks of its own CQs, so a CQE in any other CQ completes none.
func (q *completionQueue) decode(p unsafe.Pointer, w last, qp *queuePair, wc *verbs.WC) bool {
	if w.isReceive() && qp.recvCQ != q || !w.isReceive() && qp.sendCQ != q {
		return false
	}
	switch op := w.opcode(); op {
	case cqeRequest:
		id, ok := qp.send.complete(w.counter())
		if !ok {
			*wc = verbs.WC{QPNum: qp.num}
			return qp.send.completeUMR(loadLast(p).counter(), wc) // loaded again, so that w is not spilled
		}
		*wc = verbs.WC{ID: id, QPNum: qp.num}
		switch *(*uint8)(unsafe.Add(p, cqeOpcode)) {
		case opWrite, opWriteImm:
			wc.Opcode = verbs.WCRDMAWrite
		case opRead:
			wc.Opcode, wc.ByteLen = verbs.WCRDMARead, get32(unsafe.Add(p, cqeByteCount))
		case opCompare:
			wc.Opcode, wc.ByteLen = verbs.WCCompareSwap, 8
		case opFetchAdd:
			wc.Opcode, wc.ByteLen = verbs.WCFetchAdd, 8
		}
		return true
	case cqeSend, cqeSendImm, cqeSendInval, cqeWriteImm:
		id, ok := qp.recv.complete(w.counter())
		if !ok {
			return false
		}
		*wc = verbs.WC{ID: id, QPNum: qp.num, Opcode: verbs.WCRecv, ByteLen: get32(unsafe.Add(p, cqeByteCount))}
		switch op {
		case cqeSendImm:
			provider.SetImm(wc, get32(unsafe.Add(p, cqeImm)))
		case cqeWriteImm:
			wc.Opcode = verbs.WCRecvRDMAImm
			provider.SetImm(wc, get32(unsafe.Add(p, cqeImm)))
		case cqeSendInval:
			provider.SetInvalidatedRKey(wc, get32(unsafe.Add(p, cqeImm)))
		}
		flags := get32(unsafe.Add(p, cqeFlagsRQPN))
		if flags>>28&3 != 0 {
			wc.Flags |= verbs.WCGRH
		}
		if qp.typ == verbs.UD {
			setSource(wc, p, flags, qp)
		}
		return true
	case cqeRequestErr, cqeReceiveErr:
		*wc = verbs.WC{
			QPNum: qp.num, Status: status(*(*uint8)(unsafe.Add(p, cqeSyndrome))),
			VendorErr: uint32(*(*uint8)(unsafe.Add(p, cqeVendor))),
		}
		var ok bool
		if op == cqeRequestErr {
			if wc.ID, ok = qp.send.complete(w.counter()); !ok {
				ok = qp.send.completeUMR(w.counter(), wc)
			}
		} else {
			wc.Opcode = verbs.WCRecv
			wc.ID, ok = qp.recv.complete(w.counter())
		}
		return ok
	}
	return false
}

// Types of the L3 header (MLX5_CQE_ROCE_L3_HEADER_TYPE_IPV6 and _IPV4 of the kernel's mlx5_ib).
const (
	l3IPv6 = 1
	l3IPv4 = 2
)

// setSource sets the fields of a datagram's sender and port.
func setSource(wc *verbs.WC, p unsafe.Pointer, flags uint32, qp *queuePair) {
	wc.SrcQP, wc.Port = flags&indexMask, uint8(qp.port.Load())
	if qp.ctx.dev.Port.LinkLayer == verbs.LinkEthernet {
		switch flags >> 24 & 3 { // the L3 header's type takes the place of the service level; 0 is RoCE v1
		case l3IPv6:
			wc.Flags |= verbs.WCIPv6
		case l3IPv4:
			wc.Flags |= verbs.WCIPv4
		}
		return
	}
	wc.SLID = uint16(get32(unsafe.Add(p, cqeSLID-2)))
	wc.SL, wc.PathBits = uint8(flags>>24&0xf), *(*uint8)(unsafe.Add(p, cqeSLPath))&0x7f
}
