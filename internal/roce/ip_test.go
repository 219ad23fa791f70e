package roce

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
)

// ip is an IP header as a sender may choose it.
type ip struct {
	src, dst netip.AddrPort
	tos, ttl uint8
	label    uint32
	id       uint16
	flags    byte // of IPv4
}

func randomIP(r *rand.Rand, v4 bool) ip {
	addr := func() netip.AddrPort {
		var a [16]byte
		for i := range a {
			a[i] = byte(r.Uint32())
		}
		p := netip.AddrPortFrom(netip.AddrFrom16(a), uint16(r.Uint32()))
		if v4 {
			p = netip.AddrPortFrom(netip.AddrFrom4([4]byte(a[:])), p.Port())
		}
		return p
	}
	return ip{
		src: addr(), dst: addr(), tos: uint8(r.Uint32()), ttl: uint8(r.Uint32()),
		label: r.Uint32() & (1<<20 - 1), id: uint16(r.Uint32()), flags: byte(r.IntN(2)) * 0x40,
	}
}

func (h ip) flow() Flow {
	f, err := NewFlow(h.src, h.dst)
	if err != nil {
		panic(err)
	}
	if h.flags&0x40 == 0 {
		f = f.Fragmentable()
	}
	return f
}

// datagram returns the IP packet with a UDP payload.
func (h ip) datagram(payload []byte) []byte {
	be := binary.BigEndian
	var b []byte
	if h.src.Addr().Is4() {
		b = []byte{0x45, h.tos}
		b = be.AppendUint16(b, uint16(28+len(payload)))
		b = be.AppendUint16(b, h.id)
		b = append(b, h.flags, 0, h.ttl, 17, 0, 0)
		b = append(b, h.src.Addr().AsSlice()...)
		b = append(b, h.dst.Addr().AsSlice()...)
		be.PutUint16(b[10:], ^sum16(b))
	} else {
		b = be.AppendUint32(nil, 6<<28|uint32(h.tos)<<20|h.label)
		b = be.AppendUint16(b, uint16(8+len(payload)))
		b = append(b, 17, h.ttl)
		b = append(b, h.src.Addr().AsSlice()...)
		b = append(b, h.dst.Addr().AsSlice()...)
	}
	udp := len(b)
	b = be.AppendUint16(b, h.src.Port())
	b = be.AppendUint16(b, h.dst.Port())
	b = be.AppendUint16(b, uint16(8+len(payload)))
	b = be.AppendUint16(b, 0)
	b = append(b, payload...)
	if !h.src.Addr().Is4() { // IPv6 requires the checksum
		pseudo := append(h.src.Addr().AsSlice(), h.dst.Addr().AsSlice()...)
		pseudo = be.AppendUint32(pseudo, uint32(len(b)-udp))
		pseudo = append(pseudo, 0, 0, 0, 17)
		sum := ^sum16(append(append(pseudo, b[udp:]...), 0)[:len(pseudo)+(len(b)-udp+1)&^1])
		if sum == 0 {
			sum = 0xffff
		}
		be.PutUint16(b[udp+6:], sum)
	}
	return b
}

// sum16 is the ones' complement sum of RFC 1071.
func sum16(b []byte) uint16 {
	var sum uint64
	for i := 0; i < len(b); i += 2 {
		sum += uint64(b[i])<<8 | uint64(b[i+1])
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return uint16(sum)
}

// randomPacket returns a packet with random values in the fields that the opcode has.
func randomPacket(r *rand.Rand, op Opcode, payload int) *Packet {
	p := &Packet{
		Opcode: op, Solicited: r.IntN(2) == 0, Migrated: r.IntN(2) == 0, FECN: r.IntN(2) == 0,
		BECN: r.IntN(2) == 0, AckReq: r.IntN(2) == 0, PKey: uint16(r.Uint32()),
		DestQP: r.Uint32() & mask24, PSN: PSN(r.Uint32()) & PSNMask, Payload: []byte{},
	}
	f := op.Flags()
	if f&HasAETH != 0 {
		p.AETH = AETH{Syndrome(r.Uint32()), r.Uint32() & mask24}
	}
	if f&HasRETH != 0 {
		p.RETH = RETH{r.Uint64(), r.Uint32(), r.Uint32()}
	}
	if f&HasAtomicETH != 0 {
		p.Atomic = AtomicETH{r.Uint64(), r.Uint32(), r.Uint64(), r.Uint64()}
	}
	if f&HasAtomicAckETH != 0 {
		p.Orig = r.Uint64()
	}
	if f&HasDETH != 0 {
		p.DETH = DETH{r.Uint32(), r.Uint32() & mask24}
	}
	if f&HasImmDt != 0 {
		binary.BigEndian.PutUint32(p.Imm[:], r.Uint32())
	}
	if f&HasIETH != 0 {
		p.IETH = r.Uint32()
	}
	if f&HasFETH != 0 {
		p.FETH = FETH{uint8(r.IntN(16)), uint8(r.IntN(4))}
	}
	if f&HasPayload != 0 {
		p.Payload = randomBytes(r, payload)
	}
	return p
}

func randomBytes(r *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// known returns all opcodes that the package knows.
func known() (ops []Opcode) {
	for o := range 256 {
		if Opcode(o).Known() {
			ops = append(ops, Opcode(o))
		}
	}
	return ops
}
