package udp

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"syscall"

	"github.com/goverbs/verbs/internal/host"
	"github.com/goverbs/verbs/internal/netif"
)

// DefaultPort is the UDP port of RoCEv2.
const DefaultPort = 4791

// maxIP is the largest IP packet.
const maxIP = 65535

// Network opens ports, which are UDP sockets. The zero value is ready to use.
type Network struct {
	// ReadBuffer and WriteBuffer are the sizes of the sockets' buffers in bytes, as far as the
	// system allows. Zero means 8 MiB and 4 MiB.
	ReadBuffer, WriteBuffer int
	// NoOffload disables UDP segmentation and receive offload (GSO, GRO).
	NoOffload bool
}

// Open opens a port with an address of this machine. If the address has no port, it is
// [DefaultPort].
func (n *Network) Open(addr netip.AddrPort) (netif.Port, error) {
	p, err := n.open(addr)
	if err != nil {
		return nil, err
	}
	return p, nil
}

func (n *Network) open(addr netip.AddrPort) (*Port, error) {
	port := addr.Port()
	if port == 0 {
		port = DefaultPort
	}
	addr = netip.AddrPortFrom(addr.Addr().Unmap(), port)
	ip := addr.Addr()
	if !ip.IsValid() || ip.IsUnspecified() || ip.IsMulticast() {
		return nil, fmt.Errorf("udp: %v is not the address of an interface: use one, as each packet's checksum covers it", ip)
	}
	ifi, err := interfaceOf(ip)
	if err != nil {
		return nil, err
	}
	p := &Port{addr: addr, ifi: ifi, mtu: min(ifi.MTU, maxIP), options: *n, groups: make(map[netip.Addr]*socket)}
	if p.socket, err = listen(p.config(netip.Addr{}), &p.counters); err != nil {
		return nil, openError(addr, err)
	}
	return p, nil
}

// interfaceOf returns the interface with an address, or, for an address like 127.0.0.2, the one
// whose network has it.
func interfaceOf(ip netip.Addr) (*net.Interface, error) {
	all, err := host.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("udp: interfaces: %w", err)
	}
	var within *net.Interface
	for i := range all {
		ifi := &all[i]
		if zone := ip.Zone(); zone != "" && zone != ifi.Name && zone != fmt.Sprint(ifi.Index) {
			continue
		}
		for _, p := range ifi.Prefixes {
			if p.Addr().Unmap() == ip.WithZone("") {
				return &ifi.Interface, nil
			}
			if ifi.Flags&net.FlagLoopback != 0 && p.Contains(ip.WithZone("")) {
				within = &ifi.Interface
			}
		}
	}
	if within == nil {
		return nil, fmt.Errorf("udp: no interface has the address %v%s: %w", ip, aliasHint(runtime.GOOS, ip), syscall.EADDRNOTAVAIL)
	}
	return within, nil
}

// aliasHint returns how to get a loopback address that only Linux has by itself.
func aliasHint(system string, ip netip.Addr) string {
	if system == "darwin" && ip.IsLoopback() && ip.Is4() {
		return fmt.Sprintf(" (sudo ifconfig lo0 alias %v)", ip)
	}
	return ""
}

// openError describes why a socket could not be opened, and the remedy.
func openError(addr netip.AddrPort, err error) error {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		owner := "another program"
		if addr.Port() == DefaultPort {
			owner = "another program, or the kernel's rxe driver, which owns it in its network namespace"
		}
		return fmt.Errorf("udp: port %d of %v is already in use by %s: use another address, port or network namespace: %w", addr.Port(), addr.Addr(), owner, err)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Errorf("udp: no interface has the address %v, or it is not yet usable%s: %w", addr.Addr(), aliasHint(runtime.GOOS, addr.Addr()), err)
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		return fmt.Errorf("udp: no permission to open UDP port %d of %v: use another port, or grant CAP_NET_BIND_SERVICE: %w", addr.Port(), addr.Addr(), err)
	}
	return fmt.Errorf("udp: open %v: %w", addr, err)
}
