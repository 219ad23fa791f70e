package roce

import (
	"encoding/binary"
	"net/netip"

	"github.com/goverbs/verbs"
)

// GRH is what a UD receive has before the payload: the header of InfiniBand (IBA, 11.4.1.2), or the
// IP header that RoCE has in its place, by which the program finds the sender. For IPv4 that is the
// last 20 bytes, and the first 20 bytes are not defined (Annex A17.4.5.2); rxe has zeros there.
type GRH struct {
	Src, Dst     netip.Addr // of one family
	TrafficClass uint8      // or TOS
	HopLimit     uint8      // or TTL
	Length       int        // of the packet from the BTH to the ICRC
	ID           uint16     // identification, IPv4 only
	InfiniBand   bool       // of a packet without IP and UDP
}

const (
	ipv4Size    = 20
	udpSize     = 8
	protocolUDP = 17
	protocolIBA = 0x1b // a BTH follows (C8-7 in 8.4.1; IB_GRH_NEXT_HDR)
	dfFlag      = 0x40
)

// Put writes the header to b. Its IPv4 checksum is right, because libibverbs and the kernel
// recognize IPv4 by it.
func (g *GRH) Put(b *[verbs.GRHSize]byte) {
	be := binary.BigEndian
	*b = [verbs.GRHSize]byte{}
	from, to := g.Src.Unmap(), g.Dst.Unmap()
	if !from.Is4() || !to.Is4() {
		src, dst := from.As16(), to.As16()
		be.PutUint32(b[:], 6<<28|uint32(g.TrafficClass)<<20)
		size, next := udpSize+g.Length, byte(protocolUDP)
		if g.InfiniBand {
			size, next = g.Length, protocolIBA
		}
		be.PutUint16(b[4:], uint16(size))
		b[6], b[7] = next, g.HopLimit
		copy(b[8:], src[:])
		copy(b[24:], dst[:])
		return
	}
	ip := b[verbs.GRHSize-ipv4Size:]
	src, dst := from.As4(), to.As4()
	ip[0], ip[1] = 4<<4|ipv4Size/4, g.TrafficClass
	be.PutUint16(ip[2:], uint16(ipv4Size+udpSize+g.Length))
	be.PutUint16(ip[4:], g.ID)
	ip[6] = dfFlag
	ip[8], ip[9] = g.HopLimit, protocolUDP
	copy(ip[12:], src[:])
	copy(ip[16:], dst[:])
	be.PutUint16(ip[10:], ^OnesSum(ip, 0))
}

// AppendIP appends the IP packet with the headers of IP and UDP before data, from BTH to ICRC. The
// identification is 0, and so is the checksum of UDP, as adapters and rxe send it.
func AppendIP(b []byte, src, dst netip.AddrPort, tos uint8, data []byte) []byte {
	be := binary.BigEndian
	g := GRH{Src: src.Addr(), Dst: dst.Addr(), TrafficClass: tos, HopLimit: 64, Length: len(data)}
	var header [verbs.GRHSize]byte
	g.Put(&header)
	ip := header[:]
	if g.Dst.Unmap().Is4() {
		ip = header[verbs.GRHSize-ipv4Size:]
	}
	b = append(b, ip...)
	b = be.AppendUint16(be.AppendUint16(b, src.Port()), dst.Port())
	b = be.AppendUint16(b, uint16(udpSize+len(data)))
	return append(append(b, 0, 0), data...)
}

// OnesSum returns the ones' complement sum of the 16 bit words of b and of sum: the Internet
// checksum without its complement (RFC 1071), of at most 128 KiB. Of an odd number of bytes the
// last is the upper half of a word.
func OnesSum(b []byte, sum uint32) uint16 {
	for ; len(b) >= 2; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		sum += uint32(b[0]) << 8
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}
