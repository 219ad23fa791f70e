package ibcm

import (
	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/attr"
)

// Path is a path to a peer (struct sa_path_rec).
type Path = attr.Path

// SelectEqual is the selector of an exact value in a path (IB_SA_EQ).
const SelectEqual = 2

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
	// There and back takes twice the lifetime, which one more in the exponent is.
	return av{p.AddressVector(i), p.Lifetime + 1}, true
}
