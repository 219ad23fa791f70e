package verbs

// Access is what may be done with memory, or by a QP's peer (enum
// ib_uverbs_access_flags). Local reads are always allowed. siw does not check
// AccessRemoteRead, so there remote reads are, too.
type Access uint32

const (
	AccessLocalWrite   Access = 1 << 0 // receives, and results of reads and atomics
	AccessRemoteWrite  Access = 1 << 1 // requires AccessLocalWrite
	AccessRemoteRead   Access = 1 << 2
	AccessRemoteAtomic Access = 1 << 3 // requires AccessLocalWrite
	AccessMWBind       Access = 1 << 4 // memory windows may be bound to the region
	AccessZeroBased    Access = 1 << 5
	// AccessOnDemand does not pin memory, but pages it in on access. The rxe of Linux
	// 7.2 has it, but it works only for single packets at the start of a page, and
	// corrupts data otherwise: rxe_odp_mr_copy ignores offsets.
	AccessOnDemand Access = 1 << 6
	AccessHugeTLB  Access = 1 << 7
	// AccessFlushGlobal and AccessFlushPersistent allow peers to flush, see [Flush].
	AccessFlushGlobal     Access = 1 << 8
	AccessFlushPersistent Access = 1 << 9
	// AccessRelaxedOrdering allows the bus to reorder writes. Drivers without it
	// ignore it.
	AccessRelaxedOrdering Access = 1 << 20

	// AccessAll is all that most programs grant a peer.
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

// Advice is what the kernel is advised to do with memory that is registered with
// AccessOnDemand (enum ib_uverbs_advise_mr_advice; ibv_advise_mr(3)).
type Advice uint32

const (
	AdvisePrefetch        Advice = 0
	AdvisePrefetchWrite   Advice = 1
	AdvisePrefetchNoFault Advice = 2
)
