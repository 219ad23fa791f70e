//go:build linux

package wire

import (
	"encoding/binary"
	"hash/fnv"
	"net/netip"

	"github.com/goverbs/verbs/internal/netif"
	"github.com/goverbs/verbs/internal/roce"
)

var be = binary.BigEndian

const (
	MinFrame  = 60 // shorter frames are padded on the wire
	EtherSize = 14
	typeIPv4  = 0x0800
	typeIPv6  = 0x86dd
	TypeVLAN  = 0x8100
	VLANSize  = 4
	typeARP   = 0x0806
)

const (
	protoUDP    = 17
	arpSize     = 28
	arpRequest  = 1
	arpResponse = 2
)

type mac = [6]byte

// headers describes the IP and TCP or UDP headers of a frame.
type headers struct {
	l3, L4, End    int // offsets of the IP header, of its payload, and of the packet's end
	Proto          byte
	VLAN           bool
	L3Type, L4Type byte // CQE_L3_HDR_TYPE_* and CQE_L4_HDR_TYPE_*
	L3OK, L4OK     byte
	pseudo         uint32
}

// Network returns the offset and the type of the header behind Ethernet's. f has at least EtherSize
// bytes.
func Network(f []byte) (at int, typ uint16) {
	at, typ = EtherSize, be.Uint16(f[12:])
	if typ == TypeVLAN && len(f) >= EtherSize+VLANSize {
		at, typ = EtherSize+VLANSize, be.Uint16(f[16:])
	}
	return at, typ
}

// Parse finds the headers. L3Type is 0 if the frame has no valid IP header, Proto if it has a fragment.
func Parse(f []byte) (h headers) {
	at, typ := Network(f)
	h.VLAN = at > EtherSize
	ip := f[at:]
	switch {
	case typ == typeIPv4 && len(ip) >= 20 && ip[0]>>4 == 4:
		size, total := int(ip[0]&15)*4, int(be.Uint16(ip[2:]))
		if size < 20 || total < size || total > len(ip) {
			return h
		}
		h.l3, h.L4, h.End, h.L3Type = at, at+size, at+total, 2
		if be.Uint16(ip[6:])&0x3fff == 0 { // no fragment
			h.Proto = ip[9]
		}
		h.pseudo = uint32(roce.OnesSum(ip[12:20], 0))
	case typ == typeIPv6 && len(ip) >= 40 && ip[0]>>4 == 6:
		total := 40 + int(be.Uint16(ip[4:]))
		if total > len(ip) {
			return h
		}
		h.l3, h.L4, h.End, h.L3Type, h.Proto = at, at+40, at+total, 1, ip[6]
		h.pseudo = uint32(roce.OnesSum(ip[8:40], 0))
	default:
		return h
	}
	h.pseudo += uint32(h.Proto) + uint32(h.End-h.L4)
	return h
}

// ChecksumAt returns the offset of the checksum in a TCP or UDP header, or 0 without such a header.
func (h *headers) ChecksumAt() int {
	least, at := 0, 0
	switch h.Proto {
	case 6:
		least, at = 20, 16
	case 17:
		least, at = 8, 6
	}
	if at == 0 || h.End-h.L4 < least {
		return 0
	}
	return h.L4 + at
}

// Addrs returns the addresses of an IP packet.
func (h *headers) Addrs(f []byte) (src, dst netip.Addr) {
	if h.L3Type == 2 {
		return netip.AddrFrom4([4]byte(f[h.l3+12:])), netip.AddrFrom4([4]byte(f[h.l3+16:]))
	}
	return netip.AddrFrom16([16]byte(f[h.l3+8:])), netip.AddrFrom16([16]byte(f[h.l3+24:]))
}

// Inspect is Parse with checks of the checksums, for received frames.
func Inspect(f []byte) headers {
	h := Parse(f)
	if h.L3Type == 1 || h.L3Type == 2 && roce.OnesSum(f[h.l3:h.L4], 0) == 0xffff {
		h.L3OK = 1
	}
	if at := h.ChecksumAt(); at > 0 {
		h.L4Type = 2
		if h.Proto == 6 {
			h.L4Type = 1
			if f[h.L4+13]&0x10 != 0 { // ACK, without or with data
				h.L4Type = 3
				if h.End > h.L4+int(f[h.L4+12]>>4)*4 {
					h.L4Type = 4
				}
			}
		}
		none := h.Proto == 17 && h.L3Type == 2 && be.Uint16(f[at:]) == 0
		if none || roce.OnesSum(f[h.L4:h.End], h.pseudo) == 0xffff {
			h.L4OK = 1
		}
	}
	return h
}

// FillChecksums writes the checksums of the IP header (l3) and of TCP or UDP (l4).
func FillChecksums(f []byte, l3, l4 bool) {
	if !l3 && !l4 {
		return
	}
	h := Parse(f)
	if l3 && h.L3Type == 2 {
		be.PutUint16(f[h.l3+10:], 0)
		be.PutUint16(f[h.l3+10:], ^roce.OnesSum(f[h.l3:h.L4], 0))
	}
	if at := h.ChecksumAt(); l4 && at > 0 {
		be.PutUint16(f[at:], 0)
		s := ^roce.OnesSum(f[h.L4:h.End], h.pseudo)
		if s == 0 && h.Proto == 17 { // zero means no checksum (RFC 768)
			s = 0xffff
		}
		be.PutUint16(f[at:], s)
	}
}

// FlowHash returns a hash of the addresses and ports of a frame.
func FlowHash(f []byte) uint32 {
	h := Parse(f)
	if h.L3Type == 0 {
		return 0
	}
	sum := fnv.New32a()
	if h.L3Type == 2 {
		sum.Write(f[h.l3+12 : h.l3+20])
	} else {
		sum.Write(f[h.l3+8 : h.l3+40])
	}
	if h.ChecksumAt() > 0 {
		sum.Write(f[h.L4 : h.L4+4])
	}
	return sum.Sum32()
}

// packetFrame returns the frame of a RoCE packet. The engine computes the ICRC for an IP header with
// "don't fragment" and the identification 0.
func packetFrame(k netif.Packet, src, dst mac) []byte {
	typ := uint16(typeIPv6)
	if k.Dst.Addr().Unmap().Is4() {
		typ = typeIPv4
	}
	f := append(append(make([]byte, 0, EtherSize+48+len(k.Data)), dst[:]...), src[:]...)
	f = roce.AppendIP(be.AppendUint16(f, typ), k.Src, k.Dst, k.TOS, k.Data)
	FillChecksums(f, false, true)
	return append(f, make([]byte, max(MinFrame-len(f), 0))...)
}

// framePacket returns the RoCE packet in a frame. They share memory.
func framePacket(f []byte) (k netif.Packet, ok bool) {
	h := Parse(f)
	if h.Proto != protoUDP || h.ChecksumAt() == 0 {
		return k, false
	}
	ip, datagram := f[h.l3:h.L4], f[h.L4:h.End]
	size := int(be.Uint16(datagram[4:]))
	if be.Uint16(datagram[2:]) != roce.Port || size < 8 || size > len(datagram) {
		return k, false
	}
	src, dst := h.Addrs(f)
	k.Src, k.Dst = netip.AddrPortFrom(src, be.Uint16(datagram)), netip.AddrPortFrom(dst, roce.Port)
	k.Data, k.IDKnown = datagram[8:size], true
	if h.L3Type == 2 {
		k.TOS, k.ID = ip[1], be.Uint16(ip[4:])
	} else {
		k.TOS = ip[0]<<4 | ip[1]>>4
	}
	return k, true
}

// groupMAC returns the MAC address of a multicast group (RFC 1112, 6.4, and RFC 2464, 7).
func groupMAC(group netip.Addr) mac {
	a := group.As16()
	if group.Is4() {
		return mac{0x01, 0x00, 0x5e, a[13] & 0x7f, a[14], a[15]}
	}
	return mac{0x33, 0x33, a[12], a[13], a[14], a[15]}
}

// source returns the IP address of the sender of a frame, if the frame tells it, and the target of an
// ARP request. A host that probes an address or announces its own (RFC 5227) makes no request.
func source(f []byte) (from, target netip.Addr, request bool) {
	if arp := f[EtherSize:]; be.Uint16(f[12:]) == typeARP && len(arp) >= arpSize {
		from, target = netip.AddrFrom4([4]byte(arp[14:])), netip.AddrFrom4([4]byte(arp[24:]))
		request = be.Uint16(arp[6:]) == arpRequest && from != target
	} else if h := Parse(f); h.L3Type != 0 {
		from, _ = h.Addrs(f)
	}
	if from.IsUnspecified() || from.IsMulticast() {
		return netip.Addr{}, target, false
	}
	return from, target, request
}

// arpReply returns the reply to an ARP request.
func arpReply(request []byte, addr mac) []byte {
	f := append(make([]byte, 0, MinFrame), request[6:12]...)
	f = append(append(f, addr[:]...), request[12:20]...) // from the type to the lengths of addresses
	f = append(be.AppendUint16(f, arpResponse), addr[:]...)
	f = append(f, request[EtherSize+24:EtherSize+28]...)
	f = append(f, request[EtherSize+8:EtherSize+18]...)
	return append(f, make([]byte, MinFrame-len(f))...)
}
