package mlx5

import (
	"math/bits"
	"unsafe"

	"golang.org/x/sys/cpu"

	"github.com/goverbs/verbs"
)

// A request (WQE) of a send queue is a list of segments, in units of 16 bytes: struct
// mlx5_wqe_ctrl_seg; for datagrams and DC struct mlx5_wqe_datagram_seg; for RDMA struct
// mlx5_wqe_raddr_seg; for atomics struct mlx5_wqe_atomic_seg; then struct mlx5_wqe_data_seg for
// each SGE, or inline data behind struct mlx5_wqe_inline_seg. It begins at a block of 64 bytes, and
// wraps around at the end of the queue (qp.h).
const (
	block    = 64 // MLX5_SEND_WQE_BB
	unit     = 16
	maxUnits = 63 // MLX5_WQE_CTRL_DS_MASK

	ctrlSize    = 16
	ctrlFlags   = 11 // fm_ce_se
	avSize      = 48
	remoteSize  = 16
	atomicSize  = 16
	segmentSize = 16
	inlineHead  = 4

	inlineBit = 1 << 31 // MLX5_INLINE_SEG, of byte_count
)

// Opcodes of requests, MLX5_OPCODE_* of device.h.
const (
	opSendInval = 0x01
	opWrite     = 0x08
	opWriteImm  = 0x09
	opSend      = 0x0a
	opSendImm   = 0x0b
	opRead      = 0x10
	opCompare   = 0x11
	opFetchAdd  = 0x12
	opUMR       = 0x25
)

// Flags of requests, fm_ce_se of struct mlx5_wqe_ctrl_seg.
const (
	flagSolicited = 1 << 1 // MLX5_WQE_CTRL_SOLICITED
	flagSignaled  = 2 << 2 // MLX5_WQE_CTRL_CQ_UPDATE
	flagFence     = 4 << 5 // MLX5_FENCE_MODE_FENCE
	flagAfterUMR  = 1 << 5 // MLX5_FENCE_MODE_INITIATOR_SMALL: the request waits for the UMR request before it
	flagsFence    = 7 << 5
)

// invalidKey ends the list of a receive that does not fill its entry: libmlx5's MLX5_INVALID_LKEY,
// the kernel's MLX5_TERMINATE_SCATTER_LIST_LKEY.
const invalidKey = 0x100

// operation tells how to encode an opcode of package verbs.
type operation struct {
	opcode uint8
	types  uint8 // bits of the QP types that accept it
	simple uint8 // bits of the types for which Post encodes it itself
	head   uint8 // bytes before the data, on RC and UC; UD and DC have an address vector as well
	remote bool  // names the peer's memory
	reads  bool  // returns data, and needs memory for it
	imm    bool  // has an immediate
	_      bool
}

const (
	onRC  = 1 << verbs.RC
	onUC  = 1 << verbs.UC
	onUD  = 1 << verbs.UD
	onDC  = 1 << 5 // of a DCI: its type has no place among 8 bits
	onAll = onRC | onUC | onUD | onDC
)

// typeBit returns the bit of a type of QP. A DCT has none, as it sends nothing.
func typeBit(t verbs.QPType) uint8 {
	if t == verbs.DCI {
		return onDC
	}
	return 1 << t
}

var operations = [16]operation{
	verbs.OpRDMAWrite:    {opcode: opWrite, types: onRC | onUC | onDC, simple: onRC | onUC, head: ctrlSize + remoteSize, remote: true},
	verbs.OpRDMAWriteImm: {opcode: opWriteImm, types: onRC | onUC | onDC, simple: onRC | onUC, head: ctrlSize + remoteSize, remote: true, imm: true},
	verbs.OpSend:         {opcode: opSend, types: onAll, simple: onRC | onUC, head: ctrlSize},
	verbs.OpSendImm:      {opcode: opSendImm, types: onAll, simple: onRC | onUC, head: ctrlSize, imm: true},
	verbs.OpSendInv:      {opcode: opSendInval, types: onRC | onDC, head: ctrlSize},
	verbs.OpRDMARead:     {opcode: opRead, types: onRC | onDC, simple: onRC, head: ctrlSize + remoteSize, remote: true, reads: true},
	verbs.OpCompareSwap:  {opcode: opCompare, types: onRC | onDC, head: ctrlSize + remoteSize + atomicSize, remote: true, reads: true},
	verbs.OpFetchAdd:     {opcode: opFetchAdd, types: onRC | onDC, head: ctrlSize + remoteSize + atomicSize, remote: true, reads: true},
}

// operationOf returns the operation of an opcode. No QP accepts that of an unknown one.
func operationOf(o verbs.Opcode) *operation { return &operations[min(int(o), len(operations)-1)] }

// flagsOf has the flags for each combination of package verbs' flags.
var flagsOf = [...]uint8{
	0, flagFence, flagSignaled, flagFence | flagSignaled,
	flagSolicited, flagFence | flagSolicited, flagSignaled | flagSolicited, flagFence | flagSignaled | flagSolicited,
}

// put32 and put64 store a big-endian number, get32 loads one. The compiler may split the stores of
// encoding/binary, and the copy to a register would wait for the parts.
func put32(p unsafe.Pointer, v uint32) { *(*uint32)(p) = swap32(v) }
func put64(p unsafe.Pointer, v uint64) { *(*uint64)(p) = swap64(v) }
func get32(p unsafe.Pointer) uint32    { return swap32(*(*uint32)(p)) }
func get64(p unsafe.Pointer) uint64    { return swap64(*(*uint64)(p)) }

// swap32 converts a word that is loaded or stored as a whole between host and big-endian order.
func swap32(v uint32) uint32 {
	if cpu.IsBigEndian {
		return v
	}
	return bits.ReverseBytes32(v)
}

func swap64(v uint64) uint64 {
	if cpu.IsBigEndian {
		return v
	}
	return bits.ReverseBytes64(v)
}

// putSegment writes struct mlx5_wqe_data_seg: byte_count, lkey, addr.
func putSegment(p unsafe.Pointer, s *verbs.SGE) {
	put64(p, uint64(s.Length)<<32|uint64(s.LKey))
	put64(unsafe.Add(p, 8), s.Addr)
}

// maxSegment is the greatest length of a segment: bit 31 means inline data.
const maxSegment = 1<<31 - 1

// putRemote writes struct mlx5_wqe_raddr_seg: raddr, rkey, and a reserved word.
func putRemote(p unsafe.Pointer, addr uint64, key uint32) {
	put64(p, addr)
	put64(unsafe.Add(p, 8), uint64(key)<<32)
}

// putControl writes struct mlx5_wqe_ctrl_seg: opmod_idx_opcode, qpn_ds, signature,
// dci_stream_channel_id, fm_ce_se, imm.
func putControl(p unsafe.Pointer, opcode uint8, index uint16, qpn uint32, units int, flags uint8, imm uint32) {
	put64(p, uint64(index)<<40|uint64(opcode)<<32|uint64(qpn<<8|uint32(units)))
	put64(unsafe.Add(p, 8), uint64(flags)<<32|uint64(imm))
}
