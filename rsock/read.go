package rsock

import (
	"io"
	"os"
	"syscall"
	"time"
)

// small is what is copied with the lock held: letting it go takes longer.
const small = 512

// Read reads what has come, up to len(p) bytes, and waits if there is nothing.
// After the peer's CloseWrite or Close, when all has been read, it returns
// io.EOF; if the connection ended otherwise an error that matches ECONNRESET, or
// ETIMEDOUT if the peer does not answer.
func (c *Conn) Read(p []byte) (int, error) {
	c.rmu.Lock()
	defer c.rmu.Unlock()
	if err := c.enter(); err != nil {
		return 0, c.wrap("read", err)
	}
	n, err := c.read(p)
	c.leave()
	return n, c.wrap("read", err)
}

func (c *Conn) read(p []byte) (n int, err error) {
	if len(p) == 0 {
		return 0, nil
	}
	if err := c.awaitData(len(p)); err != nil {
		return 0, err
	}
	for n < len(p) {
		from := c.unread()
		if len(from) == 0 {
			break
		}
		part := p[n:]
		if len(part) > small {
			c.in.reading = true
			c.mu.Unlock()
			part = part[:copy(part, from)]
			c.mu.Lock()
			c.in.reading = false
		} else {
			part = part[:copy(part, from)]
		}
		n += len(part)
		c.in.consumed += uint64(len(part))
	}
	c.discard()
	c.grant()
	return n, nil
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

// readable tells whether a Read need wait no longer.
func (c *Conn) readable() bool {
	return c.in.received != c.in.consumed || c.eof || c.readEnd || c.err != nil
}

// unread is what of the data that has come lies in one piece.
func (c *Conn) unread() []byte {
	from := int(c.in.consumed % uint64(len(c.in.ring)))
	n := min(int(c.in.received-c.in.consumed), len(c.in.ring)-from)
	return c.in.ring[from:][:n]
}

// WriteTo writes what comes to w, until the end of it, and returns how much that
// was. It hands w the receive ring itself: w must not keep what it is given,
// nor write to it, as [io.Writer] says. A peer that breaks the rules may change
// the bytes meanwhile: a w that looks at them twice may see two things.
func (c *Conn) WriteTo(w io.Writer) (n int64, err error) {
	c.rmu.Lock()
	defer c.rmu.Unlock()
	if err := c.enter(); err != nil {
		return 0, c.wrap("read", err)
	}
	for err == nil {
		if err = c.awaitData(1); err != nil {
			break
		}
		// Not too much at once: the peer waits for room.
		from := c.unread()
		from = from[:min(len(from), max(len(c.in.ring)/8, 2048))]
		c.in.reading = true
		c.mu.Unlock()
		written, werr := w.Write(from)
		if written < 0 || written > len(from) {
			written, werr = 0, errInvalidWrite
		} else if written < len(from) && werr == nil {
			werr = io.ErrShortWrite
		}
		c.mu.Lock()
		c.in.reading = false
		c.in.consumed += uint64(written)
		n += int64(written)
		c.discard()
		c.grant()
		if werr != nil {
			c.leave()
			return n, werr
		}
	}
	c.leave()
	if err == io.EOF {
		return n, nil
	}
	return n, c.wrap("read", err)
}

// CloseRead ends reading: calls under way or to come get io.EOF, and what comes
// is dropped. If CloseWrite was called before, the peer is told that nothing is
// read any more.
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
