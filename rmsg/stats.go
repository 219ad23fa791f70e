package rmsg

import (
	"sync/atomic"

	"github.com/goverbs/verbs/internal/tally"
)

// ConnStats contains statistics of a connection, or their sums: see [ListenerStats] and
// [DialerStats]. The counters start with the connection.
type ConnStats struct {
	// MessagesSent and BytesSent count the messages whose status has become Sent, MessagesReceived
	// and BytesReceived the messages that the program has taken.
	MessagesSent, MessagesReceived uint64
	BytesSent, BytesReceived       uint64
	// LargeSent and LargeReceived count the messages above Eager that were announced
	// to the peer and by it.
	LargeSent, LargeReceived uint64
	// AcksSent and AcksReceived count the frames that carry no message.
	AcksSent, AcksReceived uint64
	// WouldBlock counts how often Post or Send found the send queue full, BufferWaits how often
	// Send found SendBuffer or Window full, CreditWaits how often a message waited for credits.
	WouldBlock, BufferWaits, CreditWaits uint64

	// The current state; sums count only connections that have not ended.

	Queued  int // messages that are posted and not yet Sent or Failed
	Unread  int // messages that have arrived or are announced, and were not taken
	Credits int // messages that may be sent before the peer grants more
	Memory  int // bytes registered, including held buffers and the loop's cache
}

// Stats returns the statistics of the connection as of the last event that its loop has handled.
func (c *Conn) Stats() ConnStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	st := c.stats
	st.Queued = c.out.pending
	st.Unread = int(c.in.received - c.in.head)
	st.Credits = int(c.out.granted - c.out.sent)
	if c.endpoint != nil {
		st.Memory = int(c.arena.registered.Load())
	}
	return st
}

// LoopStats contains statistics of a loop. The counters start when the loop is made.
type LoopStats struct {
	// Dispatches counts how often events were looked for, Handled the events, and Wakeups
	// the times that Run or Dispatch slept and was woken.
	Dispatches, Wakeups, Handled uint64

	// Conns, Listeners and Devices count the open ones.
	Conns, Listeners, Devices int
	// Cached is the number of bytes of registered memory in the cache.
	Cached int
}

// Stats returns the statistics of the loop.
func (l *Loop) Stats() LoopStats {
	st := LoopStats{
		Dispatches: l.counts.dispatches.Load(),
		Wakeups:    l.counts.wakeups.Load(),
		Handled:    l.counts.handled.Load(),
	}
	l.mu.Lock()
	st.Conns, st.Listeners, st.Devices = len(l.conns), len(l.listeners), len(l.devices.list)
	l.mu.Unlock()
	l.cache.mu.Lock()
	st.Cached = l.cache.bytes
	l.cache.mu.Unlock()
	return st
}

// ListenerStats contains statistics of a listener. The counters start when it is made.
type ListenerStats struct {
	// Requests counts the requests of peers, Accepted and Rejected their answers.
	Requests, Accepted, Rejected uint64
	// Failed counts the accepted connections that were never established.
	Failed uint64

	// Waiting is the number of unanswered requests, Open the number of accepted connections that
	// have not ended.
	Waiting, Open int

	// Conns has the sums of the accepted connections.
	Conns ConnStats
}

// Stats returns the statistics of the listener.
func (ln *Listener) Stats() ListenerStats {
	st := ListenerStats{
		Requests: ln.requests.Load(),
		Accepted: ln.accepted.Load(),
		Rejected: ln.rejected.Load(),
		Failed:   ln.origin.failed.Load(),
		Waiting:  int(ln.unanswered.Load()),
	}
	st.Conns, st.Open = ln.origin.conns.Sum()
	return st
}

// DialerStats contains statistics of a dialer. The counters start with its first use.
type DialerStats struct {
	// Dials counts the calls of Dial and Connect, Failed the calls whose connection was never
	// established.
	Dials, Failed uint64

	// Open is the number of connections that have not ended, including those that connect.
	Open int

	// Conns has the sums of the connections.
	Conns ConnStats
}

// Stats returns the statistics of the dialer.
func (d *Dialer) Stats() DialerStats {
	st := DialerStats{Failed: d.origin.failed.Load(), Dials: d.dials.Load()}
	st.Conns, st.Open = d.origin.conns.Sum()
	return st
}

// origin counts the connections of a dialer or listener.
type origin struct {
	conns  tally.Tally[*Conn, ConnStats]
	failed atomic.Uint64 // connections that were never established
}
