package engine

import (
	"net/netip"
	"time"
)

// idents judges the IPv4 identifications of a sender's packets. A UDP socket does not show them, so
// they are computed from the ICRC, and 1 of 32768 corrupt packets seems to have just another
// identification. The kernel counts the packets to an address, and adds up to the ticks since the
// last one (ip_idents_reserve).
type idents struct {
	last uint16
	at   time.Duration // when that packet came
	run  int           // how many packets continued those before
}

const (
	identSlack = 512  // as packets overtake each other, or go elsewhere
	identRun   = 32   // after so many packets the sender is believed to count
	maxSenders = 4096 // that are remembered
)

// plausible reports whether a packet continues those before. If the sender does not count, or
// begins elsewhere, at most one of identRun packets is refused, and that is sent again.
func (s *idents) plausible(id uint16, now time.Duration) bool {
	slack := identSlack + (now - s.at).Milliseconds()
	diff := int64(int16(id - s.last))
	before := s.run
	s.last, s.at = id, now
	if diff >= -slack && diff <= slack {
		s.run++
		return true
	}
	s.run = 0
	return before < identRun
}

func (r *receiver) identsOf(sender netip.Addr) *idents {
	s := r.senders[sender]
	if s == nil {
		if len(r.senders) == maxSenders {
			clear(r.senders)
		}
		s = new(idents)
		r.senders[sender] = s
	}
	return s
}
