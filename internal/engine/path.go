package engine

import (
	"net/netip"
	"syscall"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/host"
	"github.com/goverbs/verbs/internal/roce"
)

// path is where packets of a QP or an AH go.
type path struct {
	av     verbs.AddressVector
	port   *port
	src    netip.AddrPort
	dst    netip.AddrPort
	remote netip.Addr // dst without zone
	flow   roce.Flow
	local  bool // to the device itself
}

// newPath resolves an address vector, with the checks of the kernel's rdma_fill_sgid_attr
// and address resolution.
func (d *Device) newPath(av verbs.AddressVector) (*path, error) {
	if av.Port != 1 || !av.Global {
		return nil, syscall.EINVAL
	}
	p := d.gids.at(int(av.SGIDIndex))
	if p == nil {
		return nil, host.ENODATA
	}
	return d.pathTo(p, verbs.GID(av.DGID).Addr(), av)
}

// pathTo returns the path from a port to an address. Both are of one family: GIDs of IPv4 addresses
// are written as IPv6 ones (Annex A17.4.1.1), but travel in IPv4 packets.
func (d *Device) pathTo(p *port, dst netip.Addr, av verbs.AddressVector) (*path, error) {
	if dst.Is4() != p.addr.Is4() || dst.IsUnspecified() {
		return nil, syscall.EINVAL
	}
	q := &path{av: av, port: p, src: p.local, remote: dst, local: d.gids.of(dst) != nil}
	if dst.IsLinkLocalUnicast() || dst.IsLinkLocalMulticast() {
		dst = dst.WithZone(p.local.Addr().Zone()) // no effect on IPv4
	}
	q.dst = netip.AddrPortFrom(dst, d.cfg.Port)
	flow, err := roce.NewFlow(q.src, q.dst)
	if err != nil {
		return nil, syscall.EINVAL
	}
	q.flow = flow
	return q, nil
}

// AH is an address handle.
type AH struct {
	dev  *Device
	pd   *PD
	num  uint32
	path *path
}

// CreateAH makes an address handle.
func (pd *PD) CreateAH(av verbs.AddressVector) (*AH, error) {
	p, err := pd.dev.newPath(av)
	if err != nil {
		return nil, err
	}
	ah := &AH{dev: pd.dev, pd: pd, path: p}
	return hold(pd, ah, func() bool { return pd.dev.ahs.add(ah, &ah.num, 1, maxAH) })
}

// Num returns the number that work requests name the handle by (rxe's ah_num).
func (ah *AH) Num() uint32 { return ah.num }

// Destroy ends the handle.
func (ah *AH) Destroy() error {
	if !ah.dev.ahs.remove(ah.num) {
		return syscall.EINVAL
	}
	ah.pd.use.put()
	return nil
}
