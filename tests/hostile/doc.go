// Package hostile runs peers that implement the protocols of rsock, rmsg and rconn by hand
// and break them: while such a peer misbehaves, a good client must be able to exchange data
// with the same listener, and in the end nothing of the peer may be left. Tests of wrong
// single messages are in the packages themselves; package faults tests peers that do not
// complete the handshake.
//
//	peer (raw endpoint) ── lies, floods, silence ──►┐
//	                                                ├ server: listener and echo of a layer
//	good (a client of the layer) ◄── echo, always ──┘     │
//	                                                      └► how each connection ended
//
// -rounds repeats the attacks, which must not increase the memory; -halfopen is how many
// handshakes are started and never completed; -replays is how often a connection's bytes
// are sent again.
package hostile
