package rmsg

import (
	"errors"
	"fmt"

	"github.com/goverbs/verbs"
)

// sending is the sending half of a socket. A message passes through these queues:
//
//	queue      posted by the program, not yet by the socket
//	inFlight   sent at once, until the send completes
//	announced  until the peer reports that it has read them
type sending struct {
	queue     fifo
	inFlight  fifo
	announced fifo
	pending   int // in all three
	eager     int // largest message that is sent at once, in bytes

	sent          uint32 // number of messages
	granted       uint32 // number of messages that the peer allows
	announcedRead uint32 // number of announced messages that the peer has read
	ackInFlight   bool   // an ack is in flight; there is one at a time
	blocked       bool   // Post has returned ErrWouldBlock
	stalled       bool   // the first message waits for credits

	wrs    [maxBatch]verbs.SendWR
	sges   [maxBatch][1]verbs.SGE
	inline [maxBatch][announceSize]byte
}

func (q *sending) init(size int) {
	q.queue.ring = make([]*Buffer, size)
	q.inFlight.ring = make([]*Buffer, size)
	q.announced.ring = make([]*Buffer, maxAnnounced)
}

// fifo is a queue of buffers in a ring of fixed size.
type fifo struct {
	ring     []*Buffer
	first, n int
}

func (q *fifo) at(i int) **Buffer { return &q.ring[(q.first+i)%len(q.ring)] }

func (q *fifo) push(b *Buffer) {
	*q.at(q.n) = b
	q.n++
}

// pop removes and returns the oldest buffer.
func (q *fifo) pop() *Buffer {
	b := *q.at(0)
	*q.at(0) = nil
	q.first, q.n = (q.first+1)%len(q.ring), q.n-1
	return b
}

// Alloc returns a buffer for a message of n bytes; SetLen changes the length. The program
// may send the buffer any number of times, and must free it. Alloc fails with the
// socket's Err once the socket has ended.
func (s *Socket) Alloc(n int) (*Buffer, error) {
	b, err := s.alloc(n, false)
	return b, fail("allocate message to", s.addr, err)
}

// alloc returns a buffer to send, for the program or, if copies is set, for Send.
func (s *Socket) alloc(n int, copies bool) (*Buffer, error) {
	s.mu.Lock()
	state, most, err := s.state, int(s.peer.max), s.err
	s.mu.Unlock()
	switch {
	case state == Connecting:
		return nil, ErrNotConnected
	case state == Disconnected || copies && err != nil:
		return nil, err
	case n < 0 || n > most:
		return nil, fmt.Errorf("%w: %d bytes of at most %d", ErrTooLarge, n, most)
	}
	return s.arena.get(n, copies)
}

// Post queues a buffer of this socket, which is sent as soon as the peer has room, and
// does not wait. The program owns the buffer again when its status is no longer Queued.
// If SendQueue messages are posted and not yet sent, Post returns ErrWouldBlock and does
// not take the buffer. It returns [verbs.ErrClosed] after Disconnect or Close,
// [verbs.ErrDisconnected] while the peer disconnects, and the socket's Err after its end.
func (s *Socket) Post(b *Buffer) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.post(b); err == ErrWouldBlock {
		return err // without an allocation
	} else if err != nil {
		return fail("send to", s.addr, err)
	}
	return nil
}

func (s *Socket) post(b *Buffer) error {
	if err := s.sendable(); err != nil {
		return err
	}
	switch {
	case b.s != s:
		return fmt.Errorf("%w: it belongs to %v", ErrBuffer, b.s)
	case !b.ownedByProgram():
		return fmt.Errorf("%w: it is %v", ErrBuffer, b.Status())
	case uint32(b.n) > s.peer.max:
		return fmt.Errorf("%w: %d bytes of at most %d", ErrTooLarge, b.n, s.peer.max)
	case s.pending == len(s.queue.ring):
		s.blocked = true
		s.stats.WouldBlock++
		return ErrWouldBlock
	}
	b.set(Queued)
	s.queue.push(b)
	s.pending++
	s.sendQueued()
	return nil
}

// sendable returns why nothing can be posted, or nil.
func (s *Socket) sendable() error {
	switch {
	case s.err != nil:
		return s.err
	case s.state == Connecting:
		return ErrNotConnected
	case s.goodEnd == verbs.ErrClosed:
		return verbs.ErrClosed
	case s.state != Established:
		return verbs.ErrDisconnected
	}
	return nil
}

// frame returns a frame of a kind, with the counts that all frames have.
func (s *Socket) frame(k kind) frame {
	return frame{kind: k, granted: s.grants(), read: s.reads.done}
}

// markReported records the counts that a frame has reported to the peer.
func (s *Socket) markReported() { s.reportedGrants, s.reportedReads = s.grants(), s.reads.done }

// sendQueued sends the queued messages that the peer has room for, several with one
// doorbell.
func (s *Socket) sendQueued() {
	for s.queue.n > 0 && s.err == nil {
		n, offers := 0, s.announced.n
		for n < min(s.queue.n, maxBatch) {
			b := *s.queue.at(n)
			if b.n > s.eager {
				offers++
			}
			if s.sent+uint32(n) == s.granted || offers > maxAnnounced {
				break
			}
			s.buildRequest(b, n)
			n++
		}
		if n == 0 {
			if s.sent == s.granted && !s.stalled {
				s.stalled = true
				s.stats.CreditWaits++
			}
			return
		}
		s.stalled = false
		posted, err := s.qp.PostSend(s.wrs[:n]...)
		if posted > 0 {
			s.markReported()
		}
		for range posted {
			b := s.queue.pop()
			s.sent++
			if b.n <= s.eager {
				s.inFlight.push(b)
			} else {
				s.announced.push(b)
				s.stats.LargeSent++
			}
		}
		if err != nil {
			s.handlePostError(err)
			return
		}
	}
}

// handlePostError handles a request that could not be posted. A queue is full if the
// kernel has not yet released completed requests: the next completion retries. It is
// closed if the connection has ended: the reason follows.
func (s *Socket) handlePostError(err error) {
	if !errors.Is(err, verbs.ErrQueueFull) && !errors.Is(err, verbs.ErrClosed) {
		s.fail(err)
	}
}

// buildRequest makes the n-th request of a batch: a message, or its announcement. Each is
// signaled: siw may send unsignaled requests directly from the buffer, at any later time
// (siw_qp_prepare_tx).
func (s *Socket) buildRequest(b *Buffer, n int) {
	f := s.frame(kindMessage)
	f.size, f.seq = uint32(b.n), s.sent+uint32(n)
	wr := &s.wrs[n]
	*wr = verbs.SendWR{ID: s.wrID(reqMessage, 0), Opcode: verbs.OpSend, Flags: verbs.SendSignaled}
	if b.n <= s.eager {
		f.put(b.mem)
		s.sges[n][0] = b.mr.SGE(b.at, headerSize+b.n)
		wr.SGL = s.sges[n][:]
		return
	}
	f.kind = kindAnnounce
	f.addr, f.rkey = b.mr.Addr()+uint64(b.at)+headerSize, b.mr.RKey()
	f.put(s.inline[n][:])
	wr.ID, wr.Inline = s.wrID(reqAnnounce, 0), s.inline[n][:]
}

// postFrame sends a frame without a message and reports whether it was posted.
func (s *Socket) postFrame(f *frame, r request) bool {
	n := f.put(s.inline[0][:])
	s.wrs[0] = verbs.SendWR{ID: s.wrID(r, 0), Opcode: verbs.OpSend, Flags: verbs.SendSignaled, Inline: s.inline[0][:n]}
	if _, err := s.qp.PostSend(s.wrs[:1]...); err != nil {
		s.handlePostError(err)
		return false
	}
	s.markReported()
	return true
}

// flushAck sends an ack if one is due: at once if an announced message has been read, so
// that the peer can reuse the buffer, and otherwise if the peer may have run out of
// credits, or half of them can be returned.
//
// The number of acks that the peer has not processed is bounded: each ack reports
// messages whose credits the peer does not know to be returned, and it sent at most
// Credits of these before it processed one. At most maxAnnounced of them were announced;
// two acks report half the credits each, and one reports that it has run out. So the
// receives beyond the credits, see extraReceives, always suffice, and acks need no credits.
func (s *Socket) flushAck() {
	owed := s.grants() - s.reportedGrants
	due := s.reads.done != s.reportedReads || owed > 0 && (s.reportedGrants == s.received || owed >= max(1, uint32(len(s.ring))/2))
	if !due || s.ackInFlight || s.bye.heard() || s.err != nil {
		return
	}
	f := s.frame(kindAck)
	if s.ackInFlight = s.postFrame(&f, reqAck); s.ackInFlight {
		s.stats.AcksSent++
	}
}

// completeSend returns a buffer to the program, or frees it if Send made it.
func (s *Socket) completeSend(b *Buffer, st Status) {
	s.pending--
	if st == Sent {
		s.stats.MessagesSent++
		s.stats.BytesSent += uint64(b.n)
	}
	if b.err = nil; st == Failed {
		b.err = s.err
	}
	if b.freeWhenSent {
		b.set(Released)
		s.arena.put(b)
	} else {
		b.set(st)
		if s.l.opt.Callbacks.Sent != nil {
			s.l.sent = append(s.l.sent, b)
		}
	}
	if s.blocked && s.pending <= len(s.queue.ring)/2 {
		s.blocked = false
		s.l.writable = true
	}
}

// applyCounts handles the counts of a frame about this side's messages.
func (s *Socket) applyCounts(f *frame) error {
	if f.granted-s.granted > s.peer.credits || f.granted-s.sent > s.peer.credits {
		return protocol("it grants %d messages when %d were granted and %d sent", f.granted, s.granted, s.sent)
	}
	if f.read-s.announcedRead > uint32(s.announced.n) {
		return protocol("it read %d messages when it had read %d of %d more", f.read, s.announcedRead, s.announced.n)
	}
	s.granted = f.granted
	for ; s.announcedRead != f.read; s.announcedRead++ {
		s.completeSend(s.announced.pop(), Sent)
	}
	return nil
}

// failPending fails all messages that have not been sent.
func (s *Socket) failPending() {
	s.blocked = false
	for _, q := range []*fifo{&s.inFlight, &s.announced, &s.queue} {
		for q.n > 0 {
			s.completeSend(q.pop(), Failed)
		}
	}
}
