package verbs

// Opcode is the operation of a [SendWR]. Its values are those of the kernel's enum
// ib_uverbs_wr_opcode plus one, so that the zero Opcode is none: posting it fails with
// [ErrNoOpcode].
type Opcode uint16

const (
	OpRDMAWrite    Opcode = 1
	OpRDMAWriteImm Opcode = 2 // RDMA WRITE that consumes a receive and delivers an immediate
	OpSend         Opcode = 3
	OpSendImm      Opcode = 4
	// OpRDMARead reads the peer's memory into local memory, which requires
	// AccessLocalWrite. If the network duplicates or reorders responses, rxe may report
	// the success of a read of more than one packet without its data, and then fail the
	// QP. A later request that succeeds proves that the read has completed; on iWARP it
	// does not, as other requests overtake reads.
	OpRDMARead Opcode = 5
	// OpCompareSwap and OpFetchAdd change 8 aligned bytes of the peer's memory and store their
	// old value in the memory of one SGE of 8 bytes.
	OpCompareSwap Opcode = 6
	OpFetchAdd    Opcode = 7
	// OpLocalInv invalidates the local key of a type 2 memory window. On mlx5 it counts as up to
	// two requests of [QPCap], and OpBindMW as up to three: they are longer than others.
	OpLocalInv Opcode = 8
	OpBindMW   Opcode = 9
	// OpSendInv is a SEND that invalidates a key at the receiver.
	OpSendInv Opcode = 10
	// OpRDMAReadInv is an RDMA READ that invalidates the local key it reads into (iWARP).
	OpRDMAReadInv Opcode = 12
	// OpFlush completes when earlier writes to a range are visible or persistent, see [Flush].
	OpFlush Opcode = 15
	// OpAtomicWrite writes 8 bytes, given as Inline, atomically.
	OpAtomicWrite Opcode = 16
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

// SendFlags modify a [SendWR]. Values are those of the kernel's enum ib_send_flags;
// inline data has no flag, see [SendWR.Inline].
type SendFlags uint16

const (
	// SendFence delays the request until all earlier RDMA READs and atomics of the
	// queue have completed.
	SendFence SendFlags = 1 << 0
	// SendSignaled requests a completion on success as well. A QP made with SignalAll treats every
	// request as signaled. The slot of an unsignaled request becomes free when a later signaled one
	// has completed, so with every driver at least one request in each queue's length must be
	// signaled. siw accepts more unsignaled requests; rxe returns [ErrQueueFull].
	SendSignaled SendFlags = 1 << 1
	// SendSolicited marks the peer's completion as solicited, which wakes a peer that
	// armed its CQ for solicited completions only.
	SendSolicited SendFlags = 1 << 2
)

// String returns the names of the flags: Fence|Signaled.
func (f SendFlags) String() string {
	return bitNames(uint32(f), "|", []string{"Fence", "Signaled", "Solicited"})
}

// SGE is a scatter/gather element: Length bytes of registered memory at Addr, under LKey.
type SGE struct {
	Addr   uint64
	Length uint32
	LKey   uint32
}

// SendWR is a work request for a send queue. It and everything it points to may be
// reused as soon as posting returns, but the memory that SGL names must not change until
// the request has completed.
type SendWR struct {
	ID     uint64 // returned in [WC.ID]
	Opcode Opcode
	Flags  SendFlags

	// Imm is the immediate of the Imm operations, in host byte order.
	Imm uint32

	// SGL is local memory: the source of sends and writes, the destination of reads and atomics.
	SGL []SGE
	// Inline is data that posting copies into the request. It needs no memory region and
	// is free for reuse at once. It has at most the QP's MaxInline bytes, cannot be
	// combined with SGL, and does not work for reads.
	Inline []byte

	// RemoteAddr and RKey name the peer's memory for RDMA operations, atomics and
	// flushes. RKey is also the key that OpSendInv and OpLocalInv invalidate.
	RemoteAddr uint64
	RKey       uint32

	// To is the destination, on UD QPs and on a DCI only.
	To UDAddr

	// Args has the arguments that few requests need; nil means zeros.
	Args *SendArgs
}

// SendArgs has the arguments of a [SendWR] that few requests need.
type SendArgs struct {
	// CompareAdd is the value that OpCompareSwap compares with, or that OpFetchAdd
	// adds. Swap is the value that OpCompareSwap stores.
	CompareAdd, Swap uint64

	// Bind describes the binding of OpBindMW.
	Bind *MWBind

	// Flush describes OpFlush.
	Flush Flush

	// DCKey is the key of the target of a DCI's request. 0 is the DCKey that the DCI was made
	// with, so that an initiator whose targets have one key needs no Args.
	DCKey uint64

	// InlineList is more inline data, behind [SendWR.Inline].
	InlineList [][]byte
}

// UDAddr is the destination of a datagram: the driver's number of an address handle, and
// the number and the Q_Key of the peer's QP. A DCI sends to a DCT by its number, and QKey has no
// meaning: the key of a DCT has 64 bits.
type UDAddr struct {
	AH, QPNum, QKey uint32
}

// MWBind binds a memory window to a part of a region. The window's key becomes NewRKey,
// which differs from RKey in its last byte.
type MWBind struct {
	Type          MWType // 0 is [MWType2]
	RKey, NewRKey uint32
	LKey          uint32 // of the region
	Addr, Length  uint64 // of the part; length 0 unbinds a type 1 window
	Access        Access
}

// Flush describes what OpFlush makes visible or persistent.
type Flush struct {
	Length uint32 // bytes from RemoteAddr
	Type   FlushType
	Level  FlushLevel
}

// FlushType is the effect of a flush (enum ib_placement_type).
type FlushType uint8

const (
	FlushGlobal     FlushType = 1 // the data is visible to the peer's whole machine
	FlushPersistent FlushType = 2
)

// FlushLevel is the scope of a flush (enum ib_selectivity_level).
type FlushLevel uint8

const (
	FlushRange FlushLevel = 0
	FlushMR    FlushLevel = 1
)

// RecvWR is a work request for a receive queue: the memory for one incoming message. It
// may be reused as a [SendWR] may.
type RecvWR struct {
	ID  uint64 // returned in [WC.ID]
	SGL []SGE
}

func name[K comparable](m map[K]string, k K) string {
	if s, ok := m[k]; ok {
		return s
	}
	return "unknown"
}
