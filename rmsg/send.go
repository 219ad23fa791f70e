package rmsg

import (
	"errors"
	"fmt"

	"github.com/goverbs/verbs"
)

// sending is the half of a socket that sends. Its messages are, in turn:
//
//	queue      posted by the program, not yet by the socket
//	flight     sent at once, until the send completes
//	announced  until the peer says that it has read them
//
// A message that is sent at once has a frame for each of the peer's segments, which are
// posted together. If only some could be, cut is how many, of the first one in
// queue, and nothing else may be posted before the rest.
type sending struct {
	queue       []*Buffer // a ring
	first, many int       // of queue
	cut         int
	pending     int // in all three
	flight      []*Buffer
	places      []int // free ones of flight
	posted      int   // frames of flight
	announced   [maxAnnounced]*Buffer
	eager       int // bytes of a message that is sent at once, and
	segment     int // of one of its frames

	sent     uint32 // messages
	used     uint32 // frames with messages, sent
	granted  uint32 // how many there may be
	offered  uint32 // messages announced
	taken    uint32 // and read by the peer
	ackBusy  bool   // one ack at a time
	blocked  bool   // Post has returned ErrWouldBlock
	stalled  bool   // the first message lacks credits
	wrs      [maxFrames]verbs.SendWR
	sges     [maxFrames][1]verbs.SGE
	announce [maxFrames][announceSize]byte
}

func (q *sending) init(size int) {
	q.queue = make([]*Buffer, size)
	q.flight = make([]*Buffer, size)
	q.places = make([]int, size)
	for i := range q.places {
		q.places[i] = i
	}
}

// Alloc returns a buffer for a message of n bytes, which its Bytes are; SetLen changes
// that. The program frees the buffer, after it was sent any number of times. Alloc fails
// with the socket's Err once the socket has ended.
func (s *Socket) Alloc(n int) (*Buffer, error) {
	b, err := s.alloc(n, false)
	return b, fail("allocate message to", s.addr, err)
}

// alloc returns a buffer to send, for Send to copy to or for the program.
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

// Post sends a buffer of this socket, as soon as the peer has room, and returns
// at once: the buffer is the program's again when its status is no longer
// Queued. If too many messages are queued already Post returns ErrWouldBlock, and does
// not take the buffer. After Disconnect or Close it returns [verbs.ErrClosed], while the
// peer disconnects [verbs.ErrDisconnected], and when the socket has ended its Err.
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
	case !b.mine():
		return fmt.Errorf("%w: it is %v", ErrBuffer, b.Status())
	case uint32(b.n) > s.peer.max:
		return fmt.Errorf("%w: %d bytes of at most %d", ErrTooLarge, b.n, s.peer.max)
	case s.pending == len(s.queue):
		s.blocked = true
		s.stats.WouldBlock++
		return ErrWouldBlock
	}
	b.set(Queued)
	s.queue[(s.first+s.many)%len(s.queue)] = b
	s.many++
	s.pending++
	s.pump()
	return nil
}

// sendable returns why nothing can be posted.
func (s *Socket) sendable() error {
	switch {
	case s.err != nil:
		return s.err
	case s.state == Connecting:
		return ErrNotConnected
	case s.disconnect:
		return verbs.ErrClosed
	case s.state != Established:
		return verbs.ErrDisconnected
	}
	return nil
}

// frame returns a frame of a kind, with the counts that all have.
func (s *Socket) frame(k kind) frame {
	return frame{kind: k, granted: s.grants(), read: s.reads.done}
}

// reported notes that a frame was sent to the peer.
func (s *Socket) reported() { s.toldGrants, s.toldReads = s.grants(), s.reads.done }

// pump sends what the peer has room for, several messages with one doorbell.
func (s *Socket) pump() {
	for s.many > 0 && s.err == nil {
		n, count, places, offers := 0, 0, 0, s.offered-s.taken
		for count < s.many {
			b, from := s.queue[(s.first+count)%len(s.queue)], 0
			if count == 0 {
				from = s.cut
			}
			whole := b.n <= s.eager
			k := 1
			if whole {
				k = frames(b.n, s.segment) - from
			}
			if s.granted-s.used-uint32(n) < uint32(k) {
				if n == 0 && !s.stalled {
					s.stalled = true
					s.stats.CreditWaits++
				}
				break
			}
			if n+k > len(s.wrs) {
				break
			}
			if whole {
				if n+s.posted+k > s.inFlight() {
					break
				}
				places++
				s.message(b, s.places[len(s.places)-places], s.sent+uint32(count), n, from)
			} else if offers < maxAnnounced {
				offers++
				s.offer(&s.wrs[n], b, s.sent+uint32(count), n)
			} else {
				break
			}
			n += k
			count++
		}
		if n == 0 {
			return
		}
		s.stalled = false
		posted, err := s.qp.PostSend(s.wrs[:n]...)
		for left := posted; left > 0; {
			b := s.queue[s.first]
			k := 1
			if b.n <= s.eager {
				k = min(left, frames(b.n, s.segment)-s.cut)
				s.posted += k
			}
			left -= k
			s.used += uint32(k)
			if s.cut == 0 {
				s.reported()
			}
			if s.cut += k; b.n <= s.eager && s.cut < frames(b.n, s.segment) {
				break
			}
			s.cut = 0
			s.queue[s.first] = nil
			s.first, s.many = (s.first+1)%len(s.queue), s.many-1
			s.sent++
			if b.n <= s.eager {
				last := len(s.places) - 1
				s.flight[s.places[last]] = b
				s.places = s.places[:last]
			} else {
				s.announced[s.offered%maxAnnounced] = b
				s.offered++
				s.stats.LargeSent++
			}
		}
		if err != nil {
			s.unposted(err)
			return
		}
	}
}

// inFlight is how many frames of messages may be in the send queue.
func (s *Socket) inFlight() int { return max(len(s.queue), maxFrames) }

// unposted handles a request that could not be posted. A full queue is that of a
// kernel which has not yet let go of what has completed: the next completion
// tries again. A closed one is that of a connection which has ended: the reason
// follows.
func (s *Socket) unposted(err error) {
	if !errors.Is(err, verbs.ErrQueueFull) && !errors.Is(err, verbs.ErrClosed) {
		s.fail(err)
	}
}

// message makes the frames of a message that is sent at once, from one of them
// on, the requests of a batch from the n-th on. The last is signaled.
func (s *Socket) message(b *Buffer, place int, seq uint32, n, from int) {
	for i, k := from, frames(b.n, s.segment); i < k; i, n = i+1, n+1 {
		at, end := i*s.segment, min((i+1)*s.segment, b.n)
		if i > 0 {
			s.sges[n][0] = b.mr.SGE(b.at+headerSize+at, end-at)
		} else {
			f := s.frame(kindMessage)
			f.size, f.seq = uint32(b.n), seq
			f.put(b.mem)
			s.sges[n][0] = b.mr.SGE(b.at, headerSize+end)
		}
		s.wrs[n] = verbs.SendWR{ID: s.wrID(reqMessage, place), Opcode: verbs.OpSend, SGL: s.sges[n][:]}
		if i == k-1 {
			s.wrs[n].Flags = verbs.SendSignaled
		}
	}
}

// offer makes a request the announcement of a message.
func (s *Socket) offer(wr *verbs.SendWR, b *Buffer, seq uint32, n int) {
	f := s.frame(kindAnnounce)
	f.size, f.seq = uint32(b.n), seq
	f.addr, f.rkey = b.mr.Addr()+uint64(b.at)+headerSize, b.mr.RKey()
	f.put(s.announce[n][:])
	*wr = verbs.SendWR{ID: s.wrID(reqAnnounce, 0), Opcode: verbs.OpSend, Flags: verbs.SendSignaled, Inline: s.announce[n][:]}
}

// postFrame sends a frame without a message and reports whether it could.
func (s *Socket) postFrame(f *frame, r request) bool {
	if s.cut > 0 {
		return false
	}
	n := f.put(s.announce[0][:])
	s.wrs[0] = verbs.SendWR{ID: s.wrID(r, 0), Opcode: verbs.OpSend, Flags: verbs.SendSignaled, Inline: s.announce[0][:n]}
	if _, err := s.qp.PostSend(s.wrs[:1]...); err != nil {
		s.unposted(err)
		return false
	}
	s.reported()
	return true
}

// flushAck reports to the peer what it does not know, when it should: at once if
// a message of its has been read, for it to have the buffer back; and if it
// may lack the credits for its next message, or has used half of them.
//
// How many acks can be at the peer that has not looked at them? Each reports
// messages of the peer's for which it does not know to have the credit back; of
// these it sent no more than Credits before it looked. Of them no more than
// maxAnnounced were announced; two acks report half the credits each. An ack for lack
// of credits grants at least one more, and there is none when the peer has
// credits for the largest message, so there are as many as that has frames. So the
// receives beyond the credits, see spare, always suffice, and acks need none themselves.
func (s *Socket) flushAck() {
	owed := s.grants() - s.toldGrants
	short := int(s.toldGrants-s.arrived) < s.lot
	due := s.reads.done != s.toldReads || owed > 0 && (short || owed >= max(1, uint32(len(s.ring))/2))
	if !due || s.ackBusy || s.peerBye || s.err != nil {
		return
	}
	f := s.frame(kindAck)
	if s.ackBusy = s.postFrame(&f, reqAck); s.ackBusy {
		s.stats.AcksSent++
	}
}

// finished gives a buffer back to the program.
func (s *Socket) finished(b *Buffer, st Status) {
	s.pending--
	if st == Sent {
		s.stats.MessagesSent++
		s.stats.BytesSent += uint64(b.n)
	}
	if b.err = nil; st == Failed {
		b.err = s.err
	}
	if b.auto {
		b.set(Released)
		s.arena.put(b)
	} else {
		b.set(st)
		if s.l.opt.Callbacks.Sent != nil {
			s.l.sent = append(s.l.sent, b)
		}
	}
	if s.blocked && s.pending <= len(s.queue)/2 {
		s.blocked = false
		s.l.writable = true
	}
}

// credit takes what a frame says of this side's messages.
func (s *Socket) credit(f *frame) error {
	if f.granted-s.granted > s.peer.credits || f.granted-s.used > s.peer.credits {
		return protocol("it grants %d frames when %d were granted and %d sent", f.granted, s.granted, s.used)
	}
	if f.read-s.taken > s.offered-s.taken {
		return protocol("it read %d messages of %d announced", f.read, s.offered)
	}
	s.granted = f.granted
	for ; s.taken != f.read; s.taken++ {
		at := &s.announced[s.taken%maxAnnounced]
		s.finished(*at, Sent)
		*at = nil
	}
	return nil
}

// abandon fails all that has not been sent.
func (s *Socket) abandon() {
	s.blocked = false
	for i, b := range s.flight {
		if b != nil {
			s.flight[i] = nil
			s.finished(b, Failed)
		}
	}
	for ; s.taken != s.offered; s.taken++ {
		s.finished(s.announced[s.taken%maxAnnounced], Failed)
	}
	for ; s.many > 0; s.many-- {
		s.finished(s.queue[s.first], Failed)
		s.first = (s.first + 1) % len(s.queue)
	}
	s.cut = 0
}
