package roce

import (
	"encoding/binary"
	"net/netip"
)

// GRHSize is the size of the area before the payload of a received datagram.
const GRHSize = 40

// GRH is the IP header that a UD receive has before the payload. For IPv4 the header is the
// last 20 bytes, and the first 20 bytes are not defined; rxe has zeros there.
type GRH struct {
	Src, Dst     netip.Addr // of one family
	TrafficClass uint8      // or TOS
	HopLimit     uint8      // or TTL
	Length       int        // of the packet from the BTH to the ICRC

	ID           uint16 // identification, IPv4 only
	Fragmentable bool   // no flag "don't fragment", IPv4 only
	FlowLabel    uint32 // 20 bits, IPv6 only
}

const (
	ipv4Size    = 20
	udpSize     = 8
	protocolUDP = 17
	dfFlag      = 0x40
)

// Put writes the header to b. Its IPv4 checksum is right, because libibverbs and the kernel
// recognize IPv4 by it.
func (g *GRH) Put(b *[GRHSize]byte) {
	be := binary.BigEndian
	*b = [GRHSize]byte{}
	from, to := g.Src.Unmap(), g.Dst.Unmap()
	if !from.Is4() || !to.Is4() {
		src, dst := from.As16(), to.As16()
		be.PutUint32(b[:], 6<<28|uint32(g.TrafficClass)<<20|g.FlowLabel&(1<<20-1))
		be.PutUint16(b[4:], uint16(udpSize+g.Length))
		b[6], b[7] = protocolUDP, g.HopLimit
		copy(b[8:], src[:])
		copy(b[24:], dst[:])
		return
	}
	ip := b[GRHSize-ipv4Size:]
	src, dst := from.As4(), to.As4()
	ip[0], ip[1] = 4<<4|ipv4Size/4, g.TrafficClass
	be.PutUint16(ip[2:], uint16(ipv4Size+udpSize+g.Length))
	be.PutUint16(ip[4:], g.ID)
	if !g.Fragmentable {
		ip[6] = dfFlag
	}
	ip[8], ip[9] = g.HopLimit, protocolUDP
	copy(ip[12:], src[:])
	copy(ip[16:], dst[:])
	be.PutUint16(ip[10:], ^onesSum(ip))
}

// Decode decodes b, as the kernel's ib_get_rdma_header_version distinguishes IPv4 and IPv6. It
// reports whether b is a header of either.
func (g *GRH) Decode(b *[GRHSize]byte) bool {
	be := binary.BigEndian
	ip := b[GRHSize-ipv4Size:]
	v4, v6 := ip[0]>>4 == 4, b[0]>>4 == 6
	switch {
	case v4 && (!v6 || ip[0]&15 == 5 && onesSum(ip) == 0xffff):
		*g = GRH{
			Src:          netip.AddrFrom4([4]byte(ip[12:])),
			Dst:          netip.AddrFrom4([4]byte(ip[16:])),
			TrafficClass: ip[1],
			HopLimit:     ip[8],
			Length:       int(be.Uint16(ip[2:])) - ipv4Size - udpSize,
			ID:           be.Uint16(ip[4:]),
			Fragmentable: ip[6]&dfFlag == 0,
		}
	case v6:
		word := be.Uint32(b[:])
		*g = GRH{
			Src:          netip.AddrFrom16([16]byte(b[8:])),
			Dst:          netip.AddrFrom16([16]byte(b[24:])),
			TrafficClass: uint8(word >> 20),
			HopLimit:     b[7],
			Length:       int(be.Uint16(b[4:])) - udpSize,
			FlowLabel:    word & (1<<20 - 1),
		}
	default:
		return false
	}
	return true
}

// onesSum returns the ones' complement sum of the 16 bit words of b.
func onesSum(b []byte) uint16 {
	var sum uint32
	for ; len(b) >= 2; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}
