package rmsg

import (
	"errors"
	"fmt"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
)

// receiving is the half of a socket that receives. The ring has every message
// that the program has not taken yet, in order; from fetching on, announced ones
// have yet to be read.
type receiving struct {
	ring       []incoming // as many as there are credits
	head       uint32     // the next message to take
	received   uint32     // messages; the ring's end
	fetching   uint32
	returned   uint32 // messages that the program freed
	toldGrants uint32 // what the peer knows
	toldReads  uint32
	fetched    int // bytes of announced messages that have a buffer
	reads      struct {
		done     uint32 // announced messages that were read
		inFlight int
	}
	sge [2]verbs.SGE
	rwr [1]verbs.RecvWR
}

// incoming is a message on its way to the program.
type incoming struct {
	buf   *Buffer
	ready bool
	// If announced:
	size, asked, left int // bytes: in all, not yet asked for, not yet read
	addr              uint64
	rkey              uint32
}

func (q *receiving) init(credits int) {
	q.ring = make([]incoming, credits)
	q.toldGrants = uint32(credits)
}

// grants returns how many messages the peer may send in all.
func (q *receiving) grants() uint32 { return uint32(len(q.ring)) + q.returned }

func (q *receiving) at(i uint32) *incoming { return &q.ring[i%uint32(len(q.ring))] }

// ready reports whether there is a message to take.
func (q *receiving) ready() bool { return q.head != q.received && q.at(q.head).ready }

// pop takes a message that is ready.
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

// postReceive posts a slot.
func (s *Socket) postReceive(slot int) error {
	b := s.slots[slot]
	s.sge[0] = b.mr.SGE(b.at, len(b.mem))
	s.rwr[0] = verbs.RecvWR{ID: s.wrID(reqReceive, slot), SGL: s.sge[:1]}
	_, err := s.qp.PostRecv(s.rwr[:]...)
	return err
}

// repost posts a slot again.
func (s *Socket) repost(slot int) {
	if s.err != nil || s.state == Disconnected {
		return
	}
	if err := s.postReceive(slot); err != nil {
		s.unposted(err)
	}
}

// freed takes back a received buffer.
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
			// What is flushed was not at fault; the end of the QP says why, or
			// nothing does. While disconnecting, Linger bounds that.
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

// broken says what a failed request means.
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

// frameIn takes a frame of n bytes from a slot.
func (s *Socket) frameIn(slot, n int) error {
	b := s.slots[slot]
	if n > len(b.mem) {
		return protocol("frame of %d bytes", n)
	}
	if s.err != nil {
		return nil // it has been given up
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
			return err // the slot is the message's
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
			return protocol("goodbye out of turn")
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

// messageIn adds a message to the ring.
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

// fetch reads announced messages, as far as the window goes.
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
			b.set(Released) // until it is the program's
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
				// rxe may call a READ done that was not, and break the QP then: it
				// was if a request that follows it succeeds. Here that is a READ
				// of the first byte, as after a request of no bytes rxe refuses to
				// answer a READ again. siw completes later requests first.
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

// readIn handles that the next part of a message was read.
func (s *Socket) readIn(e *incoming) {
	s.reads.inFlight--
	if e.left -= min(e.left, readSize); e.left > 0 {
		return
	}
	e.ready = true
	s.reads.done++
}

// trim drops messages that will never be complete, or all.
func (s *Socket) trim(all bool) {
	if all {
		defer func() { s.head = s.received }()
	}
	for i := s.head; i != s.received; i++ {
		e := s.at(i)
		if !all && e.ready {
			continue
		}
		all = true // nothing comes out of order
		if e.buf != nil {
			s.arena.put(e.buf)
		}
		*e = incoming{}
	}
}
