package rsock

import (
	"cmp"
	"io"
	"os"
	"sync"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/uverbs"
)

// reader is the receiving half of a Conn. The peer writes to its ring, and announces the data in
// messages, each of which takes a receive.
type reader struct {
	c      *Conn
	mu     sync.Mutex // held by Read, taken before the Conn's mu
	ring   recvRing
	queue  recvQueue
	cq     *uverbs.CQ
	armed  bool
	wcs    [16]verbs.WC
	waiter waiter
	growth growth
}

// recvRing is the memory that the peer writes to. received, consumed and offered count
// bytes since the start:
//
//	consumed         received            offered
//	   │ to be read      │ the peer may write │
//
// The peer's device writes without asking, so the counts are checked when a message announces the
// data: a peer that writes to other places harms only its own stream.
type recvRing struct {
	buf      []byte
	start    uint64 // the count at which buf begins
	next     []byte // a larger ring, which the peer writes to from the count end on; nil if none
	end      uint64
	copying  bool // Read copies from buf, without the Conn's mu
	received uint64
	consumed uint64
	offered  uint64
	messages uint64
	seq      uint16 // number of messages received, modulo 2^16
	limit    uint16 // the seq up to which the peer has credits
}

// unread returns the number of received bytes that Read has not returned.
func (r *recvRing) unread() int { return int(r.received - r.consumed) }

// piece returns the contiguous part of the unread bytes.
func (r *recvRing) piece() []byte {
	n := r.unread()
	if r.next != nil {
		if r.consumed >= r.end {
			r.buf, r.start, r.next = r.next, r.end, nil
		} else {
			n = min(n, int(r.end-r.consumed))
		}
	}
	from := int((r.consumed - r.start) % uint64(len(r.buf)))
	return r.buf[from:][:min(n, len(r.buf)-from)]
}

// discard drops all unread bytes, unless Read is copying them.
func (r *recvRing) discard() {
	if !r.copying {
		r.consumed = r.received
	}
}

// arrived accounts for a message of n bytes.
func (r *recvRing) arrived(n int) error {
	switch {
	// Both limits are the peer's duty. A connection that goes on after a violation would read old
	// bytes, or run out of receives.
	case n == 0 || r.received+uint64(n) > r.offered:
		return protocolError("%d bytes where %d were offered", n, r.offered-r.received)
	case r.seq == r.limit:
		return protocolError("more messages than it has credits for")
	}
	r.received += uint64(n)
	r.messages++
	r.seq++
	return nil
}

// recvQueue is the receive queue. Each message consumes a receive, in the order of the messages;
// credits ensure that it finds one. On RoCE receives have no memory: the message is the immediate
// in the completion.
type recvQueue struct {
	size int    // number of posted receives
	next int    // the next to be posted
	buf  []byte // for iWARP's messages; nil on RoCE
	addr uint64 // of buf
	wrs  [16]verbs.RecvWR
	sgl  [16]verbs.SGE
}

// init makes the messages arrive in a region.
func (q *recvQueue) init(mr *uverbs.MR) {
	q.buf = mr.Bytes()
	for i := range q.wrs {
		q.sgl[i] = mr.SGE(0, messageSize)
		q.wrs[i].SGL = q.sgl[i : i+1]
	}
	q.addr = q.sgl[0].Addr
}

// post posts n receives. n is at most the length of q.wrs.
func (q *recvQueue) post(qp *uverbs.QP, n int) error {
	for i := range n {
		q.wrs[i].ID = uint64(q.next)
		if q.buf != nil {
			q.sgl[i].Addr = q.addr + uint64(messageSize*q.next)
		}
		q.next = (q.next + 1) % q.size
	}
	_, err := qp.PostRecv(q.wrs[:n]...)
	return err
}

// smallCopy is the size up to which mu stays locked: unlocking takes longer than the copy.
const smallCopy = 512

// copy copies between a ring and the caller's memory, which may fault: the Conn stays usable after
// a panic. The caller holds mu, which is unlocked during longer copies.
func (c *Conn) copy(dst, src []byte) int {
	if min(len(dst), len(src)) <= smallCopy {
		return copy(dst, src)
	}
	c.mu.Unlock()
	defer c.mu.Lock()
	return copy(dst, src)
}

// Read reads up to len(p) bytes, and waits if none have arrived. After the peer's
// CloseWrite or Close, when all has been read, it returns io.EOF. If the connection ended
// otherwise, the error matches ECONNRESET, or ETIMEDOUT if the peer does not answer.
func (c *Conn) Read(p []byte) (int, error) {
	if err := c.enter(&c.reader.mu); err != nil {
		return 0, c.wrap("read", err)
	}
	defer c.leave(&c.reader.mu)
	n, err := c.reader.read(p)
	return n, c.wrap("read", err)
}

func (r *reader) read(p []byte) (n int, err error) {
	switch {
	case len(p) == 0:
		return 0, nil
	case r.waiter.expired():
		return 0, os.ErrDeadlineExceeded
	case r.ring.unread() < len(p): // otherwise there is no need to poll for more
		if err := r.c.wait(&r.waiter, (*Conn).readable); err != nil {
			return 0, err
		}
	}
	if r.ring.unread() == 0 {
		return 0, r.c.report(r.c.readErr())
	}
	n = r.copyUnread(p)
	r.discard()
	r.grow()
	r.c.control.grant() // the peer may write there again
	return n, nil
}

// readable reports whether Read need not wait.
func (c *Conn) readable() bool { return c.reader.ring.unread() > 0 || c.readErr() != nil }

func (r *reader) copyUnread(p []byte) (n int) {
	r.ring.copying = true
	defer func() { r.ring.copying = false }()
	for n < len(p) && r.ring.unread() > 0 {
		m := r.c.copy(p[n:], r.ring.piece())
		n += m
		r.ring.consumed += uint64(m)
	}
	return n
}

func (r *reader) discard() {
	if r.c.local&readEnded != 0 {
		r.ring.discard()
	}
}

func (r *reader) progress() {
	for n := len(r.wcs); n == len(r.wcs); {
		n = r.cq.Poll(r.wcs[:])
		taken := 0
		for i := range r.wcs[:n] {
			if r.c.ignoresMessages() {
				break
			}
			if r.handle(&r.wcs[i]) {
				taken++
			}
		}
		// The receives are there again before grant tells the peer of new credits.
		if taken > 0 && !r.c.isOver() {
			if err := r.queue.post(r.c.qp, taken); err != nil {
				r.c.fail(&resetError{err})
			}
		}
	}
}

// handle handles the completion of a receive and reports whether it has a message. A message is
// complete after the WRITE before it: RC and iWARP both deliver in order, so the data is in the
// ring when its message is seen.
func (r *reader) handle(wc *verbs.WC) bool {
	c := r.c
	// The connection has ended, as expected after DISCONNECT, and the device gives back the
	// receives.
	if wc.Status == verbs.WCFlushErr {
		if !c.isOver() {
			c.writer.reap() // the error of a failed request is more precise
			c.fail(&resetError{cmp.Or(c.ep.Err(), errEnded)})
		}
		return false
	}
	if wc.Status != verbs.WCSuccess {
		c.fail(&resetError{wc.Err()})
		return false
	}
	var m message
	var err error
	switch {
	case !c.iwarp && wc.Flags&verbs.WCWithImm != 0:
		m = message(wc.Imm())
	case c.iwarp && wc.ByteLen == messageSize:
		// C sends the 4 bytes in the byte order of its host.
		m = message(c.hello.order().Uint32(r.queue.buf[messageSize*wc.ID:]))
	default:
		err = protocolError("a message of %d bytes", wc.ByteLen)
	}
	if err == nil {
		c.control.mayGrant = true
		err = c.handleMessage(m)
	}
	if err != nil {
		c.fail(err)
	}
	return err == nil
}

// arrived accounts for a message of n bytes.
func (r *reader) arrived(n int) error {
	if !r.c.peer.canWrite() {
		return protocolError("data after the end")
	}
	err := r.ring.arrived(n)
	r.discard()
	return err
}

// WriteTo copies data from the connection to w until the peer ends writing, and returns
// the number of bytes written. No lock is held while w writes, so other calls proceed and
// may read part of the data, as with [net.TCPConn].
func (c *Conn) WriteTo(w io.Writer) (int64, error) {
	n, err := io.CopyBuffer(w, struct{ io.Reader }{c}, make([]byte, maxChunk))
	return n, c.wrap("writeto", err)
}

var (
	_ io.WriterTo   = (*Conn)(nil)
	_ io.ReaderFrom = (*Conn)(nil)
)
