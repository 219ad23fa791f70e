package udp

import "sync/atomic"

// counters count what a port has done since it was opened. Its sockets share them. Segments are
// packets that were parts of a larger one (GSO, GRO).
type counters struct {
	sent, sentCalls, sentSegments, sendErrors atomic.Uint64
	received, receivedCalls, receivedSegments atomic.Uint64
	dropped                                   atomic.Uint64 // by the kernel, because a receive buffer was full
	truncated                                 atomic.Uint64 // larger than any RoCE packet

	onDrop func(sent, received int) // or nil
}

// dropSent counts packets that could not be sent.
func (c *counters) dropSent(n int) {
	c.sendErrors.Add(uint64(n))
	if c.onDrop != nil {
		c.onDrop(n, 0)
	}
}

// dropReceived counts packets for which a receive buffer had no room.
func (c *counters) dropReceived(n int) {
	c.dropped.Add(uint64(n))
	if c.onDrop != nil {
		c.onDrop(0, n)
	}
}
