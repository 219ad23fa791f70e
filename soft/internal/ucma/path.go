package ucma

import (
	"encoding/binary"

	"github.com/goverbs/verbs"
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

// packPath writes a path as InfiniBand's PathRecord, of 64 bytes, to b (ib_sa_pack_path).
func packPath(b []byte, p *ibcm.Path) {
	be := binary.BigEndian
	be.PutUint64(b[0:], p.ServiceID)
	copy(b[8:24], p.DGID[:])
	copy(b[24:40], p.SGID[:])
	be.PutUint16(b[40:], p.DLID)
	be.PutUint16(b[42:], p.SLID)
	be.PutUint32(b[44:], uint32(flag(p.RawTraffic))<<31|p.FlowLabel&0xfffff<<8|uint32(p.HopLimit))
	b[48] = p.TrafficClass
	b[49] = flag(p.Reversible)<<7 | p.NumbPath&0x7f
	be.PutUint16(b[50:], p.PKey)
	be.PutUint16(b[52:], p.QoSClass<<4|uint16(p.SL&0xf))
	b[54] = p.MTUSelector<<6 | byte(p.MTU)&0x3f
	b[55] = p.RateSelector<<6 | p.Rate&0x3f
	b[56] = p.LifetimeSelector<<6 | p.Lifetime&0x3f
	b[57] = p.Preference
}

// unpackPath reads what packPath writes (ib_sa_unpack_path).
func unpackPath(b []byte) *ibcm.Path {
	be := binary.BigEndian
	flow, qos := be.Uint32(b[44:]), be.Uint16(b[52:])
	return &ibcm.Path{
		ServiceID: be.Uint64(b), DGID: verbs.GID(b[8:24]), SGID: verbs.GID(b[24:40]), DLID: be.Uint16(b[40:]), SLID: be.Uint16(b[42:]),
		RawTraffic: flow>>31 != 0, FlowLabel: flow >> 8 & 0xfffff, HopLimit: uint8(flow), TrafficClass: b[48],
		Reversible: b[49]>>7 != 0, NumbPath: b[49] & 0x7f, PKey: be.Uint16(b[50:]), QoSClass: qos >> 4, SL: uint8(qos & 0xf),
		MTUSelector: b[54] >> 6, MTU: verbs.MTU(b[54] & 0x3f), RateSelector: b[55] >> 6, Rate: b[55] & 0x3f,
		LifetimeSelector: b[56] >> 6, Lifetime: b[56] & 0x3f, Preference: b[57],
	}
}
