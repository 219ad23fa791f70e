// Package hostile has peers that speak the protocols of rsock, msg and conn by
// hand, and break them: while one of them misbehaves, another, that does not,
// keeps exchanging data with the same listener, and in the end nothing of the
// former is left. Their own packages have tests of what a single message may get
// wrong; package faults has those of peers that never get past the handshake.
//
//	peer (raw endpoint) ── lies, floods, silence ──►┐
//	                                                ├ server: listener and echo of a layer
//	good (a client of the layer) ◄── echo, always ──┘     │
//	                                                      └► how each connection ended
//
// -rounds repeats the attacks, and memory must not grow with it; -halfopen is how
// many handshakes are begun and never ended; -replays how often a connection's bytes
// are sent again.
package hostile
