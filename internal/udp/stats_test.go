package udp

// Stats counts what a port has done since it was opened.
type Stats struct {
	Sent, SentCalls         uint64 // packets; system calls for them
	SentSegments            uint64 // packets that were segments of a larger one (GSO)
	SendErrors              uint64 // packets that could not be sent
	Received, ReceivedCalls uint64 // packets; system calls that returned some
	ReceivedSegments        uint64 // packets that came as segments of a larger one (GRO)
	Dropped                 uint64 // by the kernel, because a receive buffer was full
	Truncated               uint64 // larger than any RoCE packet
}

// Stats returns the port's counters.
func (p *Port) Stats() Stats {
	c := &p.counters
	return Stats{
		Sent: c.sent.Load(), SentCalls: c.sentCalls.Load(), SentSegments: c.sentSegments.Load(), SendErrors: c.sendErrors.Load(),
		Received: c.received.Load(), ReceivedCalls: c.receivedCalls.Load(), ReceivedSegments: c.receivedSegments.Load(),
		Dropped: c.dropped.Load(), Truncated: c.truncated.Load(),
	}
}
