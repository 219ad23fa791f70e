package rsock

import (
	"io"
	"os"
)

// recvRing is the memory that the peer writes to. received, consumed and offered count
// bytes since the start.
type recvRing struct {
	buf      []byte
	copying  bool // Read copies from buf, without mu
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
	from := int(r.consumed % uint64(len(r.buf)))
	return r.buf[from:][:min(r.unread(), len(r.buf)-from)]
}

// discard drops data received after CloseRead.
func (c *Conn) discard() {
	if r := &c.recvRing; c.local&readEnded != 0 && !r.copying {
		r.consumed = r.received
	}
}

// smallCopy is the size up to which mu stays locked: unlocking takes longer than the copy.
const smallCopy = 512

// copy copies between a ring and the caller's memory, which may fault: the Conn stays
// usable after a panic. The caller holds mu, which is unlocked during longer copies.
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
	if err := c.enter(&c.readMu); err != nil {
		return 0, c.wrap("read", err)
	}
	defer c.leave(&c.readMu)
	n, err := c.read(p)
	return n, c.wrap("read", err)
}

func (c *Conn) read(p []byte) (n int, err error) {
	r := &c.recvRing
	switch {
	case len(p) == 0:
		return 0, nil
	case c.reader.expired():
		return 0, os.ErrDeadlineExceeded
	case r.unread() < len(p): // otherwise there is no need to poll for more
		if err := c.wait(&c.reader, (*Conn).readable); err != nil {
			return 0, err
		}
	}
	if r.unread() == 0 {
		return 0, c.readErr()
	}
	n = c.copyUnread(p)
	c.discard()
	c.grant()
	return n, nil
}

// readable reports whether Read need not wait.
func (c *Conn) readable() bool { return c.recvRing.unread() > 0 || c.readErr() != nil }

// copyUnread copies unread bytes to p.
func (c *Conn) copyUnread(p []byte) (n int) {
	r := &c.recvRing
	r.copying = true
	defer func() { r.copying = false }()
	for n < len(p) && r.unread() > 0 {
		m := c.copy(p[n:], r.piece())
		n += m
		r.consumed += uint64(m)
	}
	return n
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
