package soft

import (
	"net"
	"net/netip"

	"github.com/goverbs/verbs/internal/host"
	"github.com/goverbs/verbs/internal/netif"
)

// Network carries the packets of devices. The default is UDP; package verbstest has one in memory,
// with faults.
type Network = netif.Network

// Port is a device's attachment to a [Network] with one address. A device has one Port for each of
// its addresses.
//
// A Port that the network can take away, as in package verbstest, has another method,
// OnRemove(func()): it calls the function, by a goroutine of its own, when that happens, or at once
// if it has happened. The device is closed then.
type Port = netif.Port

// Packet is a RoCE v2 packet as the UDP payload: from the base transport header to the invariant
// CRC, both included.
type Packet = netif.Packet

// TooLargeError is the error of a [Port]'s Send for a packet that is larger than what its link
// carries. The work request that the packet belongs to fails with it.
type TooLargeError = netif.TooLargeError

// hostAddrs returns the unicast addresses of this machine's interfaces that are up.
func hostAddrs() (all []netip.Addr, err error) {
	interfaces, err := host.Interfaces()
	seen := map[netip.Addr]bool{}
	for _, ifi := range interfaces {
		if ifi.Flags&net.FlagUp == 0 {
			continue
		}
		for _, addr := range ifi.Addrs() {
			if plain := addr.WithZone(""); !seen[plain] && !addr.IsMulticast() && !addr.IsUnspecified() {
				seen[plain] = true
				all = append(all, addr)
			}
		}
	}
	return all, err
}

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
