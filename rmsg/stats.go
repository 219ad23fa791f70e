package rmsg

// SocketStats are figures of a socket. The counters begin when the socket is made.
type SocketStats struct {
	// MessagesSent and BytesSent count the messages whose status has become Sent,
	// MessagesReceived and BytesReceived those that the program has taken.
	MessagesSent, MessagesReceived uint64
	BytesSent, BytesReceived       uint64
	// LargeSent and LargeReceived count the messages above Eager that were announced
	// to the peer and by it.
	LargeSent, LargeReceived uint64
	// AcksSent and AcksReceived count the frames without a message that grant
	// credits or confirm messages above Eager. Both also go with messages.
	AcksSent, AcksReceived uint64
	// WouldBlock counts the times that Post, also the one in Send, found the send
	// queue full; BufferWaits those that Send found SendBuffer or Window in use.
	WouldBlock, BufferWaits uint64
	// CreditWaits counts the times that the next message in the queue had to wait
	// for credits of the peer.
	CreditWaits uint64

	// Queued is how many messages are posted and not yet Sent or Failed.
	Queued int
	// Unread is how many messages have arrived, or are announced, and the program has
	// not taken.
	Unread int
	// Credits is how many receives of the peer are free, as far as it is known.
	Credits int
	// Memory is how many bytes are registered for the socket, with the buffers that
	// the program holds and those in the loop's cache.
	Memory int
}

// Stats returns the figures of the socket.
func (s *Socket) Stats() SocketStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.stats
	st.Queued = s.pending
	st.Unread = int(s.received - s.head)
	st.Credits = int(s.granted - s.sent)
	if s.endpoint != nil {
		st.Memory = int(s.arena.registered.Load())
	}
	return st
}

// LoopStats are figures of a loop. The counters begin when the loop is made.
type LoopStats struct {
	// Dispatches counts the calls of Dispatch, also those of Run and DispatchWait.
	Dispatches uint64
	// Wakeups counts the times that Run or DispatchWait slept and was woken.
	Wakeups uint64
	// Handled counts the events that were handled, as Dispatch returns them.
	Handled uint64

	// Sockets, Listeners and Devices are how many are open.
	Sockets, Listeners, Devices int
	// Cached is how many bytes of registered memory are kept for the next messages.
	Cached int
}

// Stats returns the figures of the loop.
func (l *Loop) Stats() LoopStats {
	st := LoopStats{
		Dispatches: (l.rounds.Load() + 1) / 2,
		Wakeups:    l.wakeups.Load(),
		Handled:    l.handled.Load(),
	}
	l.mu.Lock()
	st.Sockets, st.Listeners, st.Devices = len(l.sockets), len(l.listeners), len(l.devices)
	l.mu.Unlock()
	l.cache.mu.Lock()
	st.Cached = l.cache.bytes
	l.cache.mu.Unlock()
	return st
}

// ListenerStats are figures of a listener. The counters begin when it is made.
type ListenerStats struct {
	// Requests counts the requests of peers, Accepted and Rejected how they were
	// answered. Rejected are also those that did not fit Backlog, waited too long, or
	// came from no peer of this package.
	Requests, Accepted, Rejected uint64

	// Waiting is how many requests have no answer.
	Waiting int
}

// Stats returns the figures of the listener.
func (ln *Listener) Stats() ListenerStats {
	return ListenerStats{
		Requests: ln.requests.Load(),
		Accepted: ln.accepted.Load(),
		Rejected: ln.rejected.Load(),
		Waiting:  int(ln.unanswered.Load()),
	}
}
