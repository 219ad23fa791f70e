package ucma

import (
	"encoding/binary"
	"errors"
	"math/bits"
	"net"
	"net/netip"
	"slices"
	"syscall"

	"github.com/goverbs/verbs/internal/host"
	"github.com/goverbs/verbs/internal/roce"
)

// Router returns the address of this machine from which packets to dst are sent, if possible one
// of devices. It fails with an error that wraps an errno, such as ENETUNREACH. ETIMEDOUT means that
// dst is on a network of this machine, and that no host there has the address.
type Router func(dst netip.Addr, devices []netip.Addr) (netip.Addr, error)

// SystemRoute is the [Router] of the operating system's network: the local address of a UDP
// socket that is connected to dst, or else an address of a device in a network of the same
// interface, such as 127.0.0.2. The former is dst itself if it is an address of this machine, where
// another process or host may have a device with it.
func SystemRoute(dst netip.Addr, devices []netip.Addr) (netip.Addr, error) {
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(dst, roce.Port)))
	if err != nil {
		return netip.Addr{}, err
	}
	defer c.Close()
	source := c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap().WithZone("")
	if slices.Contains(devices, source) {
		return source, nil
	}
	for _, p := range networksWith(source) {
		if i := slices.IndexFunc(devices, p.Contains); i >= 0 {
			return devices[i], nil
		}
	}
	return source, nil
}

// networksWith returns the networks of the interface that has an address.
func networksWith(addr netip.Addr) []netip.Prefix {
	interfaces, _ := host.Interfaces()
	for _, ifi := range interfaces {
		if slices.ContainsFunc(ifi.Prefixes, func(p netip.Prefix) bool { return p.Addr() == addr }) {
			return ifi.Prefixes
		}
	}
	return nil
}

// nearest is the default Router: all devices are on one network. It returns the address of a
// device that has the most leading bits in common with dst.
func nearest(dst netip.Addr, devices []netip.Addr) (best netip.Addr, err error) {
	most := -1
	for _, a := range devices {
		if a.Is4() != dst.Is4() || a.IsLinkLocalUnicast() != dst.IsLinkLocalUnicast() {
			continue
		}
		if n := commonBits(a, dst); n > most {
			best, most = a, n
		}
	}
	if most < 0 {
		return netip.Addr{}, syscall.ENETUNREACH
	}
	return best, nil
}

// commonBits returns the number of leading bits that two addresses have in common.
func commonBits(a, b netip.Addr) int {
	x, y := a.As16(), b.As16()
	if high := binary.BigEndian.Uint64(x[:]) ^ binary.BigEndian.Uint64(y[:]); high != 0 {
		return bits.LeadingZeros64(high)
	}
	return 64 + bits.LeadingZeros64(binary.BigEndian.Uint64(x[8:])^binary.BigEndian.Uint64(y[8:]))
}

// errnoOf returns the errno of an error of a Router or of package ibcm, or 0 if there is none.
func errnoOf(err error) syscall.Errno {
	if err == nil {
		return 0
	}
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno
	}
	return syscall.ENETUNREACH
}
