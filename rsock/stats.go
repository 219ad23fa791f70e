package rsock

import (
	"time"

	sums "github.com/goverbs/verbs/internal/tally"
)

// ConnStats contains statistics of a [Conn] at one moment, or their sums: see [ListenerStats] and
// [DialerStats]. Counters start when the Conn is made.
type ConnStats struct {
	BytesReceived    uint64 // written by the peer, read or not
	BytesSent        uint64 // passed to the device
	MessagesReceived uint64 // of data
	MessagesSent     uint64 // of data

	PeerWaits     uint64        // of Write for room in the peer's ring, or for credits
	PeerWaitTime  time.Duration // of these waits
	QueueWaits    uint64        // of Write for room in the send ring or the send queue
	QueueWaitTime time.Duration // of these waits

	Spins   uint64 // waits of any call that ended while it polled
	Sleeps  uint64 // waits of any call that slept
	Wakeups uint64 // of sleeping calls; exceeds Sleeps if some slept again

	// The current state; sums count open connections only.
	Unread int // bytes received and not read
	// Unsent and SendQueued count until a completion proves the arrival, or on iWARP that TCP has
	// the data. Each completion covers up to a quarter of the ring or the queue. After Close they
	// are 0 if nothing failed.
	Unsent     int // bytes of the send ring
	SendQueued int // requests in the send queue
	PeerRoom   int // bytes that may be written before the peer reads
	Credits    int // messages that may be sent before the peer grants more

	ReadBuffer  int // bytes of the receive ring
	WriteBuffer int // bytes of the send ring
	SendQueue   int // requests that the send queue takes
	RecvQueue   int // messages that the peer may have in flight
}

// Stats returns the connection's statistics. It counts data that has arrived even if no call is in
// progress, and may be called at any time, also after Close.
func (c *Conn) Stats() ConnStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.released() {
		c.progress()
		c.writer.reap()
	}
	return c.stats()
}

// stats returns the statistics as calls have left them. The caller holds mu.
func (c *Conn) stats() ConnStats {
	in, out, w := &c.reader.ring, &c.writer, &c.waits
	return ConnStats{
		BytesReceived: in.received, BytesSent: out.sent,
		MessagesReceived: in.messages, MessagesSent: out.messages,
		PeerWaits: w.peer.n, PeerWaitTime: w.peer.total(),
		QueueWaits: w.queue.n, QueueWaitTime: w.queue.total(),
		Spins: w.spins, Sleeps: w.sleeps, Wakeups: w.wakeups,
		Unread: in.unread(), Unsent: int(out.ring.head - out.ring.freed),
		PeerRoom:   out.targets.room(),
		Credits:    out.credits.left(),
		SendQueued: int(out.signals.slots-out.signals.free()) + c.control.used,
		ReadBuffer: max(len(in.buf), len(in.next)), WriteBuffer: len(out.ring.buf),
		SendQueue: c.opt.SendQueue, RecvQueue: c.opt.RecvQueue,
	}
}

// ListenerStats contains statistics of a [Listener] since it was made.
type ListenerStats struct {
	Accepted    uint64 // RDMA connections that Accept returned
	AcceptedTCP uint64 // TCP connections that Accept returned
	Rejected    uint64 // peers that do not speak the protocol
	Failed      uint64 // handshakes that failed otherwise

	Handshakes int // in progress
	Pending    int // RDMA connections that wait for Accept
	Open       int // RDMA connections that Accept returned and that are not closed

	Conns ConnStats // the sums of the RDMA connections that Accept returned
}

// Stats returns the listener's statistics. It may be called at any time, also after Close.
func (l *Listener) Stats() ListenerStats {
	l.mu.Lock()
	s := l.stats
	l.mu.Unlock()
	s.Conns, s.Open = l.tally.Sum()
	return s
}

func (l *Listener) count(change func(*ListenerStats)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change(&l.stats)
}

// DialerStats contains statistics of a [Dialer] since its first use.
type DialerStats struct {
	Dials     uint64 // started
	Failed    uint64 // dials that failed
	DialedTCP uint64 // TCP connections made
	Open      int    // RDMA connections that are not closed

	Conns ConnStats // the sums of its RDMA connections
}

// Stats returns the dialer's statistics.
func (d *Dialer) Stats() DialerStats {
	s := DialerStats{Failed: d.failed.Load(), DialedTCP: d.tcp.Load(), Dials: d.dials.Load()}
	s.Conns, s.Open = d.tally.Sum()
	return s
}

// tally has the connections of a Listener or Dialer.
type tally = sums.Tally[*Conn, ConnStats]
