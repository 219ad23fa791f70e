// Package netif is the contract between a device in user space and the network that carries
// its packets. Networks, such as UDP and the one in memory for tests, implement [Network];
// package engine uses it.
package netif

import "net/netip"

// Packet is a RoCEv2 packet as the UDP payload: from BTH to the ICRC, both included.
type Packet struct {
	Src, Dst netip.AddrPort
	TOS      uint8  // DSCP and ECN; a received packet has what the network knows
	Data     []byte // Send: valid during the call. Receive: valid during the call.
	IDKnown  bool   // received: the IPv4 identification (ID) is known (in-memory networks); otherwise ICRC is checked up to it
	ID       uint16
}

// Port is a device's attachment to a network with one address. A device has one Port for
// each of its addresses.
type Port interface {
	Addr() netip.AddrPort
	// MTU returns the size of the largest IP packet.
	MTU() int
	// Send sends packets, in order, best effort. It does not block for longer than a
	// socket buffer needs, and drops what the network drops.
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

// Network makes ports.
type Network interface {
	Open(addr netip.AddrPort) (Port, error)
}
