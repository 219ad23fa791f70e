package roce

import (
	"encoding/binary"
	"fmt"
	"strings"
)

// String returns a line for logs with what the packet has:
//
//	RC WRITE_FIRST qp 0x11 psn 5 ackreq va 0x7f00 rkey 0x204 len 4096 + 1024 bytes
//	UD SEND_ONLY qp 0x1 psn 0 qkey 0x80010000 from 0x1 + 256 bytes CM REP id 4dbc8962 to f1d6e5db
func (p *Packet) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v qp %#x psn %d", p.Opcode, p.DestQP, p.PSN)
	for _, flag := range []struct {
		set  bool
		name string
	}{
		{p.AckReq, "ackreq"}, {p.Solicited, "solicited"}, {p.Migrated, "migrated"},
		{p.FECN, "fecn"}, {p.BECN, "becn"},
	} {
		if flag.set {
			b.WriteString(" " + flag.name)
		}
	}
	if p.PKey != DefaultPKey {
		fmt.Fprintf(&b, " pkey %#x", p.PKey)
	}
	f := p.Opcode.Flags()
	if f&HasDETH != 0 {
		fmt.Fprintf(&b, " qkey %#x from %#x", p.DETH.QKey, p.DETH.SrcQP)
	}
	if f&HasFETH != 0 {
		fmt.Fprintf(&b, " placement %#x selectivity %d", p.FETH.Placement, p.FETH.Selectivity)
	}
	if f&HasRETH != 0 {
		fmt.Fprintf(&b, " va %#x rkey %#x len %d", p.RETH.VA, p.RETH.RKey, p.RETH.Length)
	}
	if f&HasAtomicETH != 0 {
		a := &p.Atomic
		fmt.Fprintf(&b, " va %#x rkey %#x", a.VA, a.RKey)
		if p.Opcode == RCCompareSwap {
			fmt.Fprintf(&b, " compare %#x swap %#x", a.Compare, a.SwapAdd)
		} else {
			fmt.Fprintf(&b, " add %#x", a.SwapAdd)
		}
	}
	if f&HasAETH != 0 {
		fmt.Fprintf(&b, " %v msn %d", p.AETH.Syndrome, p.AETH.MSN)
	}
	if f&HasAtomicAckETH != 0 {
		fmt.Fprintf(&b, " was %#x", p.Orig)
	}
	if f&HasImmDt != 0 {
		fmt.Fprintf(&b, " imm 0x%x", p.Imm)
	}
	if f&HasIETH != 0 {
		fmt.Fprintf(&b, " invalidates %#x", p.IETH)
	}
	if f&HasPayload != 0 {
		fmt.Fprintf(&b, " + %d bytes", len(p.Payload))
	}
	if name := p.message(); name != "" {
		b.WriteString(" " + name)
	}
	return b.String()
}

// message returns the name of the management datagram that p carries, if it does, with the
// communication IDs of sender and receiver, by which the messages of a connection are told from
// others.
func (p *Packet) message() string {
	var h MADHeader
	if p.DestQP != GSIQP || !p.Opcode.Has(HasDETH) || h.Decode(p.Payload) != nil {
		return ""
	}
	if h.Class != CMClass {
		return fmt.Sprintf("MAD class %#02x", h.Class)
	}
	ids := p.Payload[MADHeaderSize:]
	local, remote := binary.BigEndian.Uint32(ids), binary.BigEndian.Uint32(ids[4:])
	switch h.Attr {
	case AttrREQ, AttrSIDRREQ, AttrSIDRREP: // they have one, see cmWire.ids
		return fmt.Sprintf("CM %v id %08x", h.Attr, local)
	}
	return fmt.Sprintf("CM %v id %08x to %08x", h.Attr, local, remote)
}
