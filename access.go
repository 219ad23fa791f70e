package verbs

import (
	"fmt"
	"strings"
)

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
	AccessZeroBased    Access = 1 << 5 // peers count addresses of a type 2 window from 0
	// AccessOnDemand pages memory in on access instead of pinning it. The rxe of Linux
	// 7.2 supports it only for single packets at the start of a page, and otherwise
	// corrupts data: rxe_odp_mr_copy ignores offsets.
	AccessOnDemand Access = 1 << 6
	AccessHugeTLB  Access = 1 << 7 // with AccessOnDemand: the memory has huge pages, see hugetlbfs
	// AccessFlushGlobal and AccessFlushPersistent allow peers to flush, see [Flush].
	AccessFlushGlobal     Access = 1 << 8
	AccessFlushPersistent Access = 1 << 9
	// AccessRelaxedOrdering lets the bus reorder the device's writes and reads, which may be
	// faster. A completion still means that the data is complete, but memory that the program
	// polls shows a peer's WRITEs in any order. Drivers without it ignore it.
	AccessRelaxedOrdering Access = 1 << 20

	// AccessAll contains all rights that most programs grant a peer.
	AccessAll = AccessLocalWrite | AccessRemoteWrite | AccessRemoteRead | AccessRemoteAtomic
)

var accessNames = [...]string{
	"LocalWrite", "RemoteWrite", "RemoteRead", "RemoteAtomic", "MWBind", "ZeroBased", "OnDemand", "HugeTLB",
	"FlushGlobal", "FlushPersistent", 20: "RelaxedOrdering",
}

// String returns the names of the rights: LocalWrite|RemoteRead.
func (a Access) String() string { return bitNames(uint32(a), "|", accessNames[:]) }

// bitNames returns the names of the bits in v, and a number for the bits without a name.
func bitNames(v uint32, separator string, names []string) string {
	var all []string
	for i, name := range names {
		if v&(1<<i) != 0 && name != "" {
			all = append(all, name)
			v &^= 1 << i
		}
	}
	if v != 0 || all == nil {
		all = append(all, fmt.Sprintf("%#x", v))
	}
	return strings.Join(all, separator)
}

// MWType is the type of a memory window (enum ib_mw_type).
type MWType uint8

const (
	// MWType1 windows can be bound any number of times, by uverbs.QP.BindMW only.
	MWType1 MWType = 1
	// MWType2 windows belong to the QP that bound them, and must be invalidated before
	// they are bound again.
	MWType2 MWType = 2
)

// NextRKey returns the key that follows rkey for the same memory. It increments the last byte,
// which belongs to the consumer (ibv_inc_rkey(3)).
func NextRKey(rkey uint32) uint32 { return rkey&^0xff | (rkey+1)&0xff }

// Advice is a hint to the kernel about memory that is registered with AccessOnDemand
// (enum ib_uverbs_advise_mr_advice; ibv_advise_mr(3)).
type Advice uint32

const (
	AdvisePrefetch        Advice = 0
	AdvisePrefetchWrite   Advice = 1
	AdvisePrefetchNoFault Advice = 2
)
