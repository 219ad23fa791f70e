package erdma

import (
	"math/bits"
	"unsafe"

	"github.com/goverbs/verbs"
)

// A request (SQE) is one to four units: a header of 8 bytes, fields of the opcode, and segments
// (struct erdma_sge) or inline data. It may wrap around at the end of the queue, which is a multiple of
// units. A receive (struct erdma_rqe) is one unit.
const (
	unit        = 32 // SQEBB_SIZE, RQE_SIZE
	maxUnits    = 4  // ERDMA_MAX_WQEBB_PER_SQE
	segmentSize = 16
)

// Fields of a request's header, ERDMA_SQE_HDR_* of erdma_hw.h.
const (
	headerLength  = 56 // segments, or bytes of inline data
	headerUnits   = 52 // less one
	headerQPN     = 32
	headerOpcode  = 27
	flagInline    = 1 << 25
	flagFence     = 1 << 24
	flagSolicited = 1 << 23
	flagSignaled  = 1 << 22
	indexMask     = 0xffff // of the unit behind the request
)

// Offsets in requests.
const (
	sqeExtra  = 8  // imm_data, big-endian, or invalid_stag
	sqeLength = 12 // of the message
	sendData  = 16 // of struct erdma_send_sqe
	writeKey  = 16 // sink_stag of struct erdma_write_sqe, of a READ the local key
	writeAddr = 20 // sink_to_low and sink_to_high, of a READ the local address
	writeData = 32

	atomicOperand = 16 // fetchadd_swap_data of struct erdma_atomic_sqe
	atomicCompare = 24 // cmp_data
	atomicKey     = 12 // of the second unit, which has the remote address at 0
	atomicLocal   = 16 // segment of the second unit

	unitQPN = 28 // liberdma writes the QP's number here in a unit of segments; a second segment's key replaces it
)

// Opcodes, enum erdma_opcode.
const (
	opWrite       = 0
	opRead        = 1
	opSend        = 2
	opSendImm     = 3
	opRecv        = 4
	opRecvImm     = 5
	opRecvInv     = 6
	opWriteImm    = 9
	opInvalidate  = 11 // of liberdma's table alone
	opRecvSendImm = 12 // ERDMA_OP_RSP_SEND_IMM
	opSendInv     = 13
	opReadInv     = 16
	opCompareSwap = 17
	opFetchAdd    = 18
	numOpcodes    = 19
)

// kind is how a request is laid out.
type kind uint8

const (
	kindNone kind = iota // there is no such request
	kindSend
	kindWrite
	kindRead
	kindAtomic
)

// extra is what is behind the header of a request.
type extra uint8

const (
	extraNone extra = iota
	extraImm
	extraKey
)

// operation tells how to encode an opcode of package verbs.
type operation struct {
	opcode uint8
	kind   kind
	extra  extra
	_      uint8
}

var operations = [16]operation{
	verbs.OpRDMAWrite:    {opcode: opWrite, kind: kindWrite},
	verbs.OpRDMAWriteImm: {opcode: opWriteImm, kind: kindWrite, extra: extraImm},
	verbs.OpSend:         {opcode: opSend, kind: kindSend},
	verbs.OpSendImm:      {opcode: opSendImm, kind: kindSend, extra: extraImm},
	verbs.OpSendInv:      {opcode: opSendInv, kind: kindSend, extra: extraKey},
	verbs.OpRDMARead:     {opcode: opRead, kind: kindRead},
	verbs.OpCompareSwap:  {opcode: opCompareSwap, kind: kindAtomic},
	verbs.OpFetchAdd:     {opcode: opFetchAdd, kind: kindAtomic},
}

// operationOf returns the operation of an opcode.
func operationOf(o verbs.Opcode) operation { return operations[min(uint(o), uint(len(operations)-1))] }

// extraOf returns the word behind the header.
func (o operation) extraOf(wr *verbs.SendWR) uint32 {
	switch o.extra {
	case extraImm:
		return bits.ReverseBytes32(wr.Imm)
	case extraKey:
		return wr.RKey
	}
	return 0
}

// flagsOf has the header's flags for each combination of package verbs' flags.
var flagsOf = [8]uint32{
	0, flagFence, flagSignaled, flagFence | flagSignaled,
	flagSolicited, flagFence | flagSolicited, flagSignaled | flagSolicited, flagFence | flagSignaled | flagSolicited,
}

// put32 and put64 store a little-endian number: both processors of [mmap.OrdersDevice] are.
func put32(p unsafe.Pointer, v uint32) { *(*uint32)(p) = v }
func put64(p unsafe.Pointer, v uint64) { *(*uint64)(p) = v }

// putSegment writes struct erdma_sge: addr, length, key.
func putSegment(p unsafe.Pointer, addr uint64, length, key uint32) {
	put64(p, addr)
	put64(unsafe.Add(p, 8), uint64(length)|uint64(key)<<32)
}
