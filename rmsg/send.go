package rmsg

import (
	"errors"
	"fmt"

	"github.com/goverbs/verbs"
)

// sending is the half of a socket that sends. Its messages are, in turn:
//
//	queue      posted by the program, not yet by the socket
//	flight     sent whole, until the send completes
//	announced  until the peer says that it has read them
type sending struct {
	queue       []*Buffer // a ring
	first, many int       // of queue
	pending     int       // in all three
	flight      []*Buffer
	places      []int // free ones of flight
	announced   [maxAnnounced]*Buffer
	eager       int // bytes that both sides send whole

	sent     uint32 // messages
	granted  uint32 // how many there may be
	offered  uint32 // messages announced
	taken    uint32 // and read by the peer
	ackBusy  bool   // one ack at a time
	blocked  bool   // Post gave ErrWouldBlock
	wrs      [8]verbs.SendWR
	sges     [8][1]verbs.SGE
	announce [8][announceSize]byte
}

func (q *sending) init(size int) {
	q.queue = make([]*Buffer, size)
	q.flight = make([]*Buffer, size)
	q.places = make([]int, size)
	for i := range q.places {
		q.places[i] = i
	}
}

// Alloc makes a buffer for a message of n bytes, from memory that is used again
// and again. The program frees it, after it was sent any number of times.
func (s *Socket) Alloc(n int) (*Buffer, error) {
	const op = "allocate message to"
	s.mu.Lock()
	state, most, err := s.state, int(s.peer.max), s.err
	s.mu.Unlock()
	switch {
	case state == Connecting:
		return nil, fail(op, s.addr, ErrNotConnected)
	case state == Disconnected:
		return nil, fail(op, s.addr, err)
	case n < 0 || n > most:
		return nil, fail(op, s.addr, fmt.Errorf("%w: %d bytes of at most %d", ErrTooLarge, n, most))
	}
	b, err := s.arena.get(n)
	return b, fail(op, s.addr, err)
}

// Post sends a buffer of this socket, as soon as the peer has room, and returns
// at once: the buffer is the program's again when its status is no longer
// Queued. ErrWouldBlock means that it was not taken, as too many are queued
// already.
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
		return ErrWouldBlock
	}
	b.set(Queued)
	s.queue[(s.first+s.many)%len(s.queue)] = b
	s.many++
	s.pending++
	s.pump()
	return nil
}

// sendable tells why nothing can be posted.
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

// frame is one of a kind, with what all frames say.
func (s *Socket) frame(k kind) frame {
	return frame{kind: k, granted: s.grants(), read: s.reads.done}
}

// reported notes that the peer is told what frame says.
func (s *Socket) reported() { s.toldGrants, s.toldReads = s.grants(), s.reads.done }

// pump sends what the peer has room for, several messages with one doorbell.
func (s *Socket) pump() {
	for s.many > 0 && s.err == nil {
		n, places, offers := 0, 0, s.offered-s.taken
		for n < min(len(s.wrs), s.many) && s.sent+uint32(n) != s.granted {
			b := s.queue[(s.first+n)%len(s.queue)]
			wr := &s.wrs[n]
			if b.n <= s.eager {
				places++
				s.message(wr, b, s.places[len(s.places)-places], n)
			} else if offers < maxAnnounced {
				offers++
				s.offer(wr, b, n)
			} else {
				break
			}
			n++
		}
		if n == 0 {
			return
		}
		posted, err := s.qp.PostSend(s.wrs[:n]...)
		if posted > 0 {
			s.reported()
		}
		for range posted {
			b := s.queue[s.first]
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
			}
		}
		if err != nil {
			s.unposted(err)
			return
		}
	}
}

// unposted is a request that could not be posted. A full queue is that of a
// kernel which has not yet let go of what has completed: the next completion
// tries again. A closed one is that of a connection which has ended: why is
// about to be told.
func (s *Socket) unposted(err error) {
	if !errors.Is(err, verbs.ErrQueueFull) && !errors.Is(err, verbs.ErrClosed) {
		s.fail(err)
	}
}

// message makes the n-th request of a batch a message that is sent whole.
func (s *Socket) message(wr *verbs.SendWR, b *Buffer, place, n int) {
	f := s.frame(kindMessage)
	f.size, f.seq = uint32(b.n), s.sent+uint32(n)
	f.put(b.mem)
	s.sges[n][0] = b.mr.SGE(b.at, headerSize+b.n)
	*wr = verbs.SendWR{ID: s.wrID(reqMessage, place), Opcode: verbs.OpSend, Flags: verbs.SendSignaled, SGL: s.sges[n][:]}
}

// offer makes it an announcement.
func (s *Socket) offer(wr *verbs.SendWR, b *Buffer, n int) {
	f := s.frame(kindAnnounce)
	f.size, f.seq = uint32(b.n), s.sent+uint32(n)
	f.addr, f.rkey = b.mr.Addr()+uint64(b.at)+headerSize, b.mr.RKey()
	f.put(s.announce[n][:])
	*wr = verbs.SendWR{ID: s.wrID(reqAnnounce, 0), Opcode: verbs.OpSend, Flags: verbs.SendSignaled, Inline: s.announce[n][:]}
}

// postFrame sends a frame without a message and says whether it could.
func (s *Socket) postFrame(f *frame, r request) bool {
	n := f.put(s.announce[0][:])
	s.wrs[0] = verbs.SendWR{ID: s.wrID(r, 0), Opcode: verbs.OpSend, Flags: verbs.SendSignaled, Inline: s.announce[0][:n]}
	if _, err := s.qp.PostSend(s.wrs[:1]...); err != nil {
		s.unposted(err)
		return false
	}
	s.reported()
	return true
}

// flushAck tells the peer of what it does not know, when it should: at once if
// a message of its has been read, for it to have the buffer back; and if it
// may have run out of credits, or used up half of them.
//
// How many acks can be at the peer that has not looked at them? Each tells of
// messages of the peer's for which it does not know to have the credit back; of
// these it sent no more than Credits before it looked. Of them no more than
// maxAnnounced were announced; two acks tell of half the credits each, and one
// of having run out. So receives beyond the credits, see spare, always suffice,
// and acks need none themselves.
func (s *Socket) flushAck() {
	owed := s.grants() - s.toldGrants
	due := s.reads.done != s.toldReads || owed > 0 && (s.toldGrants == s.received || owed >= max(1, uint32(len(s.ring))/2))
	if !due || s.ackBusy || s.peerBye || s.err != nil {
		return
	}
	f := s.frame(kindAck)
	s.ackBusy = s.postFrame(&f, reqAck)
}

// complete of messages that were sent or read.
func (s *Socket) finished(b *Buffer, st Status) {
	s.pending--
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
	if f.granted-s.granted > s.peer.credits || f.granted-s.sent > s.peer.credits {
		return protocol("it grants %d messages when %d were granted and %d sent", f.granted, s.granted, s.sent)
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
}
