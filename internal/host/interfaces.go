package host

import (
	"net"
	"net/netip"
)

// Interface is a network interface of this machine with the prefixes of its addresses.
type Interface struct {
	net.Interface
	Prefixes []netip.Prefix
}

// Interfaces returns the network interfaces. One that is removed meanwhile has no prefixes.
func Interfaces() (all []Interface, err error) {
	interfaces, err := net.Interfaces()
	for _, ifi := range interfaces {
		i := Interface{Interface: ifi}
		addrs, e := ifi.Addrs()
		if TooManyFiles(e) {
			return nil, e
		}
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil { // else it is not one of IP
				i.Prefixes = append(i.Prefixes, p)
			}
		}
		all = append(all, i)
	}
	return all, err
}

// Addrs returns the interface's addresses, those of the link with its zone.
func (i *Interface) Addrs() (addrs []netip.Addr) {
	for _, p := range i.Prefixes {
		addr := p.Addr().Unmap()
		if addr.Is6() && addr.IsLinkLocalUnicast() {
			addr = addr.WithZone(i.Name)
		}
		addrs = append(addrs, addr)
	}
	return addrs
}
