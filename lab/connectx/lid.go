//go:build linux

package connectx

import (
	"net/netip"
	"sync/atomic"

	"github.com/goverbs/verbs"
)

const subnetPrefix = 0xfe80000000000000 // of all GIDs here: IB_DEFAULT_GID_PREFIX

// lids are the IP addresses that stand for LIDs in the engine, which sends InfiniBand's packets like
// RoCE v2's: between these addresses, or between GIDs if the packet has a GRH.
var lids = netip.MustParsePrefix("fd1b::/112")

func lidAddr(lid uint16) netip.Addr {
	b := lids.Addr().As16()
	be.PutUint16(b[14:], lid)
	return netip.AddrFrom16(b)
}

// lidOf returns the LID of the port whose MAC address, GUID or address in lids ends with these bytes.
// The subnet manager assigns LIDs on a real network. Here they follow from the MAC address, so that
// adapters know each other's.
func lidOf(suffix []byte) uint16 { return max(be.Uint16(suffix)&0x7fff, 1) }

// addressing turns the destinations that requests name into addresses of the engine.
type addressing struct {
	infiniBand bool
	gidChanges atomic.Uint32 // each makes address handles invalid
}

// vector returns the path to a GID or, on InfiniBand without a GRH, to a LID.
func (a *addressing) vector(gid []byte, lid uint16, grh bool, index, tclass, hops uint8) verbs.AddressVector {
	av := verbs.AddressVector{Global: true, Port: 1, SGIDIndex: index, TrafficClass: tclass, HopLimit: hops, DGID: verbs.GID(gid)}
	if !a.infiniBand {
		return av
	}
	const firstGroup = 0xc000           // IB_MULTICAST_LID_BASE
	av.SGIDIndex = min(index, 0xfe) + 1 // the engine has the LID at 0: see newTransport
	switch group := gid[0] == 0xff; {
	case !grh:
		av.SGIDIndex, av.DGID = 0, lidAddr(lid).As16()
	case group && lid < firstGroup, !group && (be.Uint64(gid) != subnetPrefix || lid != lidOf(gid[14:])):
		av.DGID = lidAddr(0).As16() // nobody's: the port with this LID drops packets to another GID
	}
	return av
}
