package rmsg

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
)

// receiving is the receiving half of a socket. The ring has every message that the
// program has not taken, in order; from nextRead on, announced ones must still be read.
type receiving struct {
	ring           []incoming // one for each credit
	head           uint32     // the next message to take
	received       uint32     // number of messages; the end of the ring
	nextRead       uint32
	returned       uint32 // messages that the program freed
	reportedGrants uint32 // as last reported to the peer
	reportedReads  uint32
	windowUsed     int // bytes of announced messages with a buffer
	reads          struct {
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
	size, unrequested, unread int // bytes: total, not yet requested, not yet read
	addr                      uint64
	rkey                      uint32
}

func (q *receiving) init(credits int) {
	q.ring = make([]incoming, credits)
	q.reportedGrants = uint32(credits)
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
	if s.state == Disconnected { // the sums have its earlier messages
		s.origin.sockets.Change(func(ended *SocketStats) {
			ended.MessagesReceived++
			ended.BytesReceived += uint64(b.n)
		})
	}
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
		s.handlePostError(err)
	}
}

// bufferFreed handles that the program has freed a received buffer.
func (s *Socket) bufferFreed(b *Buffer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b.source == fromSlot {
		s.repost(b.slot)
	} else {
		s.windowUsed -= b.n
	}
	s.returned++
	if s.state != Disconnected {
		s.progress()
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
			err := fmt.Errorf("the queue pair has failed: %w", wc.Err())
			s.flushed = s.failAfter(flushTime, func() error { return err })
		}
		return
	}
	switch r {
	case reqReceive:
		if err := s.handleFrame(i, int(wc.ByteLen)); err != nil {
			s.fail(err)
			return
		}
	case reqMessage:
		s.completeSend(s.inFlight.pop(), Sent)
	case reqRead:
		s.handleRead(&s.ring[i])
	case reqAck:
		s.ackInFlight = false
	case reqByeAnswer:
		s.byeDelivered = true
	}
	s.progress()
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

// handleFrame handles a received frame of n bytes in a slot.
func (s *Socket) handleFrame(slot, n int) error {
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
	if (f.kind == kindHello) == s.helloReceived {
		return protocol("frame of type %d on a socket that is %v", f.kind, s.state)
	}
	if err := s.applyCounts(&f); err != nil {
		return err
	}
	switch f.kind {
	case kindMessage, kindAnnounce:
		if err := s.handleMessage(b, &f); err != nil || f.kind == kindMessage {
			return err // the message occupies the slot
		}
	case kindAck:
		s.stats.AcksReceived++
	case kindHello:
		if s.helloReceived = true; !s.dialed {
			h := s.frame(kindHello)
			s.postFrame(&h, reqAnnounce)
		}
		if s.state == Connecting {
			s.state = Established
			s.l.connected = true
		}
	case kindBye:
		next := byeSteps[s.bye].hear
		if f.flags&flagByeAnswer != 0 {
			next = byeSteps[s.bye].answer
		}
		if next == byeNone {
			return protocol("unexpected goodbye")
		}
		s.bye = next
		if s.state == Established {
			defer s.startDisconnect(io.EOF)
		}
	}
	s.repost(slot)
	return nil
}

// handleMessage adds a received or announced message to the ring.
func (s *Socket) handleMessage(b *Buffer, f *frame) error {
	switch {
	case f.seq != s.received:
		return protocol("message %d comes as number %d", f.seq, s.received)
	case s.received == s.reportedGrants:
		return protocol("more messages than it was granted")
	case s.bye.heard():
		return protocol("message after goodbye")
	case uint64(f.size) > uint64(s.l.opt.MaxMessage):
		return fmt.Errorf("%w: %w", protocol("message of %d bytes", f.size), ErrTooLarge)
	}
	n := int(f.size) // which an int of 32 bits holds now
	e := s.at(s.received)
	s.received++
	if f.kind == kindMessage {
		b.n = n
		s.arena.ref()
		*e = incoming{buf: b, ready: true}
	} else {
		*e = incoming{size: n, unrequested: n, unread: n, addr: f.addr, rkey: f.rkey}
		s.stats.LargeReceived++
	}
	return nil
}

// postReads posts READs for announced messages, as far as the window allows.
func (s *Socket) postReads() {
	for s.nextRead != s.received && s.err == nil {
		e := s.at(s.nextRead)
		if e.unrequested > 0 && e.buf == nil {
			if s.windowUsed > 0 && s.windowUsed+e.size > s.l.opt.Window {
				return
			}
			b, err := s.arena.incoming(e.size)
			if err != nil {
				s.fail(err)
				return
			}
			b.set(Released) // until the program takes it
			e.buf = b
			s.windowUsed += e.size
		}
		for e.unrequested > 0 {
			if s.reads.inFlight == maxReads {
				return
			}
			n, at := min(e.unrequested, readSize), e.size-e.unrequested
			s.sge[0] = e.buf.mr.SGE(e.buf.at+headerSize+at, n)
			s.wrs[0] = verbs.SendWR{
				ID:     s.wrID(reqRead, int(s.nextRead%uint32(len(s.ring)))),
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
				s.handlePostError(err)
				return
			}
			e.unrequested -= n
			s.reads.inFlight++
		}
		s.nextRead++
	}
}

// handleRead handles the completion of a READ of part of a message.
func (s *Socket) handleRead(e *incoming) {
	s.reads.inFlight--
	if e.unread -= min(e.unread, readSize); e.unread > 0 {
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

// moveToHeap moves the messages that are not taken to the heap: registered memory would hold
// the device open.
func (s *Socket) moveToHeap() {
	for i := s.head; i != s.received; i++ {
		if e := s.at(i); e.buf != nil {
			b := &Buffer{s: s, mem: bytes.Clone(e.buf.mem[:headerSize+e.buf.n]), n: e.buf.n, source: fromHeap}
			s.arena.put(e.buf)
			e.buf = b
		}
	}
}
