package roce

import (
	"encoding/binary"
	"errors"
)

// The errors of Decode.
var (
	ErrShort   = errors.New("packet is shorter than its headers")
	ErrOpcode  = errors.New("opcode is not known")
	ErrVersion = errors.New("transport header version is not 0")
	ErrLength  = errors.New("packet length does not fit its opcode and padding")
)

// DefaultPKey is the default partition with full membership.
const DefaultPKey = 0xffff

// Packet is a decoded packet: the BTH, the headers that the opcode has, and the payload.
// The other headers are zero after Decode, and are not encoded.
//
//	BTH 12 bytes: opcode │ SE M pad version │ P_Key │ FECN BECN DestQP │ AckReq PSN
//	DETH 8   every datagram: who may send it (Q_Key), and from which QP
//	RETH 16  the first packet of a WRITE, a READ request, FLUSH: where, with which key, how much
//	AtomicETH 28, AtomicAckETH 8: the operands, and the value that was there
//	AETH 4   answers: ACK or NAK, and how many messages are complete
//	ImmDt 4, IETH 4: the last packet with immediate data, or that invalidates a key
//	payload │ padding to 4 bytes │ ICRC 4
type Packet struct {
	Opcode    Opcode
	Solicited bool   // SE: the receiver's completion is an event for those armed for solicited ones
	Migrated  bool   // M: the path is the one in use, of two; RoCE has one
	Pad       uint8  // bytes of padding after the payload, 0 to 3
	FECN      bool   // the network was congested on the way of this packet
	BECN      bool   // the network was congested on the way of the other direction
	AckReq    bool   // the responder has to acknowledge
	PKey      uint16 // the partition, as a VLAN of QPs; the upper bit tells a full member
	DestQP    uint32 // 24 bits
	PSN       PSN    // a response has the PSN of the request, or the part of a READ, that it answers

	AETH   AETH
	RETH   RETH
	Atomic AtomicETH
	Orig   uint64 // AtomicAckETH: the value before the atomic operation
	DETH   DETH
	Imm    [4]byte // ImmDt: immediate data as it is on the wire
	IETH   uint32  // the key to invalidate
	FETH   FETH

	// Payload is the data between headers and padding. Decode does not copy it.
	Payload []byte
}

// RETH names the memory of an RDMA operation. A requester has its address and key from the peer's
// program.
type RETH struct {
	VA     uint64
	RKey   uint32
	Length uint32 // of the whole message
}

// AETH is the header of acknowledgements.
type AETH struct {
	Syndrome Syndrome
	MSN      uint32 // 24 bits: the number of requests that the responder has completed; a READ counts once it is accepted (C9-148)
}

// AtomicETH has the operands of COMPARE SWAP and FETCH ADD (IBA, 9.4.5), which work on 8 aligned
// bytes.
type AtomicETH struct {
	VA      uint64
	RKey    uint32
	SwapAdd uint64 // the value to swap in, or to add
	Compare uint64
}

// DETH is the header of datagrams. The receiver drops a datagram without its QP's Q_Key, and
// answers to SrcQP.
type DETH struct {
	QKey  uint32
	SrcQP uint32 // 24 bits
}

// FETH has what FLUSH flushes, and how far (Annex A19.4.1.1 and A19.4.1.2).
type FETH struct {
	Placement   uint8 // 4 bits: FlushGlobal, FlushPersistent
	Selectivity uint8 // 2 bits: FlushRange, FlushRegion
}

// The values of a FETH (enum ib_flush_type and ib_flush_level of the kernel).
const (
	FlushGlobal     = 1 << 0 // visible to all
	FlushPersistent = 1 << 1 // survives the loss of power

	FlushRange  = 0 // the memory that the RETH names
	FlushRegion = 1 // the whole region
)

// The bits of the BTH.
const (
	bthSolicited = 0x80
	bthMigrated  = 0x40
	bthPadShift  = 4
	bthVersion   = 0x0f
	bthFECN      = 0x80
	bthBECN      = 0x40
	bthAckReq    = 0x80
	mask24       = 1<<24 - 1
)

// PadLen returns the padding of n bytes of payload.
func PadLen(n int) uint8 { return uint8(-n & 3) }

// Padding returns the padding of n bytes of payload. The caller must not change it.
func Padding(n int) []byte { return zeros[: -n&3 : -n&3] }

var zeros = make([]byte, 3)

// HeaderLen returns the size of the headers of p, with the BTH.
func (p *Packet) HeaderLen() int { return p.Opcode.HeaderLen() }

// Len returns the size of the packet: headers, payload, padding and ICRC.
func (p *Packet) Len() int {
	return p.HeaderLen() + (len(p.Payload)+3)&^3 + ICRCSize
}

// Append appends the headers, the payload and its padding to dst. It sets p.Pad. The ICRC is
// next, see [Flow.AppendICRC].
func (p *Packet) Append(dst []byte) []byte {
	p.Pad = PadLen(len(p.Payload))
	dst = p.AppendHeaders(dst)
	dst = append(dst, p.Payload...)
	return append(dst, Padding(len(p.Payload))...)
}

// AppendHeaders appends the headers of p to dst. It encodes p.Pad, and the bits that the
// fields have on the wire. The opcode must be known.
func (p *Packet) AppendHeaders(dst []byte) []byte {
	flags := p.Pad & 3 << bthPadShift
	if p.Solicited {
		flags |= bthSolicited
	}
	if p.Migrated {
		flags |= bthMigrated
	}
	qp := p.DestQP & mask24
	if p.FECN {
		qp |= bthFECN << 24
	}
	if p.BECN {
		qp |= bthBECN << 24
	}
	psn := uint32(p.PSN & PSNMask)
	if p.AckReq {
		psn |= bthAckReq << 24
	}
	be := binary.BigEndian
	dst = append(dst, byte(p.Opcode), flags)
	dst = be.AppendUint16(dst, p.PKey)
	dst = be.AppendUint32(dst, qp)
	dst = be.AppendUint32(dst, psn)

	f := p.Opcode.Flags()
	// The order of the headers is fixed, so an opcode's set of them tells the layout.
	if f&HasDETH != 0 {
		dst = be.AppendUint32(dst, p.DETH.QKey)
		dst = be.AppendUint32(dst, p.DETH.SrcQP&mask24)
	}
	if f&HasFETH != 0 {
		dst = append(dst, 0, 0, 0, p.FETH.Selectivity&3<<4|p.FETH.Placement&15)
	}
	if f&HasRETH != 0 {
		dst = be.AppendUint64(dst, p.RETH.VA)
		dst = be.AppendUint32(dst, p.RETH.RKey)
		dst = be.AppendUint32(dst, p.RETH.Length)
	}
	if f&HasAtomicETH != 0 {
		dst = be.AppendUint64(dst, p.Atomic.VA)
		dst = be.AppendUint32(dst, p.Atomic.RKey)
		dst = be.AppendUint64(dst, p.Atomic.SwapAdd)
		dst = be.AppendUint64(dst, p.Atomic.Compare)
	}
	if f&HasAETH != 0 {
		dst = be.AppendUint32(dst, uint32(p.AETH.Syndrome)<<24|p.AETH.MSN&mask24)
	}
	if f&HasAtomicAckETH != 0 {
		dst = be.AppendUint64(dst, p.Orig)
	}
	if f&HasImmDt != 0 {
		dst = append(dst, p.Imm[:]...)
	}
	if f&HasIETH != 0 {
		dst = be.AppendUint32(dst, p.IETH)
	}
	return dst
}

// Decode decodes b, which is a packet from the BTH to the ICRC. p.Payload is a part of b.
// Decode checks what does not depend on a QP or on its MTU, see [Opcode.PayloadFits]. It does
// not check the ICRC.
func (p *Packet) Decode(b []byte) error {
	if len(b) < BTHSize+ICRCSize {
		return ErrShort
	}
	o := &opcodes[b[0]]
	size := int(o.size)
	if size == 0 {
		return ErrOpcode
	}
	if b[1]&bthVersion != 0 {
		return ErrVersion
	}
	pad := int(b[1] >> bthPadShift & 3)
	// The packet has no length of its own: it ends where the UDP datagram does, less ICRC and
	// padding, which BTH tells (Annex A17.3.2.3).
	end := len(b) - ICRCSize - pad
	if len(b) < size+ICRCSize {
		return ErrShort
	}
	if end < size || len(b)%4 != 0 || o.flags&HasPayload == 0 && len(b) != size+ICRCSize {
		return ErrLength
	}
	be := binary.BigEndian
	*p = Packet{
		Opcode:    Opcode(b[0]),
		Solicited: b[1]&bthSolicited != 0,
		Migrated:  b[1]&bthMigrated != 0,
		Pad:       uint8(pad),
		PKey:      be.Uint16(b[2:]),
		FECN:      b[4]&bthFECN != 0,
		BECN:      b[4]&bthBECN != 0,
		DestQP:    be.Uint32(b[4:]) & mask24,
		AckReq:    b[8]&bthAckReq != 0,
		PSN:       PSN(be.Uint32(b[8:])) & PSNMask,
		Payload:   b[size:end:end],
	}
	h := b[BTHSize:size]
	if o.flags&HasDETH != 0 {
		p.DETH = DETH{be.Uint32(h), be.Uint32(h[4:]) & mask24}
		h = h[DETHSize:]
	}
	if o.flags&HasFETH != 0 {
		p.FETH = FETH{Placement: h[3] & 15, Selectivity: h[3] >> 4 & 3}
		h = h[FETHSize:]
	}
	if o.flags&HasRETH != 0 {
		p.RETH = RETH{be.Uint64(h), be.Uint32(h[8:]), be.Uint32(h[12:])}
		h = h[RETHSize:]
	}
	if o.flags&HasAtomicETH != 0 {
		p.Atomic = AtomicETH{be.Uint64(h), be.Uint32(h[8:]), be.Uint64(h[12:]), be.Uint64(h[20:])}
		h = h[AtomicETHSize:]
	}
	if o.flags&HasAETH != 0 {
		p.AETH = AETH{Syndrome(h[0]), be.Uint32(h) & mask24}
		h = h[AETHSize:]
	}
	if o.flags&HasAtomicAckETH != 0 {
		p.Orig = be.Uint64(h)
		h = h[AtomicAckETHSize:]
	}
	if o.flags&HasImmDt != 0 {
		p.Imm = [4]byte(h)
		h = h[ImmDtSize:]
	}
	if o.flags&HasIETH != 0 {
		p.IETH = be.Uint32(h)
	}
	return nil
}
