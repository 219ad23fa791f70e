//go:build linux

package connectx

import (
	"sync/atomic"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/lab/internal/pcidev"
)

const indexMask = pcidev.IndexMask // of indexes of entries, and of numbers of queues

// cqe is an entry of a CQ, struct mlx5_cqe64. An entry of an error has another layout from byte 36 on,
// struct mlx5_err_cqe.
type cqe [64]byte

// Opcodes of entries, MLX5_CQE_* of the kernel's linux/mlx5/device.h.
const (
	cqeRequest      = 0
	cqeWriteImm     = 1
	cqeSend         = 2
	cqeSendImm      = 3
	cqeSendInval    = 4
	cqeResize       = 5
	cqeRequestError = 13
	cqeReceiveError = 14
	cqeInvalid      = 15
)

// Offsets of fields.
const (
	cqeChecksum    = 20 // check_sum
	cqeSLID        = 22 // source LID
	cqeFlagsRQPN   = 24 // GRH in bits 28 and 29, type of the L3 header in bits 24 and 25, source QP
	cqeHeadersOK   = 28 // hds_ip_ext
	cqeHeaderTypes = 29 // l4_l3_hdr_type
	cqeVLAN        = 30 // vlan_info
	cqeUserIndex   = 32 // srqn
	cqeImm         = 36 // immediate data, invalidated key, or P_Key of QP 1
	cqeByteCount   = 44
	cqeTime        = 48
	cqeVendor      = 54 // of struct mlx5_err_cqe, as cqeSyndrome
	cqeSyndrome    = 55
	cqeOpQPN       = 56 // opcode of the request in the upper byte, number of the QP
	cqeCounter     = 60 // wqe_counter: index of the request
	cqeOpOwn       = 63 // opcode of the entry in the upper half, solicited in bit 1, owner in bit 0
)

// syndromes are MLX5_CQE_SYNDROME_*, by status (mlx5_ib's mlx5_handle_error_cqe).
var syndromes = [...]byte{
	verbs.WCLocLenErr: 0x01, verbs.WCLocQPOpErr: 0x02, verbs.WCLocProtErr: 0x04, verbs.WCFlushErr: 0x05,
	verbs.WCMWBindErr: 0x06, verbs.WCBadRespErr: 0x10, verbs.WCLocAccessErr: 0x11, verbs.WCRemInvReqErr: 0x12,
	verbs.WCRemAccessErr: 0x13, verbs.WCRemOpErr: 0x14, verbs.WCRetryExcErr: 0x15, verbs.WCRNRRetryExcErr: 0x16,
	verbs.WCRemAbortErr: 0x22,
}

// setSyndrome sets the syndrome of an error, and the vendor error, which ConnectX shows with it in
// published logs of UCX and NCCL. Nothing public documents vendor errors: with other syndromes it is 0
// here.
func (e *cqe) setSyndrome(syndrome byte) {
	e[cqeSyndrome] = syndrome
	e[cqeVendor] = map[byte]byte{
		syndromes[verbs.WCFlushErr]: 0xf9, syndromes[verbs.WCRetryExcErr]: 0x81,
		syndromes[verbs.WCRemAccessErr]: 0x88, syndromes[verbs.WCRemOpErr]: 0x89,
	}[syndrome]
}

// spoil applies the pending faults to an entry. It reports false if the entry is to be lost.
func (e *cqe) spoil(f *pcidev.Faults, op byte) (byte, bool) {
	if _, ok := f.Take(FaultLost); ok {
		return op, false
	}
	if syndrome, ok := f.Take(FaultCompletion); ok {
		e.setSyndrome(syndrome)
		if op == cqeRequest {
			return cqeRequestError, true
		}
		return cqeReceiveError, true
	}
	if n, ok := f.Take(FaultOpcode); ok {
		op = n & 0xf
	}
	if n, ok := f.Take(FaultQPN); ok {
		word := be.Uint32(e[cqeOpQPN:])
		be.PutUint32(e[cqeOpQPN:], word&^indexMask|(word+uint32(n))&indexMask)
	}
	if n, ok := f.Take(FaultCounter); ok {
		be.PutUint16(e[cqeCounter:], be.Uint16(e[cqeCounter:])+uint16(n))
	}
	return op, true
}

// failures counts completions with errors.
type failures [len(syndromes)]atomic.Uint64

const (
	failedRequests = 0
	failedReceives = 1
)
