package verbs

// Access is the set of operations allowed on memory, or to a QP's peer (enum
// ib_uverbs_access_flags). Local reads are always allowed. siw does not check
// AccessRemoteRead: it always allows remote reads.
type Access uint32

const (
	AccessLocalWrite   Access = 1 << 0 // receives, and results of reads and atomics
	AccessRemoteWrite  Access = 1 << 1 // requires AccessLocalWrite
	AccessRemoteRead   Access = 1 << 2
	AccessRemoteAtomic Access = 1 << 3 // requires AccessLocalWrite
	AccessMWBind       Access = 1 << 4 // memory windows may be bound to the region
	AccessZeroBased    Access = 1 << 5
	// AccessOnDemand pages memory in on access instead of pinning it. The rxe of Linux
	// 7.2 supports it only for single packets at the start of a page, and otherwise
	// corrupts data: rxe_odp_mr_copy ignores offsets.
	AccessOnDemand Access = 1 << 6
	AccessHugeTLB  Access = 1 << 7
	// AccessFlushGlobal and AccessFlushPersistent allow peers to flush, see [Flush].
	AccessFlushGlobal     Access = 1 << 8
	AccessFlushPersistent Access = 1 << 9
	// AccessRelaxedOrdering allows the bus to reorder what the device writes and reads, which
	// may be faster. Data is complete when a completion says so, but memory that the program
	// polls shows a peer's WRITEs in any order. Drivers without it ignore it.
	AccessRelaxedOrdering Access = 1 << 20

	// AccessAll contains all rights that most programs grant a peer.
	AccessAll = AccessLocalWrite | AccessRemoteWrite | AccessRemoteRead | AccessRemoteAtomic
)

// MWType is the type of a memory window (enum ib_mw_type).
type MWType uint8

const (
	// MWType1 windows can be bound any number of times, by uverbs.QP.BindMW only.
	MWType1 MWType = 1
	// MWType2 windows belong to the QP that bound them, and must be invalidated before
	// they are bound again.
	MWType2 MWType = 2
)

// NextRKey returns the key that follows rkey for the same memory: its last byte, which
// is the consumer's, is incremented (ibv_inc_rkey(3)).
func NextRKey(rkey uint32) uint32 { return rkey&^0xff | (rkey+1)&0xff }

// Advice is a hint to the kernel about memory that is registered with AccessOnDemand
// (enum ib_uverbs_advise_mr_advice; ibv_advise_mr(3)).
type Advice uint32

const (
	AdvisePrefetch        Advice = 0
	AdvisePrefetchWrite   Advice = 1
	AdvisePrefetchNoFault Advice = 2
)
