package provider

import "github.com/goverbs/verbs/abi"

// Opcode is the operation of a [SendWR]. Values are one more than the kernel's
// (enum ib_uverbs_wr_opcode), so that zero, for which posting returns
// [ErrNoOpcode], is none.
type Opcode uint32

const (
	OpRDMAWrite    Opcode = abi.IB_UVERBS_WR_RDMA_WRITE + 1
	OpRDMAWriteImm Opcode = abi.IB_UVERBS_WR_RDMA_WRITE_WITH_IMM + 1
	OpSend         Opcode = abi.IB_UVERBS_WR_SEND + 1
	OpSendImm      Opcode = abi.IB_UVERBS_WR_SEND_WITH_IMM + 1
	// OpRDMARead fetches the peer's memory. rxe may call one of more than a
	// packet done that is not, if the network repeats acknowledgements, and break
	// the QP then: the success of a later request proves it.
	OpRDMARead Opcode = abi.IB_UVERBS_WR_RDMA_READ + 1
	// OpCompareSwap and OpFetchAdd work on 8 aligned bytes of the peer's
	// memory and return what was there in the SGL's 8 bytes.
	OpCompareSwap Opcode = abi.IB_UVERBS_WR_ATOMIC_CMP_AND_SWP + 1
	OpFetchAdd    Opcode = abi.IB_UVERBS_WR_ATOMIC_FETCH_AND_ADD + 1
	// OpLocalInv takes away a local key: of a type 2 memory window.
	OpLocalInv Opcode = abi.IB_UVERBS_WR_LOCAL_INV + 1
	OpBindMW   Opcode = abi.IB_UVERBS_WR_BIND_MW + 1
	// OpSendInv is a SEND that takes a key away at the receiver.
	OpSendInv Opcode = abi.IB_UVERBS_WR_SEND_WITH_INV + 1
	// OpRDMAReadInv is an RDMA READ that takes away the local key it reads
	// into (iWARP).
	OpRDMAReadInv Opcode = abi.IB_UVERBS_WR_RDMA_READ_WITH_INV + 1
	// OpFlush returns when earlier writes to a range are visible or
	// persistent, see [Flush].
	OpFlush Opcode = abi.IB_UVERBS_WR_FLUSH + 1
	// OpAtomicWrite writes 8 bytes, given as Inline, at once.
	OpAtomicWrite Opcode = abi.IB_UVERBS_WR_ATOMIC_WRITE + 1
)

var opcodeNames = map[Opcode]string{
	OpRDMAWrite:    "RDMA_WRITE",
	OpRDMAWriteImm: "RDMA_WRITE_WITH_IMM",
	OpSend:         "SEND",
	OpSendImm:      "SEND_WITH_IMM",
	OpRDMARead:     "RDMA_READ",
	OpCompareSwap:  "ATOMIC_CMP_AND_SWP",
	OpFetchAdd:     "ATOMIC_FETCH_AND_ADD",
	OpLocalInv:     "LOCAL_INV",
	OpBindMW:       "BIND_MW",
	OpSendInv:      "SEND_WITH_INV",
	OpRDMAReadInv:  "RDMA_READ_WITH_INV",
	OpFlush:        "FLUSH",
	OpAtomicWrite:  "ATOMIC_WRITE",
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
	// SignalAll behaves as if every request had it. The room of a request that
	// has none is free again when a later signaled one has completed: each
	// queue's worth of requests needs one, with every driver. siw takes more
	// without, rxe returns [ErrQueueFull].
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

	// RemoteAddr and RKey name the peer's memory for RDMA operations,
	// atomics and flushes.
	RemoteAddr uint64
	RKey       uint32

	// InvalidateRKey is the key that the _INV operations take away.
	InvalidateRKey uint32

	// CompareAdd is what OpCompareSwap compares with and OpFetchAdd adds;
	// Swap is what OpCompareSwap stores.
	CompareAdd, Swap uint64

	// To is the destination on UD QPs.
	To UDAddr

	// Bind is what OpBindMW does.
	Bind *MWBind

	// Flush is what OpFlush does.
	Flush Flush
}

// UDAddr is the destination of a datagram: an address handle as the driver
// numbers it, and the peer's QP with its Q_Key.
type UDAddr struct {
	AH, QPNum, QKey uint32
}

// MWBind opens a memory window on a part of a region: its key becomes NewRKey,
// which differs from RKey in the last byte.
type MWBind struct {
	RKey, NewRKey uint32
	LKey          uint32 // of the region
	Addr, Length  uint64 // the part; length 0 closes a type 1 window
	Access        uint32 // enum ib_uverbs_access_flags
}

// Flush says what OpFlush makes visible or persistent.
type Flush struct {
	Length uint32 // bytes from RemoteAddr
	Type   FlushType
	Level  FlushLevel
}

// FlushType is how far a flush goes (enum ib_placement_type).
type FlushType uint8

const (
	FlushGlobal     FlushType = abi.IB_FLUSH_GLOBAL // visible to all of the peer's machine
	FlushPersistent FlushType = abi.IB_FLUSH_PERSISTENT
)

// FlushLevel is what a flush covers (enum ib_selectivity_level).
type FlushLevel uint8

const (
	FlushRange FlushLevel = abi.IB_FLUSH_RANGE
	FlushMR    FlushLevel = abi.IB_FLUSH_MR
)

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
