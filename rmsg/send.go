package rmsg

import (
	"errors"
	"fmt"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/fifo"
)

// sender is the sending half of a connection. A message passes through these queues:
//
//	queue      posted by the program, not yet by the connection
//	inFlight   sent at once, until the send completes
//	announced  until the peer reports that it has read them
type sender struct {
	c         *Conn
	queue     fifo.Queue[*Buffer]
	inFlight  fifo.Queue[*Buffer]
	announced fifo.Queue[*Buffer]
	pending   int // in all three
	eager     int // largest message that is sent at once, in bytes

	sent          uint32 // number of messages
	granted       uint32 // number of messages that the peer allows
	announcedRead uint32 // number of announced messages that the peer has read
	blocked       bool   // Post has returned ErrWouldBlock
	stalled       bool   // the first message waits for credits
	stalledAt     time.Time
	movedAt       time.Time // when the first message went out, or one was completed after it

	wrs    [maxBatch]verbs.SendWR
	sges   [maxBatch][1]verbs.SGE
	inline [maxBatch][announceSize]byte

	// Each has room for one signal. A goroutine that it wakes checks the condition, and signals the
	// next one if something is left.
	writable chan struct{}
	sendRoom chan struct{} // room in the arena for Send, see arena.wakeAt
}

func (q *sender) init(c *Conn) {
	q.c, q.writable, q.sendRoom = c, make(chan struct{}, 1), make(chan struct{}, 1)
}

// Alloc returns a buffer for a message of n bytes. The program may send it any number of times, and
// must free it. After the end of the connection Alloc fails with its Err.
func (c *Conn) Alloc(n int) (*Buffer, error) {
	b, err := c.alloc(n, false)
	return b, fail("allocate message to", c.addr, err)
}

// alloc returns a buffer to send, for the program or, if copies is set, for Send.
func (c *Conn) alloc(n int, copies bool) (*Buffer, error) {
	c.mu.Lock()
	state, most, err := c.state, int(c.peer.max), c.err
	c.mu.Unlock()
	switch {
	case state == Connecting:
		return nil, ErrNotConnected
	case state == Disconnected || copies && err != nil:
		return nil, err
	case n < 0 || n > most:
		return nil, fmt.Errorf("%w: %d bytes of at most %d", ErrTooLarge, n, most)
	}
	return c.arena.get(n, copies)
}

// Post queues a buffer of this connection and does not wait. It is sent as soon as the peer has
// room. The program owns the buffer again when its status is no longer Queued. If SendQueue
// messages are posted and not yet sent, Post returns ErrWouldBlock and does not take it.
func (c *Conn) Post(b *Buffer) error {
	err := c.post(b)
	if err == ErrWouldBlock {
		return err // without an allocation
	}
	return fail("send to", c.addr, err)
}

func (c *Conn) post(b *Buffer) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.out.post(b)
}

func (q *sender) post(b *Buffer) error {
	if err := q.c.sendable(); err != nil {
		return err
	}
	switch {
	case b.c != q.c:
		return fmt.Errorf("%w: it belongs to %v", ErrBuffer, b.c)
	case !b.ownedByProgram():
		return fmt.Errorf("%w: it is %v", ErrBuffer, b.Status())
	case uint32(b.n) > q.c.peer.max:
		return fmt.Errorf("%w: %d bytes of at most %d", ErrTooLarge, b.n, q.c.peer.max)
	case q.pending == q.c.l.opt.SendQueue:
		q.blocked = true
		q.c.stats.WouldBlock++
		return ErrWouldBlock
	}
	b.set(Queued)
	q.queue.Push(b)
	q.pending++
	q.flush()
	return nil
}

// sendable returns why nothing can be posted, or nil.
func (c *Conn) sendable() error {
	switch {
	case c.err != nil:
		return c.err
	case c.state == Connecting:
		return ErrNotConnected
	case c.goodEnd == verbs.ErrClosed:
		return verbs.ErrClosed
	case c.state != Established:
		return verbs.ErrDisconnected
	}
	return nil
}

// frame returns a frame of a kind, with the counts that all frames have.
func (r *receiver) frame(k kind) frame {
	return frame{kind: k, granted: r.grants(), read: r.reads.done}
}

// markReported records the counts that a frame has reported to the peer.
func (r *receiver) markReported() { r.reportedGrants, r.reportedReads = r.grants(), r.reads.done }

// flush sends the queued messages that the peer has room for, several with one doorbell.
func (q *sender) flush() {
	for q.queue.Len() > 0 && q.c.err == nil {
		n, offers := 0, q.announced.Len()
		for n < min(q.queue.Len(), maxBatch) {
			b := q.queue.At(n)
			if b.n > q.eager {
				offers++
			}
			if q.sent+uint32(n) == q.granted || offers > maxAnnounced {
				break
			}
			q.build(b, n)
			n++
		}
		if n == 0 {
			if q.sent == q.granted && !q.stalled {
				q.stalled, q.stalledAt = true, time.Now()
				q.c.stats.CreditWaits++
			}
			return
		}
		q.stalled = false
		if q.inFlight.Len()+q.announced.Len() == 0 {
			q.movedAt = time.Now()
		}
		posted, err := q.c.qp.PostSend(q.wrs[:n]...)
		if posted > 0 {
			q.c.in.markReported()
		}
		for range posted {
			b := q.queue.Pop()
			q.sent++
			if b.n <= q.eager {
				q.inFlight.Push(b)
			} else {
				q.announced.Push(b)
				q.c.stats.LargeSent++
			}
		}
		if err != nil {
			q.postError(err)
			return
		}
	}
}

// postError handles a request that could not be posted. A queue is full if the kernel has not yet
// released completed requests: the next completion retries. It is closed if the connection has
// ended: the reason follows.
func (q *sender) postError(err error) {
	if !errors.Is(err, verbs.ErrQueueFull) && !errors.Is(err, verbs.ErrClosed) {
		q.c.fail(err)
	}
}

// build makes the n-th request of a batch: a message, or its announcement. Each is signaled: siw
// may send unsignaled requests directly from the buffer, at any later time (siw_qp_prepare_tx).
func (q *sender) build(b *Buffer, n int) {
	f := q.c.in.frame(kindMessage)
	f.size, f.seq = uint32(b.n), q.sent+uint32(n)
	wr := &q.wrs[n]
	*wr = verbs.SendWR{ID: q.c.wrID(reqMessage, 0), Opcode: verbs.OpSend, Flags: verbs.SendSignaled}
	if b.n <= q.eager {
		f.put(b.mem)
		q.sges[n][0] = b.mr.SGE(b.at, headerSize+b.n)
		wr.SGL = q.sges[n][:]
		return
	}
	f.kind = kindAnnounce
	f.addr, f.rkey = b.mr.Addr()+uint64(b.at)+headerSize, b.mr.RKey()
	f.put(q.inline[n][:])
	wr.ID, wr.Inline = q.c.wrID(reqAnnounce, 0), q.inline[n][:]
}

// postFrame sends a frame without a message and reports whether it was posted.
func (q *sender) postFrame(f *frame, r request) bool {
	n := f.put(q.inline[0][:])
	q.wrs[0] = verbs.SendWR{ID: q.c.wrID(r, 0), Opcode: verbs.OpSend, Flags: verbs.SendSignaled, Inline: q.inline[0][:n]}
	if _, err := q.c.qp.PostSend(q.wrs[:1]...); err != nil {
		q.postError(err)
		return false
	}
	q.c.in.markReported()
	return true
}

// flushAck sends an ack if one is due: at once if an announced message has been read, so that the
// peer can reuse the buffer, and otherwise if the peer may have run out of credits, or half of them
// can be returned.
//
// The number of acks that the peer has not processed is bounded: each ack reports messages whose
// credits the peer does not know to be returned, and the peer sent at most Credits of these before
// it processed an ack. At most maxAnnounced of them were announced; two acks report half the
// credits each, and one reports that the peer has run out. So the receives beyond the credits, see
// extraReceives, always suffice, and acks need no credits.
func (r *receiver) flushAck() {
	owed := r.grants() - r.reportedGrants
	due := r.reads.done != r.reportedReads || owed > 0 && (r.reportedGrants == r.received || owed >= max(1, uint32(r.c.l.opt.Credits)/2))
	if !due || r.ackInFlight || r.c.bye.heard() || r.c.err != nil {
		return
	}
	f := r.frame(kindAck)
	if r.ackInFlight = r.c.out.postFrame(&f, reqAck); r.ackInFlight {
		r.c.stats.AcksSent++
	}
}

// completed returns a buffer to the program, or frees it if Send made it.
func (q *sender) completed(b *Buffer, st Status) {
	q.pending--
	if st == Sent {
		q.c.stats.MessagesSent++
		q.c.stats.BytesSent += uint64(b.n)
	}
	if b.err = nil; st == Failed {
		b.err = q.c.err
	}
	if b.freeWhenSent {
		b.set(Released)
		q.c.arena.put(b)
	} else {
		b.set(st)
		if q.c.l.opt.Callbacks.Sent != nil {
			q.c.l.work.sent = append(q.c.l.work.sent, b)
		}
	}
	if q.blocked && q.pending <= q.c.l.opt.SendQueue/2 {
		q.blocked = false
		q.c.l.work.writable = true
	}
}

// applyCounts handles the counts of a frame about this side's messages.
func (q *sender) applyCounts(f *frame) error {
	if f.granted-q.granted > q.c.peer.credits || f.granted-q.sent > q.c.peer.credits {
		return protocol("it grants %d messages when %d were granted and %d sent", f.granted, q.granted, q.sent)
	}
	if f.read-q.announcedRead > uint32(q.announced.Len()) {
		return protocol("it read %d messages when it had read %d of %d more", f.read, q.announcedRead, q.announced.Len())
	}
	q.granted = f.granted
	for ; q.announcedRead != f.read; q.announcedRead++ {
		q.movedAt = q.c.l.counts.handling()
		q.completed(q.announced.Pop(), Sent)
	}
	return nil
}

func (q *sender) failAll() {
	q.blocked = false
	for _, f := range []*fifo.Queue[*Buffer]{&q.inFlight, &q.announced, &q.queue} {
		for f.Len() > 0 {
			q.completed(f.Pop(), Failed)
		}
	}
}
