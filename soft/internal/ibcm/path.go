package ibcm

import "github.com/goverbs/verbs"

// Path is a path to a peer (struct sa_path_rec).
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

// SelectEqual is the selector of an exact value in a path (IB_SA_EQ).
const SelectEqual = 2

// AddressVector returns the address vector of the path from GID sgidIndex of the device's
// port (ib_init_ah_attr_from_path).
func (p *Path) AddressVector(sgidIndex int) verbs.AddressVector {
	return verbs.AddressVector{
		Global: true, DGID: p.DGID, FlowLabel: p.FlowLabel, SGIDIndex: uint8(sgidIndex), HopLimit: p.HopLimit,
		TrafficClass: p.TrafficClass, SL: p.SL, StaticRate: verbs.Rate(p.Rate), Port: 1,
	}
}

// av is the address vector of an ID (struct cm_av).
type av struct {
	verbs.AddressVector
	timeout uint8 // local ACK timeout, 4.096 µs * 2^timeout
}

// pathAV returns the address vector of a path. It reports false if the path does not begin
// at an address of the device, or joins addresses of two families (cm_init_av_by_path).
func (d *Device) pathAV(p *Path) (av, bool) {
	i := d.transport.GIDIndex(p.SGID.Addr())
	if i < 0 || p.SGID.Addr().Is4() != p.DGID.Addr().Is4() {
		return av{}, false
	}
	return av{p.AddressVector(i), p.Lifetime + 1}, true
}
