package cm

import (
	"net/netip"

	"github.com/goverbs/verbs"
)

// Sender is the claimed source of a datagram. It is not authenticated. Equal senders have the same
// queue pair, address and traffic class.
type Sender struct {
	QPNum  uint32
	header header
}

// header identifies the path to a sender.
type header struct {
	grh      [verbs.GRHSize]byte
	global   bool // grh is set
	slid     uint16
	sl       uint8
	pathBits uint8
}

func senderOf(wc *verbs.WC, grh []byte) Sender {
	h := header{global: wc.Flags&verbs.WCGRH != 0, slid: wc.SLID, sl: wc.SL, pathBits: wc.PathBits}
	if h.global {
		copy(h.grh[:], grh)
	}
	// Fields that differ between packets of one sender are cleared: payload length and
	// hop limit, or IPv4's identification, fragment, time to live and checksum.
	if h.v4() {
		clear(h.grh[22:26])
		clear(h.grh[28:29])
		clear(h.grh[30:32])
	} else {
		clear(h.grh[4:6])
		clear(h.grh[7:8])
	}
	return Sender{QPNum: wc.SrcQP, header: h}
}

// v4 reports whether the header is that of IPv4, in the last 20 bytes, and not an
// IPv6 header with an address that looks like one.
func (h *header) v4() bool { return h.grh[0]>>4 != 6 && h.grh[20]>>4 == 4 }

// Addr returns the sender's address. It is invalid without a GRH, as within InfiniBand's subnets.
func (s Sender) Addr() netip.Addr {
	switch {
	case !s.header.global:
		return netip.Addr{}
	case s.header.v4():
		return netip.AddrFrom4([4]byte(s.header.grh[32:36]))
	}
	return netip.AddrFrom16([16]byte(s.header.grh[8:24]))
}
