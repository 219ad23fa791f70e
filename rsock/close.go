package rsock

import (
	"cmp"
	"errors"
	"syscall"
	"time"

	"github.com/goverbs/verbs"
)

// CloseRead ends reading: calls under way and later ones return io.EOF, and what comes is
// dropped. If CloseWrite was called before, the peer is informed that nothing is read any
// more.
func (c *Conn) CloseRead() error { return c.closeSide(readEnded) }

// CloseWrite ends writing: the peer reads what was written, then io.EOF, and may go on
// writing. Calls of Write under way and later ones fail with EPIPE. CloseWrite does not
// wait for the peer to read. It waits for a peer that has no room for messages, 10 s at
// most, whatever the deadlines. A [*net.TCPConn] has it as well.
func (c *Conn) CloseWrite() error { return c.closeSide(writeEnded) }

func (c *Conn) closeSide(s side) error {
	if err := c.enter(&c.closeMu); err != nil {
		return c.wrap("close", err)
	}
	err := c.endSide(s)
	c.leave(&c.closeMu)
	return c.wrap("close", err)
}

func (c *Conn) endSide(s side) error {
	if c.local&s != 0 {
		return syscall.ENOTCONN
	}
	c.local |= s
	c.discard()
	c.group.SignalAll()
	c.awaitWrite()
	m := msgShutdown
	switch c.local &^ closed {
	case readEnded:
		return nil
	case bothEnded:
		m = msgDisconnect
	}
	return c.sendEnd(m, time.Now().Add(linger))
}

// awaitWrite waits for a Write that can write no more to return, so that nothing is posted
// after the end. mu is held, but not meanwhile.
func (c *Conn) awaitWrite() {
	if !c.local.canWrite() {
		c.mu.Unlock()
		c.writeMu.Lock()
		c.mu.Lock()
		c.writeMu.Unlock()
	}
}

// sendEnd posts SHUTDOWN or DISCONNECT, after all data. mu is held, but not
// while it waits, until deadline.
func (c *Conn) sendEnd(m message, deadline time.Time) error {
	err := c.waitToClose(deadline, func(c *Conn) bool { return c.isOver() || c.hasControl(1) })
	if err != nil || c.isOver() {
		return cmp.Or(err, c.err)
	}
	c.postControl(m, false)
	return c.err
}

// isAcked reports whether all that was posted has reached the peer, or never will.
func (c *Conn) isAcked() bool {
	c.reap()
	return c.isOver() || c.control.used == 0
}

// Close ends the connection. What was written is delivered first, for which Close waits up
// to 10 s, or as long as set by [Conn.SetLinger]; it returns an error if that fails or the
// connection breaks meanwhile. Calls of Read and Write under way and later ones fail with
// net.ErrClosed, as does another Close.
func (c *Conn) Close() error {
	if err := c.enter(nil); err != nil {
		return c.wrap("close", err)
	}
	c.local |= closed
	c.startProbes(0)
	c.group.SignalAll()
	deadline := time.Now().Add(c.linger)
	c.mu.Unlock()
	c.closeMu.Lock() // a CloseRead or CloseWrite under way ends soon
	c.mu.Lock()
	err := c.goodbye(deadline)
	return c.wrap("close", cmp.Or(err, c.leave(&c.closeMu)))
}

// goodbye says DISCONNECT and waits until it, and all before it, has arrived. A
// peer that has said so itself reads nothing any more. When both sides have said
// SHUTDOWN there is nothing left to say, on RoCE.
//
// On iWARP requests complete when TCP has them, and ending a connection may lose
// what is on its way: if the peer sends something meanwhile, TCP resets it. So the
// peer gets a moment to end it, as this package does when it reads DISCONNECT.
//
// On RoCE the side that has read DISCONNECT leaves the end to the other: rxe completes
// a receive before it acknowledges the message, which it does not do any more if
// the connection is ended in between.
func (c *Conn) goodbye(deadline time.Time) error {
	c.awaitWrite()
	if c.linger == 0 || c.err != nil {
		return nil
	}
	if c.isOver() {
		c.mu.Unlock()
		select {
		case <-c.ep.Done():
		case <-time.After(lastAck):
		}
		c.mu.Lock()
		return nil
	}
	ended := !c.peer.canWrite() && c.local&writeEnded != 0
	if !ended {
		if err := c.sendEnd(msgDisconnect, deadline); err != nil {
			return err
		}
	}
	err := c.waitToClose(deadline, (*Conn).isAcked)
	if c.iwarp && err == nil && !c.isOver() {
		if ended {
			c.sendEnd(msgDisconnect, deadline) // or the peer waits for us, if it still does
		}
		if t := time.Now().Add(lastMoment); t.Before(deadline) {
			deadline = t
		}
		c.waitToClose(deadline, (*Conn).isOver)
		return nil
	}
	// A peer that has all may have ended the connection before we saw all of it
	// acknowledged: rxe drops the acknowledgements that it has not handled by then.
	// When both sides have said SHUTDOWN the peer has ours, or it would have said
	// DISCONNECT.
	left := errors.Is(c.err, verbs.ErrDisconnected) || errors.Is(c.err, errEnded)
	if c.peer == bothEnded || c.control.used == 0 || ended && left {
		return nil
	}
	return cmp.Or(err, c.err)
}

// SetLinger sets how many seconds Close waits for what was written to arrive. With 0,
// Close does not wait and breaks the connection: the peer's calls fail with ECONNRESET.
// With a negative value, Close waits up to 10 s.
func (c *Conn) SetLinger(sec int) error {
	return c.set(func() {
		c.linger = time.Duration(sec) * time.Second
		if sec < 0 {
			c.linger = linger
		}
	})
}
