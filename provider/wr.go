package provider

import "github.com/goverbs/verbs/abi"

// Opcode is the operation of a [SendWR]. Values are the kernel's
// (enum ib_uverbs_wr_opcode).
type Opcode uint32

const (
	OpRDMAWrite    Opcode = abi.IB_UVERBS_WR_RDMA_WRITE
	OpRDMAWriteImm Opcode = abi.IB_UVERBS_WR_RDMA_WRITE_WITH_IMM
	OpSend         Opcode = abi.IB_UVERBS_WR_SEND
	OpSendImm      Opcode = abi.IB_UVERBS_WR_SEND_WITH_IMM
	OpRDMARead     Opcode = abi.IB_UVERBS_WR_RDMA_READ
)

var opcodeNames = map[Opcode]string{
	OpRDMAWrite:    "RDMA_WRITE",
	OpRDMAWriteImm: "RDMA_WRITE_WITH_IMM",
	OpSend:         "SEND",
	OpSendImm:      "SEND_WITH_IMM",
	OpRDMARead:     "RDMA_READ",
}

func (o Opcode) String() string { return name(opcodeNames, o) }

// SendFlags modify a [SendWR]. Values are the kernel's (enum ib_send_flags);
// inline data has no flag here, see [SendWR.Inline].
type SendFlags uint32

const (
	// SendFence starts the request only after all earlier RDMA READs and
	// atomics of the queue have completed.
	SendFence SendFlags = 1 << 0
	// SendSignaled asks for a completion on success too. A QP made with
	// SignalAll behaves as if every request had it.
	SendSignaled SendFlags = 1 << 1
	// SendSolicited makes the peer's completion a solicited one, see
	// [CompletionQueue] Arm.
	SendSolicited SendFlags = 1 << 2

	// SendInline is for drivers: the bit of requests with inline data.
	SendInline SendFlags = 1 << 3
)

// SGE is a piece of registered memory: Length bytes at Addr, under LKey.
type SGE struct {
	Addr   uint64
	Length uint32
	LKey   uint32
}

// SendWR is a work request for a send queue. It and all it points to may be
// reused as soon as posting returns; the memory that SGL names must stay
// untouched until the request has completed.
type SendWR struct {
	ID     uint64 // returned in [WC.ID]
	Opcode Opcode
	Flags  SendFlags

	// SGL is the local memory: gathered for sends and writes, scattered into
	// for reads.
	SGL []SGE
	// Inline and InlineList are data to copy into the request while posting,
	// in this order: no memory region, and free for reuse at once. At most
	// the QP's MaxInline bytes; not together with SGL, nor for reads.
	Inline     []byte
	InlineList [][]byte

	// Imm is the immediate of the _IMM operations, in host byte order.
	Imm uint32

	// RemoteAddr and RKey name the peer's memory for RDMA operations.
	RemoteAddr uint64
	RKey       uint32
}

// RecvWR is a work request for a receive queue: where one incoming message
// goes. The same rules of reuse as for [SendWR] hold.
type RecvWR struct {
	ID  uint64
	SGL []SGE
}

func name[K comparable](m map[K]string, k K) string {
	if s, ok := m[k]; ok {
		return s
	}
	return "unknown"
}
