package attr

import (
	"encoding/binary"

	"github.com/goverbs/verbs"
)

// Path is a path between two ports, InfiniBand's PathRecord (InfiniBand specification 1,
// 15.2.5.16).
type Path struct {
	ServiceID        uint64
	DGID, SGID       verbs.GID
	DLID, SLID       uint16
	RawTraffic       bool
	FlowLabel        uint32
	HopLimit         uint8
	TrafficClass     uint8
	Reversible       bool
	NumbPath         uint8
	PKey             uint16
	QoSClass         uint16
	SL               uint8
	MTUSelector      uint8
	MTU              verbs.MTU
	RateSelector     uint8
	Rate             uint8
	LifetimeSelector uint8
	Lifetime         uint8 // packet lifetime, 4.096 µs * 2^Lifetime
	Preference       uint8
}

// AddressVector returns the address vector of the path from GID sgidIndex of the device's
// port (ib_init_ah_attr_from_path).
func (p *Path) AddressVector(sgidIndex int) verbs.AddressVector {
	return verbs.AddressVector{
		Global: true, DGID: p.DGID, FlowLabel: p.FlowLabel, SGIDIndex: uint8(sgidIndex), HopLimit: p.HopLimit,
		TrafficClass: p.TrafficClass, SL: p.SL, StaticRate: verbs.Rate(p.Rate), Port: 1,
	}
}

// Pack writes the path as a PathRecord of 64 bytes to b, without the reserved bits
// (ib_sa_pack_path).
func (p *Path) Pack(b []byte) {
	be := binary.BigEndian
	be.PutUint64(b[0:], p.ServiceID)
	copy(b[8:24], p.DGID[:])
	copy(b[24:40], p.SGID[:])
	be.PutUint16(b[40:], p.DLID)
	be.PutUint16(b[42:], p.SLID)
	be.PutUint32(b[44:], be.Uint32(b[44:])&(7<<28)|uint32(bit(p.RawTraffic))<<31|p.FlowLabel&0xfffff<<8|uint32(p.HopLimit))
	b[48] = p.TrafficClass
	b[49] = bit(p.Reversible)<<7 | p.NumbPath&0x7f
	be.PutUint16(b[50:], p.PKey)
	be.PutUint16(b[52:], p.QoSClass<<4|uint16(p.SL&0xf))
	b[54] = p.MTUSelector<<6 | byte(p.MTU)&0x3f
	b[55] = p.RateSelector<<6 | p.Rate&0x3f
	b[56] = p.LifetimeSelector<<6 | p.Lifetime&0x3f
	b[57] = p.Preference
}

// UnpackPath reads what Pack writes (ib_sa_unpack_path).
func UnpackPath(b []byte) *Path {
	be := binary.BigEndian
	flow, qos := be.Uint32(b[44:]), be.Uint16(b[52:])
	return &Path{
		ServiceID: be.Uint64(b), DGID: verbs.GID(b[8:24]), SGID: verbs.GID(b[24:40]), DLID: be.Uint16(b[40:]), SLID: be.Uint16(b[42:]),
		RawTraffic: flow>>31 != 0, FlowLabel: flow >> 8 & 0xfffff, HopLimit: uint8(flow), TrafficClass: b[48],
		Reversible: b[49]>>7 != 0, NumbPath: b[49] & 0x7f, PKey: be.Uint16(b[50:]), QoSClass: qos >> 4, SL: uint8(qos & 0xf),
		MTUSelector: b[54] >> 6, MTU: verbs.MTU(b[54] & 0x3f), RateSelector: b[55] >> 6, Rate: b[55] & 0x3f,
		LifetimeSelector: b[56] >> 6, Lifetime: b[56] & 0x3f, Preference: b[57],
	}
}

func bit(set bool) uint8 {
	if set {
		return 1
	}
	return 0
}
