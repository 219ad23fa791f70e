package main

import "encoding/binary"

// The datagrams of R-Pingmesh (SIGCOMM 2024): the responder answers a probe with an ACK, and then
// with another that says how long the first took.
//
//	prober     T1 due   T2 sent ─ probe ─►          T5 polled  T6 handled
//	responder                   T3 polled  T4 sent ─ ACK, ACK of T4-T3 ─►
//
//	network RTT = (T5-T2) - (T4-T3)    responder's delay = T4-T3    prober's delay = (T2-T1) + (T6-T5)
//
// Each difference is between times of one clock. Where the adapter has timestamps, T2 to T5 are its
// own, and T4 is known only after the first ACK has left, hence the second. Elsewhere the program
// takes all times: it takes "sent" before posting, so no RTT is too short, but an RTT includes the
// time in which the program slept.
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
