package rsock

import (
	"cmp"
	"errors"
	"net"
	"syscall"
	"time"

	"github.com/goverbs/verbs"
)

// CloseWrite ends writing: the peer reads what was written, then io.EOF, and may go on
// writing. Calls of Write under way and later ones fail with EPIPE. CloseWrite does not
// wait for the peer to read. It waits for a peer that has no room for messages, 10 s at
// most, whatever the deadlines. A [*net.TCPConn] has it as well.
func (c *Conn) CloseWrite() error {
	c.cmu.Lock()
	defer c.cmu.Unlock()
	if err := c.enter(); err != nil {
		return c.wrap("close", err)
	}
	if c.writeEnd {
		c.leave()
		return c.wrap("close", syscall.ENOTCONN)
	}
	c.writeEnd = true
	c.wakeAll()
	c.finish()
	m := msgShutdown
	if c.readEnd {
		m = msgDisconnect
	}
	err := c.sendEnd(m, time.Now().Add(linger))
	c.leave()
	return c.wrap("close", err)
}

// finish ends the posting of data. mu is held, but not meanwhile.
func (c *Conn) finish() {
	c.mu.Unlock()
	c.pmu.Lock()
	c.tx.finished = true
	c.pmu.Unlock()
	c.mu.Lock()
}

// sendEnd posts SHUTDOWN or DISCONNECT, after all data. mu is held, but not
// while it waits, until deadline.
func (c *Conn) sendEnd(m message, deadline time.Time) error {
	c.cl.deadline = deadline
	err := c.closing((*Conn).ctrlReady)
	if err != nil || c.err != nil || c.gone {
		return cmp.Or(err, c.err)
	}
	c.postCtrl(m, nil)
	return c.err
}

// ctrlReady reports whether a control message can be posted, or none ever.
func (c *Conn) ctrlReady() bool { return c.err != nil || c.gone || c.ctrlRoom(1) }

// quiet reports whether all that was posted has reached the peer, or never will.
func (c *Conn) quiet() bool {
	c.reap()
	return c.err != nil || c.gone || c.ctl.used == 0
}

// over reports whether the connection has ended.
func (c *Conn) over() bool { return c.err != nil || c.gone }

// left reports whether the connection has ended because the peer ended it.
func (c *Conn) left() bool {
	return errors.Is(c.err, verbs.ErrDisconnected) || errors.Is(c.err, errEnded)
}

func (c *Conn) closing(ready func(*Conn) bool) error {
	c.cl.waiting = true
	err := c.wait(&c.cl, ready)
	c.cl.waiting = false
	return err
}

// Close ends the connection. What was written is delivered first, for which Close waits up
// to 10 s, or as long as set by [Conn.SetLinger]; it returns an error if that fails or the
// connection breaks meanwhile. Calls of Read and Write under way and later ones fail with
// net.ErrClosed, as does another Close.
func (c *Conn) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return c.wrap("close", net.ErrClosed)
	}
	c.closed = true
	c.users++
	c.keepAlive(0)
	c.wakeAll()
	deadline := time.Now().Add(c.linger)
	c.mu.Unlock()
	c.cmu.Lock() // a CloseRead or CloseWrite under way ends soon
	c.mu.Lock()
	err := c.goodbye(deadline)
	c.cmu.Unlock()
	return c.wrap("close", cmp.Or(err, c.leave()))
}

// goodbye says DISCONNECT and waits until it, and all before it, has arrived. A
// peer that has said so itself reads nothing any more. When both sides have said
// SHUTDOWN there is nothing left to say, on RoCE.
//
// On iWARP requests complete when TCP has them, and ending a connection may lose
// what is on its way: if the peer sends something meanwhile, TCP resets it. So the
// peer gets a moment to end it, as this package does when it reads DISCONNECT.
//
// On RoCE it is who read DISCONNECT that leaves the end to the other: rxe completes
// a receive before it acknowledges the message, which it does not do any more if
// the connection is ended in between.
func (c *Conn) goodbye(deadline time.Time) error {
	c.finish()
	if c.linger == 0 || c.err != nil {
		return nil
	}
	if c.gone {
		c.mu.Unlock()
		select {
		case <-c.ep.Done():
		case <-time.After(lastAck):
		}
		c.mu.Lock()
		return nil
	}
	ended := c.eof && c.writeEnd
	if !ended {
		if err := c.sendEnd(msgDisconnect, deadline); err != nil {
			return err
		}
	}
	c.cl.deadline = deadline
	err := c.closing((*Conn).quiet)
	if c.iwarp && err == nil && c.err == nil && !c.gone {
		if ended {
			c.sendEnd(msgDisconnect, deadline) // or the peer waits for us, if it still does
		}
		if t := time.Now().Add(lastMoment); t.Before(deadline) {
			c.cl.deadline = t
		}
		c.closing((*Conn).over)
		return nil
	}
	// A peer that has all may have ended the connection before we saw all of it
	// acknowledged: rxe drops the acknowledgements that it has not handled by then.
	// When both sides have said SHUTDOWN the peer has ours, or it would have said
	// DISCONNECT.
	if c.gone || c.ctl.used == 0 || ended && c.left() {
		return nil
	}
	return cmp.Or(err, c.err)
}

// SetLinger sets how many seconds Close waits for what was written to arrive. With 0,
// Close does not wait and breaks the connection: the peer's calls fail with ECONNRESET.
// With a negative value, Close waits up to 10 s.
func (c *Conn) SetLinger(sec int) error {
	if err := c.enter(); err != nil {
		return c.wrap("set", err)
	}
	c.linger = time.Duration(sec) * time.Second
	if sec < 0 {
		c.linger = linger
	}
	return c.wrap("set", c.leave())
}
