package cm

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/host"
	"github.com/goverbs/verbs/uverbs"
)

// DeviceAddrs returns the addresses of this machine that lead to a device, to listen on. It fails
// if there are none. They come from the connection manager, as GIDs contain them on RoCE only.
func DeviceAddrs(d uverbs.Device) ([]netip.Addr, error) {
	const op = "find addresses of"
	if v := host.DeviceAt(d.Node); v != nil {
		return slices.Clone(v.Addrs), nil
	}
	index, err := d.Index()
	if err != nil {
		return nil, fail(op, d.Name, err)
	}
	local, err := localAddrs()
	if err != nil {
		return nil, fail(op, d.Name, err)
	}
	var found []netip.Addr
	for _, addr := range local {
		r, err := defaultTransport.routeFrom(addr)
		if err != nil {
			return nil, fail(op, d.Name, err)
		}
		if r.Device != (verbs.GUID{}) && r.Index == index {
			found = append(found, addr)
		}
	}
	if found == nil {
		return nil, fail(op, d.Name, fmt.Errorf("no address of this machine leads to it: %w", syscall.EADDRNOTAVAIL))
	}
	return found, nil
}

// localAddrs returns the addresses of this machine's network interfaces, those of links with zones.
func localAddrs() (addrs []netip.Addr, err error) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	for _, ifi := range interfaces {
		local, err := ifi.Addrs()
		if err != nil {
			return nil, err
		}
		for _, a := range local {
			p, err := netip.ParsePrefix(a.String())
			if err != nil {
				return nil, err
			}
			addr := p.Addr()
			if addr.IsLinkLocalUnicast() && addr.Is6() {
				addr = addr.WithZone(ifi.Name)
			}
			addrs = append(addrs, addr)
		}
	}
	return addrs, nil
}

// routeFrom returns the route of an ID that is bound to an address: a zero Device if no device has it.
func (t *Transport) routeFrom(addr netip.Addr) (Route, error) {
	id, err := t.newID(PortSpaceTCP, nil)
	if err != nil {
		return Route{}, err
	}
	defer id.Close()
	if id.bind(netip.AddrPortFrom(addr, 0)) != nil {
		return Route{}, nil
	}
	return id.route()
}
