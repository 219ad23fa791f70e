package roce

import (
	"encoding/binary"
	"errors"
	"math/bits"
	"net/netip"
)

// ErrFamily is returned by [NewFlow] if one address is IPv4 and the other one is not.
var ErrFamily = errors.New("addresses are not of one family")

// A Flow has what the ICRC of all packets from one UDP endpoint to another one covers of their IP
// and UDP headers (Annex A17.3.3, and 7.8.1 of the specification). It protects them end to end,
// beyond the checksums of links: a packet for another host or port does not pass. Flows are small
// values: keep one per QP, or make one per packet.
//
// Routers may change some fields, so the ICRC covers neither the IP header's TOS or traffic class,
// flow label, TTL or hop limit and checksum, nor the UDP checksum, nor FECN, BECN and the reserved
// bits next to them: all of them count as ones.
type Flow struct {
	crc  uint32 // the register after the headers, with lengths and identification 0
	kind flowKind
}

type flowKind uint8

const (
	flowIPv6 flowKind = iota
	flowIPv4          // don't fragment
)

// The register before the IP header: after the local route header of InfiniBand, for which
// RoCEv2 has 8 bytes of ones (CA17-22), so that adapters need one circuit for both.
const startRegister = 0xdebb20e3

// dontFragment is the flag in the IPv4 header, in the order of a little endian word from the
// identification on.
const dontFragment = 0x40 << 16

// NewFlow returns the flow from src to dst. Addresses that map IPv4 to IPv6 are IPv4. IPv4 packets
// have the flag "don't fragment" (CA17-7), as rxe's, and no options (CA17-3).
func NewFlow(src, dst netip.AddrPort) (Flow, error) {
	tablesOnce.Do(makeTables)
	s, d := src.Addr().Unmap(), dst.Addr().Unmap()
	sp, dp := bits.ReverseBytes16(src.Port()), bits.ReverseBytes16(dst.Port())
	ports := uint32(dp)<<16 | uint32(sp)
	c := uint32(startRegister)
	switch {
	case s.Is4() && d.Is4():
		s, d := s.As4(), d.As4()
		c = update8(c, 0x0000ff45, dontFragment) // version, TOS, length; identification, flags
		c = update8(c, 0xffff11ff, le32(s[:]))   // TTL, protocol, checksum; source
		c = update8(c, le32(d[:]), ports)        // destination; UDP ports
		return Flow{update4(c, 0xffff0000), flowIPv4}, nil
	case s.Is6() && d.Is6():
		s, d := s.As16(), d.As16()
		c = update8(c, 0xffffff6f, 0xff110000) // version, class, flow label; length, next header, hop limit
		c = update8(c, le32(s[:]), le32(s[4:]))
		c = update8(c, le32(s[8:]), le32(s[12:]))
		c = update8(c, le32(d[:]), le32(d[4:]))
		c = update8(c, le32(d[8:]), le32(d[12:]))
		return Flow{update8(c, ports, 0xffff0000), flowIPv6}, nil
	}
	return Flow{}, ErrFamily
}

// IPv4 reports whether the flow is of IPv4 packets, so that their ICRC covers an
// identification.
func (f Flow) IPv4() bool { return f.kind != flowIPv6 }

// AppendICRC appends the ICRC to packet, which ends with the padding. id is the
// identification in the IPv4 header; it is ignored for IPv6.
func (f Flow) AppendICRC(packet []byte, id uint16) []byte {
	packet = append(packet, 0, 0, 0, 0)
	f.PutICRC(packet, id)
	return packet
}

// PutICRC writes the ICRC to the last 4 bytes of packet, see [Flow.AppendICRC].
func (f Flow) PutICRC(packet []byte, id uint16) {
	c := f.register(packet, id)
	if Opcode(packet[0]) == RCFlush {
		c = again(c, packet)
	}
	binary.LittleEndian.PutUint32(packet[len(packet)-ICRCSize:], ^c)
}

// Renumber returns the ICRC, as a little endian number, that an IPv4 packet with the ICRC for
// the identification 0 has with another one. It reads only the ICRC and the opcode, and needs
// a length that is a multiple of 4.
func Renumber(packet []byte, id uint16) uint32 {
	tablesOnce.Do(makeTables)
	return le32(packet[len(packet)-ICRCSize:]) ^ shifted(uint32(bits.ReverseBytes16(id)), &shift, distance(packet))
}

// Verify reports whether the ICRC of packet is right.
func (f Flow) Verify(packet []byte, id uint16) bool {
	if len(packet) < BTHSize+ICRCSize {
		return false
	}
	c, got := f.register(packet, id), received(packet)
	return c == got || Opcode(packet[0]) == RCFlush && again(c, packet) == got
}

// VerifyUnknownID reports whether the ICRC of packet is right for any IPv4 identification,
// with or without the flag "don't fragment", and returns the identification. Receivers with a
// UDP socket know neither. 1 of 32768 packets with errors passes. Packets whose length is not
// a multiple of 4 do not. For IPv6, VerifyUnknownID is Verify.
func (f Flow) VerifyUnknownID(packet []byte) (id uint16, ok bool) {
	if f.kind == flowIPv6 {
		return 0, f.Verify(packet, 0)
	}
	if len(packet) < BTHSize+ICRCSize || len(packet)%4 != 0 {
		return 0, false
	}
	c, got, n := f.register(packet, 0), received(packet), distance(packet)
	if Opcode(packet[0]) != RCFlush {
		return solve(c^got, n)
	}
	if id, ok := solve(again(c, packet)^got, n); ok {
		return id, ok
	}
	return solve(c^got, n-(len(packet)-ICRCSize)/4)
}

// solve reports whether an identification and a flag exist that make the difference d in the
// register when n words of 4 bytes follow, theirs included, and returns the identification.
// The CRC of n words has an inverse: d has exactly one cause in the word with both, and the
// packet has an error if that is not in their bits alone. This takes the same time for all n.
func solve(d uint32, n int) (id uint16, ok bool) {
	if d == 0 {
		return 0, true
	}
	w := shifted(d, &unshift, n)
	if w&^(0xffff|dontFragment) != 0 {
		return 0, false
	}
	return bits.ReverseBytes16(uint16(w)), true
}

// distance returns the number of words from the word with the IPv4 identification, included,
// to the ICRC: what the ICRC covers after the first 4 bytes.
func distance(packet []byte) int {
	n := len(packet) - ICRCSize
	words := (ipv4Size - 4 + udpSize + n) / 4
	if Opcode(packet[0]) == RCFlush {
		words += n / 4
	}
	return words
}

// register returns the register after packet.
func (f Flow) register(packet []byte, id uint16) uint32 {
	n := uint16(len(packet))
	c := f.crc ^ udpLength.crc(udpSize+n)
	if f.kind == flowIPv6 {
		c ^= ipv6Length.crc(udpSize + n)
	} else {
		c ^= ipv4Length.crc(ipv4Size+udpSize+n) ^ ipv4ID.crc(id)
	}
	c = update8(c, le32(packet), le32(packet[4:])|0xff) // FECN, BECN and reserved bits are ones
	c = update4(c, le32(packet[8:]))
	return body(c, packet[BTHSize:len(packet)-ICRCSize])
}

// again returns the register after another pass over packet, without the mask: rxe does this
// for FLUSH, because its table of opcodes has no offset of the payload (rxe_icrc_generate).
// FLUSH packets are sent like that, and are accepted with this ICRC and with the right one.
func again(c uint32, packet []byte) uint32 { return body(c, packet[:len(packet)-ICRCSize]) }

// received returns the register that the ICRC of packet stands for.
func received(packet []byte) uint32 { return ^le32(packet[len(packet)-ICRCSize:]) }
