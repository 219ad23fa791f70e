package rsock

import (
	"encoding/binary"
	"net/netip"
)

// The wire format of datagrams (struct ds_header and ds_udp_header in librdmacm's rsocket.c).
// Numbers are big-endian. A UD message tells its sender's QP, not the address and port that
// programs know, so its header has these; a UDP datagram tells its address, so its header has the
// QP.
const (
	udpTag  = 0x55555555
	udpData = 0 // a datagram, from a sender that does not know the QP of its peer
	udpCtrl = 7 // no data, only the sender's QP

	packetQKey = 0x01234567 // RDMA_UDP_QKEY in rdma/rdma_cma.h
	maxMessage = 2048       // bytes of a message, with its header, on either way
)

// appendHeader appends the header of UD messages, which names their sender:
//
//	 0          1       2     4           8
//	┌──────────┬───────┬─────┬───────────┐
//	│version 4 │length │port │IPv4       │
//	├──────────┼───────┼─────┼───────────┼──────┐ 24
//	│version 6 │length │port │flowinfo   │IPv6  │
//	└──────────┴───────┴─────┴───────────┴──────┘
func appendHeader(b []byte, from netip.AddrPort) []byte {
	if a := from.Addr(); a.Is4() {
		b = append(b, 4, 8)
		b = binary.BigEndian.AppendUint16(b, from.Port())
		return append(b, a.AsSlice()...)
	}
	b = append(b, 6, 24)
	b = binary.BigEndian.AppendUint16(b, from.Port())
	b = append(b, 0, 0, 0, 0)
	return append(b, from.Addr().AsSlice()...)
}

// parseHeader returns the sender that a message names, and the data that follows.
func parseHeader(b []byte) (from netip.AddrPort, data []byte, ok bool) {
	switch {
	case len(b) >= 8 && b[0] == 4 && b[1] == 8:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:])), binary.BigEndian.Uint16(b[2:])), b[8:], true
	case len(b) >= 24 && b[0] == 6 && b[1] == 24:
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[8:])), binary.BigEndian.Uint16(b[2:])), b[24:], true
	}
	return from, nil, false
}

// udpHeaderSize is the size of the header with an IPv6 address, the longer one.
const udpHeaderSize = 28

// appendUDPHeader appends the header of UDP datagrams:
//
//	 0    4        5   6       7  8            12
//	┌────┬────────┬───┬───────┬──┬────────────┬──────────────┐ 16 or 28
//	│tag │version │op │length │  │QP (24 bits)│IPv4 or IPv6  │
//	└────┴────────┴───┴───────┴──┴────────────┴──────────────┘
func appendUDPHeader(b []byte, from netip.Addr, op byte, qpn uint32) []byte {
	b = binary.BigEndian.AppendUint32(b, udpTag)
	if from.Is4() {
		b = append(b, 4, op, 16, 0)
	} else {
		b = append(b, 6, op, udpHeaderSize, 0)
	}
	b = binary.BigEndian.AppendUint32(b, qpn)
	return append(b, from.AsSlice()...)
}

// parseUDPHeader returns the contents of a UDP datagram from an address.
func parseUDPHeader(b []byte, from netip.Addr) (op byte, qpn uint32, data []byte, ok bool) {
	size, version := 16, byte(4)
	if from.Is6() {
		size, version = udpHeaderSize, 6
	}
	if len(b) < size || binary.BigEndian.Uint32(b) != udpTag || b[4] != version || int(b[6]) != size {
		return 0, 0, nil, false
	}
	return b[5], binary.BigEndian.Uint32(b[8:]) & 0xffffff, b[size:], true
}
