package rmsg

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/bits"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/tally"
)

// receiver is the receiving half of a connection. The ring has every message that the program has
// not taken, in order; from nextRead on, announced ones must still be read.
type receiver struct {
	c              *Conn
	ring           []incoming // one for each credit at least; a power of two, as the counts below wrap
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
	ackInFlight bool      // there is one at a time
	slots       []*Buffer // by receive
	unused      []Buffer  // for slots
	sge         [2]verbs.SGE
	rwr         [1]verbs.RecvWR

	readable chan struct{} // as sender.writable
	began    tally.Waits   // of Recv
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

func (r *receiver) init(c *Conn, credits int) {
	r.c, r.readable = c, make(chan struct{}, 1)
	r.ring = make([]incoming, 1<<bits.Len(uint(credits-1)))
	r.reportedGrants = uint32(credits)
}

// grants returns the total number of messages that the peer may send.
func (r *receiver) grants() uint32 { return uint32(r.c.l.opt.Credits) + r.returned }

// index returns the place of a message in the ring.
func (r *receiver) index(i uint32) int { return int(i) & (len(r.ring) - 1) }

func (r *receiver) at(i uint32) *incoming { return &r.ring[r.index(i)] }

// ready reports whether pop can take a message.
func (r *receiver) ready() bool { return r.head != r.received && r.at(r.head).ready }

// pop takes the next message, which is ready.
func (r *receiver) pop() *Buffer {
	e := r.at(r.head)
	b := e.buf
	*e = incoming{}
	r.head++
	b.set(Received)
	r.c.stats.MessagesReceived++
	r.c.stats.BytesReceived += uint64(b.n)
	if r.c.state == Disconnected { // the sums have its earlier messages
		r.c.origin.conns.Change(func(ended *ConnStats) {
			ended.MessagesReceived++
			ended.BytesReceived += uint64(b.n)
		})
	}
	return b
}

func (r *receiver) postReceive(slot int) error {
	b := r.slots[slot]
	r.sge[0] = b.mr.SGE(b.at, len(b.mem))
	r.rwr[0] = verbs.RecvWR{ID: r.c.wrID(reqReceive, slot), SGL: r.sge[:1]}
	_, err := r.c.qp.PostRecv(r.rwr[:]...)
	return err
}

// repost posts a receive into a slot again, unless the connection is ending.
func (r *receiver) repost(slot int) {
	if r.c.err != nil || r.c.state == Disconnected {
		return
	}
	if err := r.postReceive(slot); err != nil {
		r.c.out.postError(err)
	}
}

// renew gives b's slot another Buffer: the program keeps b, and may free it again.
func (r *receiver) renew(b *Buffer) {
	if len(r.unused) == 0 {
		r.unused = make([]Buffer, 32)
	}
	slot := &r.unused[0]
	r.unused = r.unused[1:]
	*slot = Buffer{c: b.c, mr: b.mr, mem: b.mem, at: b.at, source: fromSlot, slot: b.slot}
	slot.set(Released)
	r.slots[b.slot] = slot
}

func (c *Conn) bufferFreed(b *Buffer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if b.source == fromSlot {
		c.in.renew(b)
		c.in.repost(b.slot)
	} else {
		c.in.windowUsed -= b.n
	}
	c.in.returned++
	if c.state != Disconnected {
		c.progress()
	}
}

func (c *Conn) complete(r request, i int, wc *verbs.WC) {
	if c.qp == nil || wc.QPNum != c.qp.Num() {
		return // of an attempt to dial that has failed, on another device
	}
	if wc.Status != verbs.WCSuccess {
		if wc.Status != verbs.WCFlushErr {
			err := broken(r, wc)
			if errors.Is(err, verbs.ErrDisconnected) {
				err = c.reason(err)
			}
			c.fail(err)
		} else if c.flushed == nil && c.err == nil {
			// A flushed request is not the cause of the failure. Wait for the end of the
			// connection, which may report it.
			err := fmt.Errorf("the queue pair has failed: %w", wc.Err())
			c.flushed = c.failAfter(flushTime, func() error { return c.reason(err) })
		}
		return
	}
	switch r {
	case reqReceive:
		if err := c.handleFrame(i, int(wc.ByteLen)); err != nil {
			c.fail(err)
			return
		}
	case reqMessage:
		c.out.movedAt = c.l.counts.handling()
		c.out.completed(c.out.inFlight.Pop(), Sent)
	case reqRead:
		c.in.handleRead(&c.in.ring[i])
	case reqAck:
		c.in.ackInFlight = false
	case reqByeAnswer:
		c.byeDelivered = true
	case reqTest:
		c.testing = false
	}
	c.progress()
}

// broken returns the connection's error for a failed request.
func broken(r request, wc *verbs.WC) error {
	if r == reqReceive {
		return fmt.Errorf("%w: a frame is longer than the receive: %w", ErrProtocol, wc.Err())
	}
	err := cm.SendError(wc)
	if r == reqRead && !errors.Is(err, verbs.ErrDisconnected) {
		return fmt.Errorf("%w: %w", ErrUnreadable, err)
	}
	return err
}

// handleFrame handles a received frame of n bytes in a slot.
func (c *Conn) handleFrame(slot, n int) error {
	b := c.in.slots[slot]
	if n > len(b.mem) {
		return protocol("frame of %d bytes", n)
	}
	if c.err != nil {
		return nil // the connection is ending
	}
	f, err := parseFrame(b.mem[:n])
	if err != nil {
		return err
	}
	if (f.kind == kindHello) == c.helloReceived {
		return protocol("frame of type %d on a connection that is %v", f.kind, c.state)
	}
	if err := c.out.applyCounts(&f); err != nil {
		return err
	}
	switch f.kind {
	case kindMessage, kindAnnounce:
		if err := c.in.handleMessage(b, &f); err != nil || f.kind == kindMessage {
			return err // the message occupies the slot
		}
	case kindAck:
		c.stats.AcksReceived++
	case kindHello:
		if c.helloReceived = true; !c.dialed {
			h := c.in.frame(kindHello)
			c.out.postFrame(&h, reqAnnounce)
		}
		if c.state == Connecting {
			c.state = Established
			c.l.work.connected = true
		}
	case kindBye:
		next := byeSteps[c.bye].hear
		if f.flags&flagByeAnswer != 0 {
			next = byeSteps[c.bye].answer
		}
		if next == byeNone {
			return protocol("unexpected goodbye")
		}
		c.bye = next
		if c.state == Established {
			defer c.startDisconnect(io.EOF)
		}
	}
	c.in.repost(slot)
	return nil
}

// handleMessage adds a received or announced message to the ring.
func (r *receiver) handleMessage(b *Buffer, f *frame) error {
	switch {
	case f.seq != r.received:
		return protocol("message %d comes as number %d", f.seq, r.received)
	case r.received == r.reportedGrants:
		return protocol("more messages than it was granted")
	case r.c.bye.heard():
		return protocol("message after goodbye")
	case uint64(f.size) > uint64(r.c.l.opt.MaxMessage):
		return fmt.Errorf("%w: %w", protocol("message of %d bytes", f.size), ErrTooLarge)
	}
	n := int(f.size) // which an int of 32 bits holds now
	e := r.at(r.received)
	r.received++
	if f.kind == kindMessage {
		b.n = n
		r.c.arena.ref()
		*e = incoming{buf: b, ready: true}
	} else {
		*e = incoming{size: n, unrequested: n, unread: n, addr: f.addr, rkey: f.rkey}
		r.c.stats.LargeReceived++
	}
	return nil
}

// postReads posts READs for announced messages, as far as the window allows.
func (r *receiver) postReads() {
	for r.nextRead != r.received && r.c.err == nil {
		e := r.at(r.nextRead)
		if e.unrequested > 0 && e.buf == nil {
			if r.windowUsed > 0 && r.windowUsed+e.size > r.c.l.opt.Window {
				return
			}
			b, err := r.c.arena.incoming(e.size)
			if err != nil {
				r.c.fail(err)
				return
			}
			b.set(Released) // until the program takes it
			e.buf = b
			r.windowUsed += e.size
		}
		for e.unrequested > 0 {
			if r.reads.inFlight == maxReads {
				return
			}
			n, at := readLen(e.unrequested, r.c.arena.dev.iwarp), e.size-e.unrequested
			r.sge[0] = e.buf.mr.SGE(e.buf.at+headerSize+at, n)
			r.c.out.wrs[0] = verbs.SendWR{
				ID:     r.c.wrID(reqRead, r.index(r.nextRead)),
				Opcode: verbs.OpRDMARead, Flags: verbs.SendSignaled, SGL: r.sge[:1], RemoteAddr: e.addr + uint64(at), RKey: e.rkey,
			}
			wrs := r.c.out.wrs[:1]
			if !r.c.arena.dev.iwarp {
				// rxe may complete a READ too early, and break the QP afterwards; the success of a
				// later request proves the READ: a READ of the first byte, as after an empty
				// request rxe refuses to answer a READ again. siw completes later requests first.
				r.sge[1] = e.buf.mr.SGE(e.buf.at+headerSize+at, 1)
				r.c.out.wrs[1] = r.c.out.wrs[0]
				r.c.out.wrs[1].SGL, r.c.out.wrs[0].Flags, wrs = r.sge[1:2], 0, r.c.out.wrs[:2]
			}
			if _, err := r.c.qp.PostSend(wrs...); err != nil {
				r.c.out.postError(err)
				return
			}
			e.unrequested -= n
			r.reads.inFlight++
		}
		r.nextRead++
	}
}

// readLen returns how many of the bytes of a message that have not been requested the next READ asks for.
//
// siw may end the connection when it answers a READ of up to 32 bytes: then the last one takes some of the one before.
// The number of READs, by which handleRead counts, is the same.
func readLen(left int, iwarp bool) int {
	const short = 32
	n := min(left, readSize)
	if rest := left - n; iwarp && rest > 0 && rest <= short {
		n -= short
	}
	return n
}

func (r *receiver) handleRead(e *incoming) {
	r.reads.inFlight--
	if e.unread -= min(e.unread, readSize); e.unread > 0 {
		return
	}
	e.ready = true
	r.reads.done++
}

// trim drops the messages that will never be complete, or all messages.
func (r *receiver) trim(all bool) {
	if all {
		defer func() { r.head = r.received }()
	}
	for i := r.head; i != r.received; i++ {
		e := r.at(i)
		if !all && e.ready {
			continue
		}
		all = true // later ones would be out of order
		if e.buf != nil {
			r.c.arena.put(e.buf)
		}
		*e = incoming{}
	}
}

// moveToHeap moves the messages that are not taken to the heap: registered memory would hold the
// device open.
func (r *receiver) moveToHeap() {
	for i := r.head; i != r.received; i++ {
		if e := r.at(i); e.buf != nil {
			b := &Buffer{c: r.c, mem: bytes.Clone(e.buf.mem[:headerSize+e.buf.n]), n: e.buf.n, source: fromHeap}
			r.c.arena.put(e.buf)
			e.buf = b
		}
	}
}
