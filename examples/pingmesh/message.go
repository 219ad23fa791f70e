package main

import (
	"encoding/binary"

	"github.com/goverbs/verbs"
)

// The datagrams, as R-Pingmesh (SIGCOMM 2024) has them: the responder answers a probe with an ACK,
// and then with another that says how long the first has taken it.
//
//	prober     T1 due   T2 sent ─ probe ─►          T5 polled  T6 handled
//	responder                   T3 polled  T4 sent ─ ACK, ACK of T4-T3 ─►
//
//	network RTT = (T5-T2) - (T4-T3)    responder's delay = T4-T3    prober's delay = (T2-T1) + (T6-T5)
//
// Each difference is of one machine's clock. With an adapter's timestamps T4 is known only after
// the first ACK has left, hence the second. Here all are the program's: sent is before posting, so
// no RTT is too short, and one includes the time in which the program was asleep.
type message struct {
	kind  uint8
	path  uint8  // selects the flow label, also of the ACKs
	seq   uint64 // the prober's
	delay int64  // T4-T3 in ns, in the second ACK
}

const (
	kindProbe = 1 + iota
	kindACK
	kindDelay

	messageSize = 24
	magic       = 0x504d5301 // and a version
)

func (m message) put(b []byte) {
	binary.BigEndian.PutUint32(b, magic)
	b[4], b[5], b[6], b[7] = m.kind, m.path, 0, 0
	binary.BigEndian.PutUint64(b[8:], m.seq)
	binary.BigEndian.PutUint64(b[16:], uint64(m.delay))
}

func parse(b []byte) (m message, ok bool) {
	if len(b) != messageSize || binary.BigEndian.Uint32(b) != magic {
		return m, false
	}
	m = message{b[4], b[5], binary.BigEndian.Uint64(b[8:]), int64(binary.BigEndian.Uint64(b[16:]))}
	return m, m.kind >= kindProbe && m.kind <= kindDelay && m.path < maxPaths && m.delay >= 0
}

// source returns the sender's GID.
func source(wc *verbs.WC, grh []byte) (g verbs.GID, ok bool) {
	addr, _ := wc.GRHAddrs(grh)
	if !addr.IsValid() {
		return g, false
	}
	return addr.As16(), true
}
