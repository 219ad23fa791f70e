package cm

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"syscall"

	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/host"
	"github.com/goverbs/verbs/mmap"
)

// Addr is the address of one end of a connection, in RDMA's port space for
// reliable connections. It is a [net.Addr].
type Addr struct{ netip.AddrPort }

// Network returns "rdma".
func (Addr) Network() string { return "rdma" }

// resolve is [host.Lookup] for both families. The caller adds addr to the error.
func resolve(ctx context.Context, r *net.Resolver, addr string) ([]netip.AddrPort, error) {
	addrs, err := host.Lookup(ctx, r, "ip", addr)
	if bad, ok := errors.AsType[*net.AddrError](err); ok && bad.Addr == addr {
		err = errors.New(bad.Err)
	}
	return addrs, err
}

// checkZone refuses a link-local address without a zone: the kernel does not bind it, and
// fails to resolve it only after a timeout.
func checkZone(a netip.Addr) error {
	if a.Is6() && a.IsLinkLocalUnicast() && a.Zone() == "" {
		return fmt.Errorf("link-local address without a zone, as in %v%%eth0: %w", a, syscall.EINVAL)
	}
	return nil
}

// Linux's families and sizes of addresses, which package syscall of other systems has with other
// values.
const (
	afINET              = 2
	afINET6             = 10
	sizeofSockaddrInet4 = 16
	sizeofSockaddrInet6 = 28
)

// sockaddr returns an address in the kernel's encoding, and its length.
func sockaddr(ap netip.AddrPort) (s abi.KernelSockaddrStorage, size uint16, err error) {
	b := mmap.Bytes(&s)
	binary.BigEndian.PutUint16(b[2:], ap.Port())
	switch a := ap.Addr(); {
	case a.Is4():
		*s.SsFamily() = afINET
		ip := a.As4()
		copy(b[4:], ip[:])
		return s, sizeofSockaddrInet4, nil
	case a.Is6():
		*s.SsFamily() = afINET6
		ip := a.As16()
		copy(b[8:], ip[:])
		if a.Zone() != "" {
			scope, err := zone(a.Zone())
			if err != nil {
				return s, 0, err
			}
			binary.NativeEndian.PutUint32(b[24:], scope)
		}
		return s, sizeofSockaddrInet6, nil
	}
	return s, 0, fmt.Errorf("address %v: %w", ap, syscall.EAFNOSUPPORT)
}

func zone(name string) (uint32, error) {
	ifi, err := net.InterfaceByName(name)
	if err == nil {
		return uint32(ifi.Index), nil
	}
	if n, numErr := strconv.ParseUint(name, 10, 32); numErr == nil {
		return uint32(n), nil
	}
	return 0, fmt.Errorf("zone %q: %w", name, err)
}

func addrPort(s *abi.KernelSockaddrStorage) netip.AddrPort {
	b := mmap.Bytes(s)
	port := binary.BigEndian.Uint16(b[2:])
	switch *s.SsFamily() {
	case afINET:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), port)
	case afINET6:
		a := netip.AddrFrom16([16]byte(b[8:24]))
		if scope := binary.NativeEndian.Uint32(b[24:]); scope != 0 && a.IsLinkLocalUnicast() {
			name := strconv.Itoa(int(scope))
			if ifi, err := net.InterfaceByIndex(int(scope)); err == nil {
				name = ifi.Name
			}
			a = a.WithZone(name)
		}
		return netip.AddrPortFrom(a, port)
	}
	return netip.AddrPort{}
}
