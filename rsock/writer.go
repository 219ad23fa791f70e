package rsock

import (
	"cmp"
	"encoding/binary"
	"io"
	"os"
	"sync"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/uverbs"
)

// writer is the sending half of a Conn. A message is data from its ring, or inline, that the device
// writes to the peer's ring. It needs a credit, which stands for a receive of the peer, room in the
// peer's ring, which its program makes by reading, and room in the send queue, which completions on
// this side give back.
type writer struct {
	c        *Conn
	mu       sync.Mutex // held by Write, taken before the Conn's mu
	ring     sendRing
	signals  signals
	credits  credits
	targets  targets
	requests requests // guarded by mu
	full     bool     // a Write waits for completions
	lost     bool     // requests of data have failed
	sent     uint64   // bytes
	messages uint64
	cq       *uverbs.CQ
	armed    bool
	wcs      [16]verbs.WC
	waiter   waiter
}

// start takes the credits and the room that the peer's hello offers.
func (w *writer) start(h hello) {
	w.targets.start(h.buffer)
	w.credits.start(h.credits)
	w.signals.start(w.c.opt.SendQueue-ctrlQueue, len(w.ring.buf), w.c.iwarp)
}

// sendRing is the memory that the device sends from. Bytes are counted since the start.
type sendRing struct {
	buf    []byte
	mr     *uverbs.MR
	sge    verbs.SGE  // of all of buf
	start  uint64     // where buf begins
	old    *uverbs.MR // has the data before start; nil if that is sent
	inline []byte     // a copy of inline data
	head   uint64     // end of the written data
	freed  uint64     // end of the data that the device is done with
	room   int        // bytes that a Write waits for
}

// space returns the position of the head in buf, and how many bytes are free.
func (s *sendRing) space() (at, free int) {
	return int((s.head - s.start) % uint64(len(s.buf))), len(s.buf) - int(s.head-max(s.freed, s.start))
}

// use makes a region the ring, for all that is written from now on.
func (s *sendRing) use(mr *uverbs.MR) {
	s.old, s.mr, s.start = s.mr, mr, s.head
	s.buf, s.sge = mr.Bytes(), mr.SGE(0, mr.Len())
}

// fits reports whether s.room bytes are free in one piece. It moves the head to the start
// of buf if they are there. A request has one SGE, so its data must not wrap around.
func (s *sendRing) fits() bool {
	at, free := s.space()
	tail := len(s.buf) - at
	if tail >= s.room {
		return free >= s.room
	}
	if free < tail+s.room {
		return false
	}
	s.head += uint64(tail) // freed with what follows
	return true
}

// take returns the SGE of the n bytes at the head, and moves the head behind them.
func (s *sendRing) take(n int) verbs.SGE {
	at, _ := s.space()
	s.head += uint64(n)
	return verbs.SGE{Addr: s.sge.Addr + uint64(at), Length: uint32(n), LKey: s.sge.LKey}
}

// signals decides which requests are signaled: few, as each costs a completion, but enough that
// neither the send queue nor the ring fills up before one has completed. A completion stands for
// all requests before it, and the queue has room again only when one has been polled, even if the
// device is long done. Requests are counted since the start, modulo 2^31.
type signals struct {
	iwarp      bool
	cost       uint32 // requests per message
	slots      uint32 // requests that may be in flight
	posted     uint32
	done       uint32
	unsignaled uint32 // requests posted after the last signaled one
	most       uint64 // bytes of the ring that may be unsignaled
	head       uint64 // of the ring, at the last signaled request
}

const countMask = 1<<31 - 1

func (s *signals) start(slots, ring int, iwarp bool) {
	*s = signals{iwarp: iwarp, cost: 1, slots: uint32(slots), most: uint64(ring / 4)}
	if iwarp {
		s.cost = 2
	}
}

// free returns how many requests may be posted.
func (s *signals) free() uint32 { return s.slots - (s.posted-s.done)&countMask }

// signal is which request of a message is signaled.
type signal uint8

const (
	signalNone  signal = iota
	signalFirst        // of two
	signalLast
)

// post counts a message, behind which the head of the ring is. It returns which of its requests to
// signal, and the ID that its completion is to have.
//
// On iWARP each RDMA WRITE from the ring is signaled: siw sends larger unsignaled requests directly
// from the ring (sendpage, or MSG_SPLICE_PAGES), and TCP may read that again after their
// completion, when it retransmits. It copies signaled ones.
func (s *signals) post(inline bool, head uint64) (signal, uint64) {
	s.posted += s.cost
	s.unsignaled += s.cost
	which, covered := signalNone, s.posted
	switch {
	case s.iwarp && !inline:
		which, covered = signalFirst, s.posted-1
		s.unsignaled = 1
	// A quarter of the queue or of the ring since the last one: the rest keeps the device busy
	// until the completion has been polled.
	case s.unsignaled >= s.slots/4 || head-s.head >= s.most:
		which = signalLast
		s.unsignaled = 0
	default:
		return signalNone, 0
	}
	s.head = head
	return which, uint64(covered&countMask)<<32 | uint64(uint32(head))
}

// completed takes the ID of a completion. Requests complete in order: it covers those before. It
// returns the head of the ring then, modulo 2^32. The ID carries both counts, so that there is no
// list of requests.
func (s *signals) completed(id uint64) (head uint32) {
	s.done += (uint32(id>>32) - s.done) & countMask
	return uint32(id)
}

// credits count the messages that the peer has receives for, modulo 2^16: a message without a
// receive is refused by the device. They are not bytes, as TCP's window is: the space in the peer's
// ring is counted by targets.
type credits struct {
	seq      uint16 // messages sent
	limit    uint16 // the seq up to which there are credits
	window   uint16 // messages that may be in flight
	reserved uint16 // credits that are never used
}

// start takes the first credits. C has no spare receives for control messages, which take no
// credits, so some are left for them. A message that finds none is sent again after 0.66 s on RoCE
// (an RNR NAK with rdma_cm's timer code 0, the longest), and ends the connection on iWARP
// (DDP_ECODE_UT_INVALID_MSN_NOBUF).
func (c *credits) start(n uint16) { *c = credits{limit: n, window: n, reserved: min(8, n/4)} }

// grant takes new credits, up to a message.
func (c *credits) grant(limit uint16) error {
	// The peer never has more receives than in its hello, so a limit further ahead, or one behind,
	// is wrong.
	if limit-c.seq > c.window {
		return protocolError("credits up to message %d, when %d were sent and %d may be under way", limit, c.seq, c.window)
	}
	c.limit = limit
	return nil
}

func (c *credits) left() int { return max(int(c.limit-c.seq)-int(c.reserved), 0) }

// targets are the parts of the peer's ring that this side may write to. The peer offers them by
// writing descriptors to a table, entry after entry and again from the first on (RS_SGL_SIZE
// entries in C); this side uses them up in the same order.
type targets struct {
	table       []byte
	target      [sgeCount]sge
	expect      [sgeCount]sge
	unconfirmed sge
	cur         int // the target in use
	next        int // the target that the peer offers next
}

// start takes the first half of the peer's ring, and expects the second.
func (t *targets) start(b sge) {
	t.expect = [...]sge{b, {b.addr + uint64(b.length), b.key, b.length}}
	t.target[0] = b
	t.next = 1
}

// accept accepts the descriptors that the peer has written. Messages do not tell whether it wrote
// one, and the next may be half written already. So an unexpected one, from a peer whose ring is
// not in two halves, is accepted when it reads the same twice.
func (t *targets) accept() {
	for t.target[t.next].length == 0 {
		raw := t.table[t.next*sgeSize:][:sgeSize]
		// The peer's device writes this memory at any time. An entry of length 0 is one that this
		// side has cleared.
		s := getSGE(raw, binary.NativeEndian)
		if s.length == 0 {
			return
		}
		if s != t.expect[t.next] && s != t.unconfirmed {
			t.unconfirmed = s
			return
		}
		t.unconfirmed = sge{}
		t.target[t.next], t.expect[t.next] = s, s
		clear(raw)
		t.next ^= 1
	}
}

func (t *targets) full() bool { return t.target[t.cur].length == 0 }

func (t *targets) room() int { return int(t.target[0].length) + int(t.target[1].length) }

// take returns where the first n of at most most bytes go.
func (t *targets) take(most int) (to sge, n int) {
	s := &t.target[t.cur]
	// A message does not go on in the next target, which may be elsewhere: the rest is another
	// message.
	to, n = *s, int(min(uint64(most), uint64(s.length)))
	s.addr += uint64(n)
	if s.length -= uint32(n); s.length == 0 {
		t.cur ^= 1
	}
	return to, n
}

// requests are the requests of a message: an RDMA WRITE with the message as its immediate. iWARP
// has no immediates (RFC 5040): there the message is a SEND, after the RDMA WRITE if that has data
// (RS_OPT_MSG_SEND in C). The SEND is delivered after the WRITE's data has been placed.
type requests struct {
	wrs [2]verbs.SendWR
	sgl [1]verbs.SGE
	msg [4]byte
}

// fill returns the requests of m. The first is complete except for its opcode and
// immediate. Fields are set one by one, as a SendWR is large.
func (r *requests) fill(m message, iwarp bool) []verbs.SendWR {
	w, msg := &r.wrs[0], &r.wrs[1]
	if !iwarp {
		w.Opcode, w.Imm = verbs.OpRDMAWriteImm, uint32(m)
		return r.wrs[:1]
	}
	w.Opcode = verbs.OpRDMAWrite
	binary.NativeEndian.PutUint32(r.msg[:], uint32(m))
	msg.Opcode, msg.Inline, msg.Flags = verbs.OpSend, r.msg[:], 0
	if len(w.SGL)+len(w.Inline) == 0 {
		return r.wrs[1:]
	}
	return r.wrs[:]
}

// Write writes all of p, and waits for the peer to read if there is no room. It returns
// when the last of p has been passed to the device. Errors match net.ErrClosed after
// Close, EPIPE after CloseWrite or if the peer has closed, ECONNRESET if the connection
// broke, and ETIMEDOUT if the peer does not answer.
func (c *Conn) Write(p []byte) (int, error) {
	if err := c.enter(&c.writer.mu); err != nil {
		return 0, c.wrap("write", err)
	}
	defer c.leave(&c.writer.mu)
	n, err := c.writer.write(p)
	return n, c.wrap("write", err)
}

func (w *writer) write(p []byte) (n int, err error) {
	// As long as there is room, nothing else would tell a program that only writes that its peer
	// has closed.
	w.c.reader.progress()
	w.c.control.grant() // a peer that waits to write may otherwise wait as long as there is room
	if err := w.c.report(w.c.writeErr()); err != nil {
		return 0, err
	}
	if w.waiter.expired() {
		return 0, os.ErrDeadlineExceeded
	}
	for n < len(p) && err == nil {
		rest, inline := p[n:], len(p)-n <= w.c.opt.Inline
		buf := w.ring.inline // p may fault, which posting must not: it holds locks and uses credits
		if !inline {
			if buf, err = w.reserve(len(rest)); err != nil {
				break
			}
		}
		m := w.c.copy(buf, rest)
		m, err = w.send(buf[:m], inline)
		n += m
	}
	return n, err
}

// chunk returns the largest size of a message. The ring holds several, so copying and
// sending overlap.
func (w *writer) chunk() int { return min(len(w.ring.buf)/4, maxChunk) }

// reserve waits for room in the send ring and returns it, n bytes at most.
func (w *writer) reserve(n int) ([]byte, error) {
	s := &w.ring
	s.room = min(n, lowWater, len(s.buf)/4)
	w.grow(n)
	if err := w.wait((*Conn).hasRoom); err != nil {
		return nil, err
	}
	at, free := s.space()
	return s.buf[at:][:min(n, w.chunk(), len(s.buf)-at, free)], nil
}

// hasRoom reports whether a Write need not wait: the send ring has room, or never will.
func (c *Conn) hasRoom() bool {
	w := &c.writer
	if w.full = !w.ring.fits(); w.full {
		w.reap()
		w.full = !w.ring.fits()
	}
	return !w.full || c.writeErr() != nil
}

// canSend reports whether a Write need not wait: it can post a message, or never can.
func (c *Conn) canSend() bool {
	w := &c.writer
	w.full = false
	// Only a message of the peer ends these two shortages; a completion of this side ends the
	// third.
	if w.credits.left() == 0 || w.targets.full() {
		return c.writeErr() != nil
	}
	if w.signals.free() < w.signals.cost {
		w.reap()
	}
	w.full = w.signals.free() < w.signals.cost
	return !w.full || c.writeErr() != nil
}

// send posts data, which is inline or at the head of the send ring, in as many
// messages as the peer's ring takes.
func (w *writer) send(data []byte, inline bool) (n int, err error) {
	for n < len(data) {
		if err := w.wait((*Conn).canSend); err != nil {
			return n, err
		}
		wrs, m := w.prepare(data[n:], inline)
		w.c.mu.Unlock() // posting may take long
		_, err := w.c.qp.PostSend(wrs...)
		w.c.mu.Lock()
		if err != nil {
			w.c.fail(&resetError{err})
			return n, w.c.report(w.c.err)
		}
		n += m
	}
	return n, nil
}

// prepare makes a message of the first n bytes of data, as many as the target takes.
func (w *writer) prepare(data []byte, inline bool) (wrs []verbs.SendWR, n int) {
	to, n := w.targets.take(len(data))
	r := &w.requests
	wr := &r.wrs[0]
	wr.RemoteAddr, wr.RKey, wr.Flags = to.addr, to.key, 0
	if inline {
		wr.Inline, wr.SGL = data[:n], nil
	} else {
		r.sgl[0] = w.ring.take(n)
		wr.Inline, wr.SGL = nil, r.sgl[:]
	}
	// Posted in this order, messages find receives and space in this order.
	w.credits.seq++
	w.sent += uint64(n)
	w.messages++
	wrs = r.fill(opData|message(n), w.c.iwarp)
	which, id := w.signals.post(inline, w.ring.head)
	last := &wrs[len(wrs)-1]
	switch which {
	case signalNone:
		return wrs, n
	case signalFirst:
		last = &wrs[0]
	}
	last.Flags, last.ID = verbs.SendSignaled, id
	return wrs, n
}

// reap polls the completions of sends. If the connection has failed, the first failed request has
// the reason, and all later ones are flushed.
func (w *writer) reap() {
	var failed error
	for n := len(w.wcs); n == len(w.wcs); {
		n = w.cq.Poll(w.wcs[:])
		for i := range w.wcs[:n] {
			wc := &w.wcs[i]
			switch {
			case wc.Status != verbs.WCSuccess:
				w.lost = w.lost || wc.ID&ctrlID == 0
				if wc.Status == verbs.WCFlushErr {
					failed = cmp.Or(failed, errEnded)
				} else if failed == nil || failed == errEnded {
					failed = wc.Err()
				}
			case wc.ID&ctrlID != 0:
				w.c.control.used -= int(wc.ID &^ ctrlID)
			default:
				s := &w.ring
				// The difference of 32 bit counts is right as long as the ring is smaller than 4
				// GiB.
				s.freed += uint64(w.signals.completed(wc.ID) - uint32(s.freed))
			}
		}
	}
	if failed == errEnded {
		failed = cmp.Or(w.c.ep.Err(), failed)
	}
	if failed != nil {
		w.c.fail(&resetError{failed})
	}
}

// wait waits until ready, for a Write, counts the wait, and returns writeErr.
func (w *writer) wait(ready func(*Conn) bool) error {
	if !ready(w.c) {
		s := &w.c.waits.peer
		if w.full {
			s = &w.c.waits.queue
		}
		s.start()
		err := w.c.wait(&w.waiter, ready)
		s.stop()
		if err != nil {
			return err
		}
	}
	return w.c.report(w.c.writeErr())
}

// ReadFrom writes what r returns until io.EOF, and returns the number of bytes written.
// No lock is held while r reads, so other calls proceed and their data may be
// interleaved, as with [net.TCPConn].
func (c *Conn) ReadFrom(r io.Reader) (int64, error) {
	n, err := io.CopyBuffer(struct{ io.Writer }{c}, r, make([]byte, maxChunk))
	return n, c.wrap("readfrom", err)
}
