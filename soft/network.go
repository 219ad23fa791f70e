package soft

import (
	"net"
	"net/netip"

	"github.com/goverbs/verbs/internal/netif"
)

// Network carries the packets of devices. The default is UDP; package verbstest has one in memory,
// with faults.
type Network = netif.Network

// Port is a device's attachment to a [Network] with one address. A device has one Port for each of
// its addresses.
//
// A Port that the network can take away, as those of package verbstest, has another method,
// OnRemove(func()): it calls the function, by a goroutine of its own, when that happens, or at once
// if it has happened. The device is closed then.
type Port = netif.Port

// Packet is a RoCE v2 packet as the UDP payload: from the base transport header to the invariant
// CRC, both included.
type Packet = netif.Packet

// TooLargeError is the error of a [Port]'s Send for a packet that is larger than what its link carries.
// The work request that the packet belongs to fails with it.
type TooLargeError = netif.TooLargeError

// hostAddrs returns the unicast addresses of this machine's interfaces that are up.
func hostAddrs() ([]netip.Addr, error) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	var all []netip.Addr
	seen := map[netip.Addr]bool{}
	for _, ifi := range interfaces {
		if ifi.Flags&net.FlagUp == 0 {
			continue
		}
		addrs, err := ifi.Addrs()
		if err != nil {
			return nil, err
		}
		for _, a := range addrs {
			p, err := netip.ParsePrefix(a.String())
			if err != nil {
				continue // not an IP address
			}
			addr := p.Addr().Unmap()
			if seen[addr] || addr.IsMulticast() || addr.IsUnspecified() {
				continue
			}
			seen[addr] = true
			if addr.Is6() && addr.IsLinkLocalUnicast() {
				addr = addr.WithZone(ifi.Name)
			}
			all = append(all, addr)
		}
	}
	return all, nil
}

// removable is a port that the network can take away.
type removable interface{ OnRemove(func()) }

// watchedNetwork is a network that adds its ports to a device's list of those that can be removed.
type watchedNetwork struct {
	Network
	device *Device
}

// Open implements [Network].
func (n *watchedNetwork) Open(addr netip.AddrPort) (Port, error) {
	p, err := n.Network.Open(addr)
	if r, ok := p.(removable); ok {
		n.device.removable = append(n.device.removable, r)
	}
	return p, err
}

// openedNetwork is a network with ports that have been opened already.
type openedNetwork struct {
	Network
	ports map[netip.AddrPort]Port
}

// Open implements [Network].
func (n *openedNetwork) Open(addr netip.AddrPort) (Port, error) {
	if p := n.ports[addr]; p != nil {
		delete(n.ports, addr)
		return p, nil
	}
	return n.Network.Open(addr)
}

// close closes the ports that have not been used.
func (n *openedNetwork) close() {
	for _, p := range n.ports {
		p.Close()
	}
}
