package roce

import (
	"encoding/binary"
	"errors"
	"net/netip"
)

// ServiceID names a service of the communication manager (IBA, 12.7.3), as a port does one of TCP.
// Those of the RDMA CM have a port in the lower 16 bits and its space (enum rdma_ucm_port_space of
// the kernel) in the next, so that TCP's and UDP's ports have their counterparts (Annex A11).
type ServiceID uint64

// CMAHeaderSize is the size of a CMAHeader: the private data that applications have in a REQ
// or SIDRREQ of the RDMA CM is that much smaller.
const CMAHeaderSize = 36

// ErrCMAHeader is returned by CMAHeader.Decode for another version, or another IP version
// than 4 and 6.
var ErrCMAHeader = errors.New("RDMA CM header is not valid")

// CMAHeader is the header that the RDMA CM puts before the private data of a REQ and a SIDRREQ
// (struct cma_hdr of the kernel; Annex A11): the IP addresses of the connection, which the REQ
// itself does not have: it has GIDs, which on InfiniBand are none.
type CMAHeader struct {
	Port     uint16 // of the source; the service ID has the destination's
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
