package roce

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
)

// ServiceID names a service of the communication manager. Those of the RDMA CM have an IP
// port space and a port.
type ServiceID uint64

// PortSpace is a set of ports (enum rdma_ucm_port_space of the kernel).
type PortSpace uint16

const (
	PortSpaceIPoIB PortSpace = 0x0002
	PortSpaceTCP   PortSpace = 0x0106
	PortSpaceUDP   PortSpace = 0x0111
	PortSpaceIB    PortSpace = 0x013f
)

// PortSpace returns the port space of s. ok is false if s is not a service of the RDMA CM.
func (s ServiceID) PortSpace() (space PortSpace, ok bool) {
	switch space = PortSpace(s >> 16); space {
	case PortSpaceIPoIB, PortSpaceTCP, PortSpaceUDP, PortSpaceIB:
		return space, s>>32 == 0
	}
	return 0, false
}

// Port returns the port of s.
func (s ServiceID) Port() uint16 { return uint16(s) }

func (s ServiceID) String() string {
	space, ok := s.PortSpace()
	if !ok {
		return fmt.Sprintf("service %#016x", uint64(s))
	}
	return fmt.Sprintf("%v port %d", space, s.Port())
}

func (p PortSpace) String() string {
	switch p {
	case PortSpaceIPoIB:
		return "IPOIB"
	case PortSpaceTCP:
		return "TCP"
	case PortSpaceUDP:
		return "UDP"
	case PortSpaceIB:
		return "IB"
	}
	return fmt.Sprintf("port space %#04x", uint16(p))
}

// CMAHeaderSize is the size of a CMAHeader: the private data that applications have in a REQ
// or SIDRREQ of the RDMA CM is that much smaller.
const CMAHeaderSize = 36

// ErrCMAHeader is returned by CMAHeader.Decode for another version, or another IP version
// than 4 and 6.
var ErrCMAHeader = errors.New("RDMA CM header is not valid")

// CMAHeader is the header that the RDMA CM puts before the private data of a REQ and a
// SIDRREQ (struct cma_hdr of the kernel): the IP addresses of the connection.
type CMAHeader struct {
	Port     uint16 // of the source; the service ID has that of the destination
	Src, Dst netip.Addr
}

// Append appends the header to dst. Addresses that map IPv4 to IPv6 are IPv4. The header is
// one of IPv6 unless both addresses are IPv4.
func (h *CMAHeader) Append(dst []byte) []byte {
	from, to := h.Src.Unmap(), h.Dst.Unmap()
	version := byte(6)
	src, dest := from.As16(), to.As16()
	if from.Is4() && to.Is4() {
		version = 4
		clear(src[:12])
		clear(dest[:12])
	}
	dst = append(dst, 0, version<<4)
	dst = binary.BigEndian.AppendUint16(dst, h.Port)
	dst = append(dst, src[:]...)
	return append(dst, dest[:]...)
}

// Decode decodes the header at the start of private data.
func (h *CMAHeader) Decode(b []byte) error {
	if len(b) < CMAHeaderSize || b[0] != 0 {
		return ErrCMAHeader
	}
	h.Port = binary.BigEndian.Uint16(b[2:])
	switch b[1] >> 4 {
	case 4:
		h.Src, h.Dst = netip.AddrFrom4([4]byte(b[16:])), netip.AddrFrom4([4]byte(b[32:]))
	case 6:
		h.Src, h.Dst = netip.AddrFrom16([16]byte(b[4:])), netip.AddrFrom16([16]byte(b[20:]))
	default:
		return ErrCMAHeader
	}
	return nil
}
