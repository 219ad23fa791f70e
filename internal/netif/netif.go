// Package netif is the contract between a device in user space and the network that carries
// its packets. Networks, such as UDP and the one in memory for tests, implement [Network];
// package engine uses it.
package netif

import (
	"net/netip"
	"syscall"
)

// Packet is a RoCEv2 packet as the UDP payload: from BTH to the ICRC, both included.
type Packet struct {
	Src, Dst netip.AddrPort
	TOS      uint8  // DSCP and ECN; a received packet has what the network knows
	Data     []byte // Send: valid during the call. Receive: valid during the call.
	IDKnown  bool   // received: the IPv4 identification (ID) is known (in-memory networks); otherwise ICRC is checked up to it
	ID       uint16
}

// TooLargeError is the error of a packet that is larger than what its link carries, however often
// it is sent. It matches EMSGSIZE.
type TooLargeError struct {
	Index int // of the first such packet, in Send's list
	Err   error
}

// Error implements error.
func (e *TooLargeError) Error() string { return e.Err.Error() }

// Unwrap returns EMSGSIZE and the error.
func (e *TooLargeError) Unwrap() []error { return []error{syscall.EMSGSIZE, e.Err} }

// Port is a device's attachment to a network with one address. A device has one Port for
// each of its addresses.
type Port interface {
	Addr() netip.AddrPort
	// MTU returns the size of the largest IP packet.
	MTU() int
	// Send sends packets, in order, best effort. It never waits for the network, as it is called
	// with locks of the device held that the goroutine of Start needs, too. It drops packets
	// for which there is no room. If packets are larger than what their link carries, it sends the
	// others, and returns a [TooLargeError].
	Send(pkts []Packet) error
	// Start calls receive for batches of received packets, from one goroutine, until
	// Close. After Close has returned, receive is not called.
	Start(receive func(pkts []Packet))
	Close() error
}

// Backlog is a [Port] that knows how far its receiver is behind.
type Backlog interface {
	Port
	// Arrived returns a position behind all packets that have arrived.
	Arrived() uint64
	// Handled reports whether receive has returned for all packets before a position.
	Handled(position uint64) bool
}

// Drops is a [Port] that tells which packets it drops, so that the device can count them.
type Drops interface {
	Port
	// OnDrop sets a function, before anything else is called. It is called with the numbers of
	// packets that Send has dropped, at once or later, and of received packets for which there was
	// no room. It must not wait.
	OnDrop(dropped func(sent, received int))
}

// Refusals is a [Port] that learns when a host has nothing that receives its packets.
type Refusals interface {
	Port
	// OnRefused sets a function, before Start. It is called like Start's, for packets that a host
	// has refused: with their destination, and the part of their Data that the host has quoted,
	// which is valid during the call. Anybody can forge that who knows addresses; the caller looks
	// into the quoted part for what only the destination can know.
	OnRefused(refused func(dst netip.AddrPort, quoted []byte))
	// WatchRefusals makes the port call that function for packets that are sent within a second.
	WatchRefusals()
}

// Network makes ports.
type Network interface {
	Open(addr netip.AddrPort) (Port, error)
}
