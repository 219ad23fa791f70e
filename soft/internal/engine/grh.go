package engine

import (
	"encoding/binary"

	"github.com/goverbs/verbs"
)

const (
	ipv4Header = 20
	udpHeader  = 8
	udpProto   = 17
	hopLimit   = 64 // of received packets, which networks do not report
)

// header writes what precedes the payload in the memory of a UD receive: the IPv6 header, or
// zeros and the IPv4 header. Fields that the network does not report have usual values.
func (p *packet) header(b *[verbs.GRHSize]byte) {
	be := binary.BigEndian
	length := udpHeader + p.Len()
	if p.dst.Is4() {
		h := b[verbs.GRHSize-ipv4Header:]
		h[0], h[1] = 0x45, p.tos
		be.PutUint16(h[2:], uint16(ipv4Header+length))
		be.PutUint16(h[4:], p.id)
		h[6] = 0x40 // don't fragment
		h[8], h[9] = hopLimit, udpProto
		src, dst := p.src.As4(), p.dst.As4()
		copy(h[12:], src[:])
		copy(h[16:], dst[:])
		be.PutUint16(h[10:], checksum(h))
		return
	}
	be.PutUint32(b[:], 6<<28|uint32(p.tos)<<20)
	be.PutUint16(b[4:], uint16(length))
	b[6], b[7] = udpProto, hopLimit
	src, dst := p.src.As16(), p.dst.As16()
	copy(b[8:], src[:])
	copy(b[24:], dst[:])
}

// checksum returns the checksum of an IPv4 header whose own is zero.
func checksum(h []byte) uint16 {
	var sum uint32
	for i := 0; i < len(h); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(h[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
