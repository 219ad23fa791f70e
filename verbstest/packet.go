package verbstest

import (
	"net/netip"
	"time"

	"github.com/goverbs/verbs/internal/roce"
)

// Packet is a packet that a device has sent. It is valid during the filter's call.
type Packet struct {
	Number uint64        // of all packets, from 1
	Time   time.Duration // since the network was made
	Src    netip.AddrPort
	Dst    netip.AddrPort
	TOS    uint8  // DSCP and ECN
	Data   []byte // from BTH to ICRC; must not be changed

	Kind       Kind
	QP         uint32 // destination
	PSN        uint32
	First      bool   // the first packet of its message, or the only one
	Last       bool   // the last packet of its message, or the only one
	PayloadLen int    // without headers, padding and ICRC
	CM         string // the message of the connection manager: REQ, REP, RTU, REJ, MRA, DREQ, DREP, SIDR_REQ, SIDR_REP

	decoded roce.Packet
	err     error
}

// Kind is what a packet is for.
type Kind uint8

// The kinds of packets.
const (
	Other          Kind = iota // unknown, or not RoCE
	Send                       // of RC and UC
	Write                      // RDMA write of RC and UC
	ReadRequest                // RDMA read
	ReadResponse               // also of flush and atomic write
	Atomic                     // compare and swap, fetch and add
	AtomicResponse             // of Atomic
	AtomicWrite                // 8 bytes
	Flush                      // flush
	Ack                        // positive acknowledgement
	Nak                        // negative acknowledgement
	RNRNak                     // the receiver was not ready
	Datagram                   // UD, except CM
	CM                         // connection manager
)

var kindNames = [...]string{
	"other", "send", "write", "read request", "read response", "atomic", "atomic response", "atomic write", "flush",
	"ack", "nak", "RNR nak", "datagram", "CM",
}

// String returns the name of the kind.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return kindNames[Other]
}

// String returns the packet's headers on one line.
func (p *Packet) String() string {
	if p.err != nil {
		return "not RoCE: " + p.err.Error()
	}
	return p.decoded.String()
}

func (p *Packet) decode(h *header) {
	*p = Packet{Number: h.number, Time: h.sent, Src: h.src, Dst: h.dst, TOS: h.tos, Data: h.data}
	d := &p.decoded
	if p.err = d.Decode(p.Data); p.err != nil {
		return
	}
	p.QP, p.PSN, p.PayloadLen = d.DestQP, uint32(d.PSN), len(d.Payload)
	p.First, p.Last = d.Opcode.Has(roce.Starts), d.Opcode.Has(roce.Ends)
	p.Kind = kindOf(d)
	if p.Kind == Datagram && d.DestQP == roce.GSIQP {
		var h roce.MADHeader
		if h.Decode(d.Payload) == nil && h.Class == roce.CMClass {
			p.Kind, p.CM = CM, h.Attr.String()
		}
	}
}

func kindOf(d *roce.Packet) Kind {
	switch class := d.AETH.Syndrome.Class(); {
	case d.Opcode == roce.RCAtomicAcknowledge:
		return AtomicResponse
	case d.Opcode.Transport() == roce.UD:
		return Datagram
	case d.Opcode != roce.RCAcknowledge:
	case class == roce.ClassACK:
		return Ack
	case class == roce.ClassRNRNAK:
		return RNRNak
	default:
		return Nak
	}
	for _, k := range flagKinds {
		if d.Opcode.Has(k.flag) {
			return k.kind
		}
	}
	return Other
}

// flagKinds are the kinds of packets with flags, of which the first counts.
var flagKinds = []struct {
	flag roce.Flags
	kind Kind
}{
	{roce.IsResponse, ReadResponse}, {roce.IsSend, Send}, {roce.IsAtomicWrite, AtomicWrite}, {roce.IsWrite, Write},
	{roce.IsRead, ReadRequest}, {roce.IsAtomic, Atomic}, {roce.IsFlush, Flush},
}

// Filter decides what happens to a packet; of one to a multicast group, for each member. Calls are
// made one after the other, in the order of packets, and must not block. A filter can call the methods
// of the network except Close; it must not use the devices on it, except from another goroutine.
type Filter func(p *Packet) Action

// Action is what happens to a packet. The zero Action passes it on to the link.
type Action struct {
	Drop    bool
	Copies  int           // delivered in addition
	Delay   time.Duration // in addition to the link's; later packets overtake this one
	Corrupt bool          // one bit that the ICRC covers is changed
}

// The most common actions.
var (
	Pass = Action{}
	Drop = Action{Drop: true}
)

// Nth returns a filter that does something with the nth packet that matches, from 1, and passes
// all others.
func Nth(n int, match func(p *Packet) bool, a Action) Filter {
	seen := 0
	return func(p *Packet) Action {
		if match(p) {
			if seen++; seen == n {
				return a
			}
		}
		return Pass
	}
}
