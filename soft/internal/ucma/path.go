package ucma

import (
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/soft/internal/ibcm"
)

// userPath returns a path in the form of QUERY_ROUTE (ib_copy_path_rec_to_user).
func userPath(p *ibcm.Path) abi.IbUserPathRec {
	return abi.IbUserPathRec{
		Dgid: p.DGID, Sgid: p.SGID, Dlid: bigEndian16(p.DLID), Slid: bigEndian16(p.SLID), RawTraffic: uint32(flag(p.RawTraffic)),
		FlowLabel: bigEndian32(p.FlowLabel), Reversible: uint32(flag(p.Reversible)), Mtu: uint32(p.MTU), Pkey: bigEndian16(p.PKey),
		HopLimit: p.HopLimit, TrafficClass: p.TrafficClass, NumbPath: p.NumbPath, Sl: p.SL, MtuSelector: p.MTUSelector,
		RateSelector: p.RateSelector, Rate: p.Rate, PacketLifeTimeSelector: p.LifetimeSelector, PacketLifeTime: p.Lifetime,
		Preference: p.Preference,
	}
}
