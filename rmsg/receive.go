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
	partial    *incoming  // the last message, while frames are missing
	arrived    uint32     // frames with messages
	fetching   uint32
	returned   uint32 // frames of messages that the program freed
	toldGrants uint32 // what the peer knows
	toldReads  uint32
	lot        int // frames of the peer's largest message that is sent at once
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
	left  int // bytes that have not come, or been read
	// If announced:
	size, asked int // bytes: in all, not yet asked for
	addr        uint64
	rkey        uint32
}

func (q *receiving) init(credits int) {
	q.ring = make([]incoming, credits)
	q.toldGrants = uint32(credits)
}

// grants returns how many frames with messages the peer may send in all.
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
	n := 1
	switch b.home {
	case inSlot:
		s.repost(b.slot)
	case inPool:
		n = frames(b.n, s.l.opt.Segment)
	default:
		s.fetched -= b.n
	}
	s.returned += uint32(n)
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
		b := s.flight[i]
		s.flight[i] = nil
		s.places = append(s.places, i)
		s.posted -= frames(b.n, s.segment)
		s.finished(b, Sent)
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
	if s.partial != nil {
		return s.segmentIn(b, n)
	}
	f, err := parseFrame(b.mem[:n], s.l.opt.Segment)
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
		if err := s.messageIn(b, &f); err != nil {
			return err
		}
		if f.kind == kindMessage && s.partial == nil {
			return nil // the slot is the message's
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
	opt := &s.l.opt
	n, k := int(f.size), 1
	if f.kind == kindMessage && n <= opt.Eager {
		k = frames(n, opt.Segment)
	}
	switch {
	case f.seq != s.received:
		return protocol("message %d comes as number %d", f.seq, s.received)
	case s.toldGrants-s.arrived < uint32(k):
		return protocol("more messages than it was granted")
	case s.peerBye:
		return protocol("message after goodbye")
	case n > opt.MaxMessage:
		return fmt.Errorf("%w: %w", protocol("message of %d bytes", n), ErrTooLarge)
	case f.kind == kindMessage && n > opt.Eager:
		return protocol("message of %d bytes is sent at once", n)
	}
	e := s.at(s.received)
	s.received++
	s.arrived += uint32(k)
	switch {
	case f.kind == kindAnnounce:
		*e = incoming{size: n, asked: n, left: n, addr: f.addr, rkey: f.rkey}
		s.stats.LargeReceived++
	case k == 1:
		b.n = n
		s.arena.hold()
		*e = incoming{buf: b, ready: true}
	default:
		*e = incoming{buf: s.assembly(n), left: n}
		s.arena.hold()
		s.partial = e
		s.add(b.mem[headerSize:])
	}
	return nil
}

// assembly returns a buffer for a message of several frames.
func (s *Socket) assembly(n int) *Buffer {
	mem, _ := s.l.pool.Get().(*[]byte)
	if mem == nil {
		room := make([]byte, headerSize+s.l.opt.Eager)
		mem = &room
	}
	b := &Buffer{s: s, mem: (*mem)[:headerSize+n], n: n, home: inPool, pooled: mem}
	b.set(Released) // until it is the program's
	return b
}

// segmentIn takes a frame of n bytes that continues a message.
func (s *Socket) segmentIn(b *Buffer, n int) error {
	if want := min(s.partial.left, s.l.opt.Segment); n != want {
		return protocol("segment of %d bytes, not %d", n, want)
	}
	s.add(b.mem)
	s.repost(b.slot)
	return nil
}

// add copies a segment, which is at the start of b, to its message.
func (s *Socket) add(b []byte) {
	e := s.partial
	m := e.buf.mem[headerSize:]
	e.left -= copy(m[e.buf.n-e.left:], b[:min(e.left, s.l.opt.Segment)])
	if e.left == 0 {
		e.ready = true
		s.partial = nil
	}
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
