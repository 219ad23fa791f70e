package rmsg

import (
	"sync/atomic"

	"github.com/goverbs/verbs/internal/tally"
)

// SocketStats contains statistics of a socket, or their sums: see [ListenerStats] and
// [DialerStats]. The counters start with the socket.
type SocketStats struct {
	// MessagesSent and BytesSent count the messages whose status has become Sent,
	// MessagesReceived and BytesReceived those that the program has taken.
	MessagesSent, MessagesReceived uint64
	BytesSent, BytesReceived       uint64
	// LargeSent and LargeReceived count the messages above Eager that were announced
	// to the peer and by it.
	LargeSent, LargeReceived uint64
	// AcksSent and AcksReceived count the frames without a message that grant
	// credits or confirm messages above Eager. Messages carry both as well.
	AcksSent, AcksReceived uint64
	// WouldBlock counts the times that Post, including calls by Send, found the send
	// queue full; BufferWaits the times that Send found SendBuffer or Window full.
	WouldBlock, BufferWaits uint64
	// CreditWaits counts the times that the next message had to wait for credits.
	CreditWaits uint64

	// The state of now follows; sums have that of sockets that have not ended.

	// Queued is the number of messages that are posted and not yet Sent or Failed.
	Queued int
	// Unread is the number of messages that have arrived or are announced, and that
	// the program has not taken.
	Unread int
	// Credits is the number of messages that may be sent before the peer grants more.
	Credits int
	// Memory is the number of bytes registered for the socket, including buffers that
	// the program holds and those in the loop's cache.
	Memory int
}

// Stats returns the statistics of the socket.
func (s *Socket) Stats() SocketStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.stats
	st.Queued = s.out.pending
	st.Unread = int(s.in.received - s.in.head)
	st.Credits = int(s.out.granted - s.out.sent)
	if s.endpoint != nil {
		st.Memory = int(s.arena.registered.Load())
	}
	return st
}

// LoopStats contains statistics of a loop. The counters start when the loop is made.
type LoopStats struct {
	// Dispatches counts the calls of Dispatch, also by Run and DispatchWait.
	Dispatches uint64
	// Wakeups counts the times that Run or DispatchWait slept and was woken.
	Wakeups uint64
	// Handled counts the handled events: the sum of what Dispatch returned.
	Handled uint64

	// Sockets, Listeners and Devices are the numbers of those that are open.
	Sockets, Listeners, Devices int
	// Cached is the number of bytes of registered memory in the cache.
	Cached int
}

// Stats returns the statistics of the loop.
func (l *Loop) Stats() LoopStats {
	st := LoopStats{
		Dispatches: (l.counts.dispatches.Load() + 1) / 2,
		Wakeups:    l.counts.wakeups.Load(),
		Handled:    l.counts.handled.Load(),
	}
	l.mu.Lock()
	st.Sockets, st.Listeners, st.Devices = len(l.sockets), len(l.listeners), len(l.devices)
	l.mu.Unlock()
	l.cache.mu.Lock()
	st.Cached = l.cache.bytes
	l.cache.mu.Unlock()
	return st
}

// ListenerStats contains statistics of a listener. The counters start when it is made.
type ListenerStats struct {
	// Requests counts the requests of peers, Accepted and Rejected their answers.
	// Rejected includes requests beyond Backlog, those that waited too long, and
	// those of peers that do not use this package.
	Requests, Accepted, Rejected uint64
	// Failed counts the accepted sockets that were never established.
	Failed uint64

	// Waiting is the number of unanswered requests, Open that of accepted sockets that have
	// not ended.
	Waiting, Open int

	// Sockets has the sums of the accepted sockets.
	Sockets SocketStats
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
	st.Sockets, st.Open = ln.origin.sockets.Sum()
	return st
}

// DialerStats contains statistics of a dialer. The counters start with its first use.
type DialerStats struct {
	// Dials counts the calls of Dial and Connect, Failed those whose socket was never
	// established.
	Dials, Failed uint64

	// Open is the number of sockets that have not ended, including those that connect.
	Open int

	// Sockets has the sums of the sockets.
	Sockets SocketStats
}

// Stats returns the statistics of the dialer.
func (d *Dialer) Stats() DialerStats {
	st := DialerStats{Failed: d.origin.failed.Load(), Dials: d.dials.Load()}
	st.Sockets, st.Open = d.origin.sockets.Sum()
	return st
}

// origin is the part of a dialer or listener that its sockets know.
type origin struct {
	sockets tally.Tally[*Socket, SocketStats]
	failed  atomic.Uint64 // sockets that were never established
}
