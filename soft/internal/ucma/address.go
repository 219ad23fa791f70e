package ucma

import (
	"encoding/binary"
	"net/netip"
	"strconv"

	"github.com/goverbs/verbs"
)

// Address families, as on Linux.
const (
	afInet  = 2
	afInet6 = 10
	afIB    = 27 // only in answers to QUERY_GID
)

// Sizes of struct sockaddr_in, sockaddr_in6 and sockaddr_ib.
const (
	sizeofInet  = 16
	sizeofInet6 = 28
	sizeofIB    = 48
)

// sockaddr is an address and port (struct sockaddr). The zero sockaddr has no family.
type sockaddr struct {
	family uint16
	addr   netip.Addr // without a zone; invalid means zero
	port   uint16
	flow   uint32 // IPv6 flow information
	scope  uint32 // of IPv6
}

// addrSize returns the size of an address in memory, or 0 if its family is unknown
// (rdma_addr_size).
func addrSize(family uint16) int {
	switch family {
	case afInet:
		return sizeofInet
	case afInet6:
		return sizeofInet6
	}
	return 0
}

func (a *sockaddr) size() int { return addrSize(a.family) }

func wildcard(family uint16) sockaddr {
	a := sockaddr{family: family, addr: netip.IPv6Unspecified()}
	if family == afInet {
		a.addr = netip.IPv4Unspecified()
	}
	return a
}

// decodeAddr decodes the address in b. It reports false if the family is unknown or b is too
// short for it.
func decodeAddr(b []byte) (a sockaddr, ok bool) {
	a.family = binary.NativeEndian.Uint16(b)
	if n := addrSize(a.family); n == 0 || n > len(b) {
		return sockaddr{}, false
	}
	a.port = binary.BigEndian.Uint16(b[2:])
	if a.family == afInet {
		a.addr = netip.AddrFrom4([4]byte(b[4:]))
		return a, true
	}
	a.flow, a.addr = binary.BigEndian.Uint32(b[4:]), netip.AddrFrom16([16]byte(b[8:]))
	a.scope = binary.NativeEndian.Uint32(b[24:])
	return a, true
}

// encode writes the address to b, whose bytes are zero. It writes nothing if there is no
// family.
func (a *sockaddr) encode(b []byte) {
	if a.family == 0 {
		return
	}
	binary.NativeEndian.PutUint16(b, a.family)
	binary.BigEndian.PutUint16(b[2:], a.port)
	at := 4
	if a.family == afInet6 {
		binary.BigEndian.PutUint32(b[4:], a.flow)
		binary.NativeEndian.PutUint32(b[24:], a.scope)
		at = 8
	}
	if a.addr.IsValid() {
		copy(b[at:], a.addr.AsSlice())
	}
}

// gid returns the GID of the address (rdma_ip2gid).
func (a *sockaddr) gid() (g verbs.GID) {
	if a.addr.IsValid() {
		g = a.addr.As16()
	}
	return g
}

// zoned returns the address, with the number of its interface as the zone if it is link-local.
func (a *sockaddr) zoned() netip.Addr {
	if a.family == afInet6 && a.addr.IsLinkLocalUnicast() && a.scope != 0 {
		return a.addr.WithZone(strconv.FormatUint(uint64(a.scope), 10))
	}
	return a.addr
}

// isZero reports whether the address is a wildcard (cma_zero_addr).
func (a *sockaddr) isZero() bool {
	switch {
	case !a.addr.IsValid():
		return true
	case a.family == afInet:
		return a.addr.As4()[0] == 0
	}
	return a.addr.IsUnspecified()
}

// equalAddr compares addresses without ports (cma_addr_cmp).
func (a *sockaddr) equalAddr(b *sockaddr) bool {
	return a.family == b.family && a.addr == b.addr &&
		(a.family != afInet6 || !a.addr.IsLinkLocalUnicast() || a.scope == b.scope)
}
