package rsock

import (
	"io"
	"os"
	"syscall"
	"time"
)

// small is how many bytes are copied with mu held: unlocking it takes longer.
const small = 512

// copy is the builtin, between a ring and the caller's memory, which may fault:
// a panic leaves the Conn as it was. mu is held, but not during longer copies.
func (c *Conn) copy(dst, src []byte) int {
	if min(len(dst), len(src)) <= small {
		return copy(dst, src)
	}
	c.mu.Unlock()
	defer c.mu.Lock()
	return copy(dst, src)
}

// Read reads up to len(p) bytes, and waits if none have come. After the peer's CloseWrite
// or Close, when all has been read, it returns io.EOF. If the connection ended otherwise,
// the error matches ECONNRESET, or ETIMEDOUT if the peer does not answer.
func (c *Conn) Read(p []byte) (int, error) {
	c.rmu.Lock()
	defer c.rmu.Unlock()
	if err := c.enter(); err != nil {
		return 0, c.wrap("read", err)
	}
	defer c.leave()
	n, err := c.read(p)
	return n, c.wrap("read", err)
}

func (c *Conn) read(p []byte) (n int, err error) {
	if len(p) == 0 {
		return 0, nil
	}
	if err := c.awaitData(len(p)); err != nil {
		return 0, err
	}
	n = c.take(p)
	c.discard()
	c.grant()
	return n, nil
}

// take copies what has come to p.
func (c *Conn) take(p []byte) (n int) {
	c.in.reading = true
	defer func() { c.in.reading = false }()
	for n < len(p) {
		from := c.unread()
		if len(from) == 0 {
			break
		}
		m := c.copy(p[n:], from)
		n += m
		c.in.consumed += uint64(m)
	}
	return n
}

// awaitData waits until there is data; want is how much would be good to have.
func (c *Conn) awaitData(want int) error {
	in := &c.in
	if c.rd.expired() {
		return os.ErrDeadlineExceeded
	}
	if in.received-in.consumed < uint64(want) {
		if err := c.wait(&c.rd, (*Conn).readable); err != nil {
			return err
		}
	}
	switch {
	case c.readEnd:
		return io.EOF
	case in.received != in.consumed:
		return nil
	case c.eof:
		return io.EOF
	}
	return c.err
}

// readable reports whether a Read need wait no longer.
func (c *Conn) readable() bool {
	return c.in.received != c.in.consumed || c.eof || c.readEnd || c.err != nil
}

// unread is what of the data that has come lies in one piece.
func (c *Conn) unread() []byte {
	from := int(c.in.consumed % uint64(len(c.in.ring)))
	n := min(int(c.in.received-c.in.consumed), len(c.in.ring)-from)
	return c.in.ring[from:][:n]
}

// WriteTo writes to w what the peer sends until it ends, and returns the number of bytes
// written. No lock is held while w writes, so other calls proceed meanwhile, and take
// their part of the data, as with [net.TCPConn].
func (c *Conn) WriteTo(w io.Writer) (int64, error) {
	n, err := io.CopyBuffer(w, struct{ io.Reader }{c}, make([]byte, maxChunk))
	return n, c.wrap("writeto", err)
}

// CloseRead ends reading: calls under way and later ones return io.EOF, and what comes is
// dropped. If CloseWrite was called before, the peer is informed that nothing is read any
// more.
func (c *Conn) CloseRead() error {
	c.cmu.Lock()
	defer c.cmu.Unlock()
	if err := c.enter(); err != nil {
		return c.wrap("close", err)
	}
	if c.readEnd {
		c.leave()
		return c.wrap("close", syscall.ENOTCONN)
	}
	c.readEnd = true
	c.discard()
	c.wakeAll()
	var err error
	if c.writeEnd {
		err = c.sendEnd(msgDisconnect, time.Now().Add(linger))
	}
	c.leave()
	return c.wrap("close", err)
}

var (
	_ io.WriterTo   = (*Conn)(nil)
	_ io.ReaderFrom = (*Conn)(nil)
)
