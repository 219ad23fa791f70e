//go:build linux

package connectx

import (
	"net/netip"
	"sync/atomic"

	"github.com/goverbs/verbs"
)

const subnetPrefix = 0xfe80000000000000 // of GIDs: the link-local one

// lids are the addresses that the engine has for LIDs. InfiniBand's packets go over the same
// networks as those of RoCE v2: between LIDs, or with a GRH between GIDs.
var lids = netip.MustParsePrefix("fd1b::/112")

func lidAddr(lid uint16) netip.Addr {
	b := lids.Addr().As16()
	be.PutUint16(b[14:], lid)
	return netip.AddrFrom16(b)
}

// lidOf returns the LID of the port whose MAC address, GUID, or address of its LID, has this end:
// adapters on a wire have different ones.
func lidOf(end []byte) uint16 { return max(be.Uint16(end)&0x7fff, 1) }

// addressing is how the adapter's QPs name their peers.
type addressing struct {
	infiniBand bool
	turn       atomic.Uint32 // changes with the GIDs, of which address handles are made
}

// vector returns the path to a GID or, on InfiniBand without a GRH, to a LID.
func (a *addressing) vector(gid []byte, lid uint16, grh bool, index, tclass, hops uint8) verbs.AddressVector {
	av := verbs.AddressVector{Global: true, Port: 1, SGIDIndex: index, TrafficClass: tclass, HopLimit: hops, DGID: verbs.GID(gid)}
	if !a.infiniBand {
		return av
	}
	const firstGroup = 0xc000 // the LIDs of multicast groups
	av.SGIDIndex = min(index, 0xfe) + 1
	switch group := gid[0] == 0xff; {
	case !grh:
		av.SGIDIndex, av.DGID = 0, lidAddr(lid).As16()
	case group && lid < firstGroup, !group && (be.Uint64(gid) != subnetPrefix || lid != lidOf(gid[14:])):
		av.DGID = lidAddr(0).As16() // nobody's: the port with the LID drops what has not its GID
	}
	return av
}
