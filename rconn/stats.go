package rconn

import (
	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	sums "github.com/goverbs/verbs/internal/tally"
)

// Stats contains statistics of a connection, see [Conn.Stats], or their sums, see
// [ListenerStats] and [DialerStats]. Counters start at 0.
type Stats struct {
	// Requests posted, by kind, and their bytes; Put, Get, AwaitDelivery and Counter post some,
	// too. On iWARP a READ into several spans counts once for each.
	Sends, Writes, Reads, Atomics Traffic
	// Others counts the memory windows bound, keys invalidated and ranges flushed.
	Others uint64
	// Received counts the peer's messages and WRITEs with an immediate, without advertisements.
	Received Traffic

	// AdvertsSent counts the Sends that [Advert] made, AdvertsReceived the valid advertisements in
	// the receives for them, AdvertsInvalid the other messages there.
	AdvertsSent, AdvertsReceived, AdvertsInvalid uint64

	SendQueue, RecvQueue QueueStats
}

// Traffic is the number of requests or messages, and of their bytes.
type Traffic struct {
	Requests, Bytes uint64
}

func (t *Traffic) add(n int) {
	t.Requests++
	t.Bytes += uint64(n)
}

// QueueStats contains statistics of one of the queues of a connection. In sums the first four count
// open connections only.
type QueueStats struct {
	Depth     int    // requests that may be in flight
	Now, Most int    // requests in flight: now, and the most at a time
	Ready     int    // completions that wait for Await or Poll
	Posted    uint64 // requests
	Completed uint64 // completions polled from the CQ, less than Posted if not all are signaled
	Taken     uint64 // completions that Await and Poll have returned
	Failed    uint64 // completions with an error
	Foreign   uint64 // completions of requests that were not posted by the Conn, see [Conn.Endpoint]
	Stalls    uint64 // posts that found the queue full; Put, Get, AwaitDelivery and Counter wait for room then
	Waits     uint64 // calls that had to wait for completions
	Wakeups   uint64 // times that an event or another call woke such a call
}

// Stats returns the connection's statistics of this moment: completions that have arrived are
// counted, and wait for Await and Poll. It may be called at any time, also after Close.
func (c *Conn) Stats() Stats {
	for _, q := range []*queue{&c.send.queue, &c.recv.queue} {
		q.mu.Lock()
		q.poll()
		q.mu.Unlock()
	}
	return c.polled()
}

// polled returns the statistics as calls have left them.
func (c *Conn) polled() Stats {
	s, r := &c.send, &c.recv
	s.mu.Lock()
	send := s.current()
	stats := s.counts
	stats.SendQueue = send
	s.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	stats.RecvQueue = r.current()
	stats.Received, stats.AdvertsReceived, stats.AdvertsInvalid = r.received, r.valid, r.invalid
	return stats
}

// current returns the statistics of a queue. The caller holds mu.
func (q *queue) current() QueueStats {
	s := q.stats
	s.Depth, s.Now, s.Ready, s.Posted = int(q.depth), int(q.head-q.tail), q.ready.Len(), q.head
	return s
}

func (s *Stats) count(o verbs.Opcode, n int) {
	switch o {
	case verbs.OpSend, verbs.OpSendImm, verbs.OpSendInv:
		s.Sends.add(n)
	case verbs.OpRDMAWrite, verbs.OpRDMAWriteImm:
		s.Writes.add(n)
	case verbs.OpRDMARead, verbs.OpRDMAReadInv:
		s.Reads.add(n)
	case verbs.OpCompareSwap, verbs.OpFetchAdd, verbs.OpAtomicWrite:
		s.Atomics.add(n)
	default:
		s.Others++
	}
}

// ListenerStats contains a listener's counters.
type ListenerStats struct {
	cm.ListenerStats
	Conns Stats // the sums of the accepted connections
}

// Stats returns the listener's counters. It may be called at any time, also after Close.
func (l *Listener) Stats() ListenerStats {
	s := ListenerStats{ListenerStats: l.l.Stats()}
	s.Conns, s.Open = l.tally.Sum()
	return s
}

// DialerStats contains a dialer's counters.
type DialerStats struct {
	Dials  uint64 // started
	Failed uint64 // dials that failed
	Open   int    // connections that are not closed
	Conns  Stats  // the sums of the connections
}

// Stats returns the dialer's counters.
func (d *Dialer) Stats() DialerStats {
	s := DialerStats{Failed: d.failed.Load(), Dials: d.dials.Load()}
	s.Conns, s.Open = d.tally.Sum()
	return s
}

// tally has the connections of a Listener or Dialer.
type tally = sums.Tally[*Conn, Stats]
