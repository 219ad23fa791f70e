package rmsg

import (
	"errors"
	"fmt"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
)

// receiving is the receiving half of a socket. The ring has every message that the
// program has not taken, in order; from fetching on, announced ones must still be read.
type receiving struct {
	ring       []incoming // one for each credit
	head       uint32     // the next message to take
	received   uint32     // number of messages; the end of the ring
	fetching   uint32
	returned   uint32 // messages that the program freed
	toldGrants uint32 // as last reported to the peer
	toldReads  uint32
	fetched    int // bytes of announced messages with a buffer
	reads      struct {
		done     uint32 // number of announced messages read
		inFlight int
	}
	sge [2]verbs.SGE
	rwr [1]verbs.RecvWR
}

// incoming is a message that the program has not taken yet.
type incoming struct {
	buf   *Buffer
	ready bool
	// If announced:
	size, asked, left int // bytes: total, not yet requested, not yet read
	addr              uint64
	rkey              uint32
}

func (q *receiving) init(credits int) {
	q.ring = make([]incoming, credits)
	q.toldGrants = uint32(credits)
}

// grants returns the total number of messages that the peer may send.
func (q *receiving) grants() uint32 { return uint32(len(q.ring)) + q.returned }

func (q *receiving) at(i uint32) *incoming { return &q.ring[i%uint32(len(q.ring))] }

// ready reports whether pop can take a message.
func (q *receiving) ready() bool { return q.head != q.received && q.at(q.head).ready }

// pop takes the next message, which is ready.
func (s *Socket) pop() *Buffer {
	e := s.at(s.head)
	b := e.buf
	*e = incoming{}
	s.head++
	b.set(Received)
	s.stats.MessagesReceived++
	s.stats.BytesReceived += uint64(b.n)
	return b
}

// postReceive posts a receive into a slot.
func (s *Socket) postReceive(slot int) error {
	b := s.slots[slot]
	s.sge[0] = b.mr.SGE(b.at, len(b.mem))
	s.rwr[0] = verbs.RecvWR{ID: s.wrID(reqReceive, slot), SGL: s.sge[:1]}
	_, err := s.qp.PostRecv(s.rwr[:]...)
	return err
}

// repost posts a receive into a slot again, unless the socket is ending.
func (s *Socket) repost(slot int) {
	if s.err != nil || s.state == Disconnected {
		return
	}
	if err := s.postReceive(slot); err != nil {
		s.unposted(err)
	}
}

// freed handles that the program has freed a received buffer.
func (s *Socket) freed(b *Buffer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b.home == inSlot {
		s.repost(b.slot)
	} else {
		s.fetched -= b.n
	}
	s.returned++
	if s.state != Disconnected {
		s.settle()
	}
}

// complete handles one completion.
func (s *Socket) complete(r request, i int, wc *verbs.WC) {
	if wc.Status != verbs.WCSuccess {
		if wc.Status != verbs.WCFlushErr {
			s.fail(broken(r, wc))
		} else if s.flushed == nil && s.state == Established {
			// A flushed request is not the cause of the failure. The end of
			// the connection may report it; wait for that. While
			// disconnecting, Linger bounds the wait.
			s.flushed = s.failAfter(flushTime, fmt.Errorf("the queue pair has failed: %w", wc.Err()))
		}
		return
	}
	switch r {
	case reqReceive:
		if err := s.frameIn(i, int(wc.ByteLen)); err != nil {
			s.fail(err)
			return
		}
	case reqMessage:
		s.finished(s.flight.pop(), Sent)
	case reqRead:
		s.readIn(&s.ring[i])
	case reqAck:
		s.ackBusy = false
	}
	s.settle()
}

// broken returns the socket's error for a failed request.
func broken(r request, wc *verbs.WC) error {
	if r == reqReceive {
		return fmt.Errorf("%w: a frame does not fit: %w", ErrProtocol, wc.Err())
	}
	err := cm.SendError(wc)
	if r == reqRead && !errors.Is(err, verbs.ErrDisconnected) {
		return fmt.Errorf("%w: %w", ErrUnreadable, err)
	}
	return err
}

// frameIn handles a received frame of n bytes in a slot.
func (s *Socket) frameIn(slot, n int) error {
	b := s.slots[slot]
	if n > len(b.mem) {
		return protocol("frame of %d bytes", n)
	}
	if s.err != nil {
		return nil // the socket is ending
	}
	f, err := parseFrame(b.mem[:n])
	if err != nil {
		return err
	}
	if (f.kind == kindHello) == s.greeted {
		return protocol("frame of type %d on a socket that is %v", f.kind, s.state)
	}
	if err := s.credit(&f); err != nil {
		return err
	}
	switch f.kind {
	case kindMessage, kindAnnounce:
		if err := s.messageIn(b, &f); err != nil || f.kind == kindMessage {
			return err // the message occupies the slot
		}
	case kindAck:
		s.stats.AcksReceived++
	case kindHello:
		if s.greeted = true; !s.dialed {
			h := s.frame(kindHello)
			s.postFrame(&h, reqAnnounce)
		}
		if s.state == Connecting {
			s.state = Established
			s.l.connected = true
		}
	case kindBye:
		if again := f.flags&byeAnswered != 0; s.peerKnows || s.peerBye && !again || again && !s.bye {
			return protocol("unexpected goodbye")
		}
		s.peerBye, s.peerKnows = true, f.flags&byeAnswered != 0
		s.crossed = s.crossed || s.bye && !s.peerKnows
		if s.state == Established {
			defer s.leave()
		}
	}
	s.repost(slot)
	return nil
}

// messageIn adds a received or announced message to the ring.
func (s *Socket) messageIn(b *Buffer, f *frame) error {
	n := int(f.size)
	switch {
	case f.seq != s.received:
		return protocol("message %d comes as number %d", f.seq, s.received)
	case s.received == s.toldGrants:
		return protocol("more messages than it was granted")
	case s.peerBye:
		return protocol("message after goodbye")
	case n > s.l.opt.MaxMessage:
		return fmt.Errorf("%w: %w", protocol("message of %d bytes", n), ErrTooLarge)
	}
	e := s.at(s.received)
	s.received++
	if f.kind == kindMessage {
		b.n = n
		s.arena.hold()
		*e = incoming{buf: b, ready: true}
	} else {
		*e = incoming{size: n, asked: n, left: n, addr: f.addr, rkey: f.rkey}
		s.stats.LargeReceived++
	}
	return nil
}

// fetch posts READs for announced messages, as far as the window allows.
func (s *Socket) fetch() {
	for s.fetching != s.received && s.err == nil {
		e := s.at(s.fetching)
		if e.asked > 0 && e.buf == nil {
			if s.fetched > 0 && s.fetched+e.size > s.l.opt.Window {
				return
			}
			b, err := s.arena.incoming(e.size)
			if err != nil {
				s.fail(err)
				return
			}
			b.set(Released) // until the program takes it
			e.buf = b
			s.fetched += e.size
		}
		for e.asked > 0 {
			if s.reads.inFlight == maxReads {
				return
			}
			n, at := min(e.asked, readSize), e.size-e.asked
			s.sge[0] = e.buf.mr.SGE(e.buf.at+headerSize+at, n)
			s.wrs[0] = verbs.SendWR{
				ID:     s.wrID(reqRead, int(s.fetching%uint32(len(s.ring)))),
				Opcode: verbs.OpRDMARead, Flags: verbs.SendSignaled, SGL: s.sge[:1], RemoteAddr: e.addr + uint64(at), RKey: e.rkey,
			}
			wrs := s.wrs[:1]
			if !s.arena.dev.iwarp {
				// rxe may complete a READ too early, and break the QP
				// afterwards; the success of a later request proves the
				// READ. Here that is a READ of the first byte, as after
				// an empty request rxe refuses to answer a READ again.
				// siw completes later requests first.
				s.sge[1] = e.buf.mr.SGE(e.buf.at+headerSize+at, 1)
				s.wrs[1] = s.wrs[0]
				s.wrs[1].SGL, s.wrs[0].Flags, wrs = s.sge[1:2], 0, s.wrs[:2]
			}
			if _, err := s.qp.PostSend(wrs...); err != nil {
				s.unposted(err)
				return
			}
			e.asked -= n
			s.reads.inFlight++
		}
		s.fetching++
	}
}

// readIn handles the completion of a READ of part of a message.
func (s *Socket) readIn(e *incoming) {
	s.reads.inFlight--
	if e.left -= min(e.left, readSize); e.left > 0 {
		return
	}
	e.ready = true
	s.reads.done++
}

// trim drops the messages that will never be complete, or all messages.
func (s *Socket) trim(all bool) {
	if all {
		defer func() { s.head = s.received }()
	}
	for i := s.head; i != s.received; i++ {
		e := s.at(i)
		if !all && e.ready {
			continue
		}
		all = true // later ones would be out of order
		if e.buf != nil {
			s.arena.put(e.buf)
		}
		*e = incoming{}
	}
}
