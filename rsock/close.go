package rsock

import (
	"cmp"
	"errors"
	"math"
	"sync"
	"syscall"
	"time"

	"github.com/goverbs/verbs"
)

// closer ends a Conn, or one direction of it.
type closer struct {
	c      *Conn
	mu     sync.Mutex // held by CloseRead, CloseWrite and Close, taken before the Conn's mu
	linger time.Duration
	behind bool // Close returns before the written data has arrived
	told   bool // DISCONNECT is posted
	waiter waiter
}

// CloseRead ends reading: running and later calls of Read return io.EOF, and arriving data is
// dropped. If CloseWrite was called before, the peer learns that nobody reads its data any more.
func (c *Conn) CloseRead() error { return c.closer.end(readEnded) }

// CloseWrite ends writing: the peer reads the data that is under way, then io.EOF, and may continue
// to write. Running and later calls of Write fail with EPIPE. CloseWrite does not wait for the peer
// to read, but for room for its message, 10 s at most; deadlines do not apply. Once both sides have
// ended writing, CloseRead and CloseWrite fail with ENOTCONN. A [*net.TCPConn] has the same
// methods.
func (c *Conn) CloseWrite() error { return c.closer.end(writeEnded) }

func (e *closer) end(s closeState) error {
	c := e.c
	err := c.enter(nil)
	if err == nil { // not closed: Close holds mu until the data has arrived
		c.leave(nil)
		err = c.enter(&e.mu)
	}
	if err != nil {
		return c.wrap("close", err)
	}
	err = e.endLocked(s)
	c.leave(&e.mu)
	return c.wrap("close", err)
}

func (e *closer) endLocked(s closeState) error {
	c := e.c
	switch { // as shutdown(2)
	case c.local&writeEnded != 0 && !c.peer.canWrite():
		return syscall.ENOTCONN
	case c.local&s != 0:
		return nil
	}
	c.local |= s
	c.reader.discard()
	c.group.SignalAll()
	e.awaitWrite()
	m := msgShutdown
	// The protocol has messages for the end of writing and for the end of both directions. The peer
	// does not learn of the end of reading alone: its data is taken and dropped.
	switch c.local &^ closed {
	case readEnded:
		return nil
	case bothEnded:
		m = msgDisconnect
	}
	return e.send(m, time.Now().Add(linger))
}

// awaitWrite waits until a Write that can write no more has returned, so that no data is posted
// after the message of the end: RC and TCP keep the order, so the peer has all data when it sees
// the end. The caller holds mu, which is unlocked during the wait.
func (e *closer) awaitWrite() {
	if c := e.c; !c.local.canWrite() {
		c.mu.Unlock()
		c.writer.mu.Lock()
		c.mu.Lock()
		c.writer.mu.Unlock()
	}
}

// send posts SHUTDOWN or DISCONNECT, after all data, and nothing after DISCONNECT.
func (e *closer) send(m message, deadline time.Time) error {
	if e.told {
		return nil
	}
	return e.post(func(t *control) {
		t.post(m, false)
		e.told = m == msgDisconnect
	}, deadline)
}

// post calls post when there is room for a control message. The caller holds mu, which is unlocked
// during the wait.
func (e *closer) post(post func(*control), deadline time.Time) error {
	c := e.c
	err := e.wait(deadline, func(c *Conn) bool { return c.isOver() || c.control.has(1) })
	if err == nil && !c.isOver() {
		post(&c.control)
	}
	return cmp.Or(err, c.err)
}

// isAcked reports whether everything posted has reached the peer, or never will. Control messages
// are signaled, and the last one completes after all data before it: on RoCE when the peer's device
// has acknowledged it.
func (c *Conn) isAcked() bool {
	c.writer.reap()
	return c.isOver() || c.control.used == 0
}

// Close ends the connection. The peer reads all written data, and then io.EOF, or ECONNRESET if
// this side has unread data. Running and later calls of Read and Write fail with net.ErrClosed, as
// does another Close. As with TCP, written data is still delivered, but not by the kernel: a
// process that exits meanwhile loses it. Therefore Close of a connection that was dialed waits for
// the delivery, up to 10 s, and returns an error if it fails or has failed before: programs write,
// close and exit.
//
// Close of a connection that was accepted returns at once, as servers close many while they hold
// locks: one client whose machine has died would keep net/http and gRPC waiting until the device
// gives up, 4 s. Delivery goes on in the background for up to 10 s; failures are logged.
// [Listener.Shutdown] waits for it.
//
// The device has the data already, and the peer has offered room for it: delivery does not wait
// until the peer's program reads, and takes no longer than the network. Options.Linger and
// [Conn.SetLinger] choose otherwise.
func (c *Conn) Close() error {
	if c == nil {
		return verbs.ErrClosed
	}
	if err := c.enter(nil); err != nil {
		return c.wrap("close", err)
	}
	c.local |= closed
	c.control.startProbes(0)
	c.group.SignalAll()
	behind := c.closer.behind
	deadline := time.Now().Add(c.closer.linger)
	c.mu.Unlock()
	if !behind {
		return c.wrap("close", c.closer.finish(deadline))
	}
	go func() {
		if err := c.closer.finish(deadline); err != nil {
			c.logFailure(c.wrap("close", err))
		}
	}()
	return nil
}

// finish delivers the written data, and ends the call of Close.
func (e *closer) finish(deadline time.Time) error {
	e.mu.Lock() // a running CloseRead or CloseWrite ends soon
	e.c.mu.Lock()
	err := e.disconnect(deadline)
	return cmp.Or(err, e.c.leave(&e.mu))
}

// disconnect sends DISCONNECT and waits until it, and all data before it, has arrived. A peer that
// has sent DISCONNECT itself reads no more. On RoCE nothing is sent if both sides have sent
// SHUTDOWN.
//
// On iWARP requests complete when TCP has them, and ending a connection may lose data in flight: if
// the peer sends something meanwhile, TCP resets the connection. So disconnect waits
// disconnectTimeout for the peer to end it, as this package does when it reads DISCONNECT.
//
// On RoCE the side that has read DISCONNECT lets the other side end the connection: rxe completes a
// receive before it acknowledges the message, and never acknowledges it if the connection ends in
// between.
func (e *closer) disconnect(deadline time.Time) error {
	c := e.c
	e.awaitWrite()
	if e.linger == 0 {
		return nil
	}
	c.reader.progress() // the peer's end may have come, also before a failure
	if c.err != nil {
		return e.lost()
	}
	if c.isOver() {
		c.mu.Unlock()
		select {
		case <-c.ep.Done(): // the peer ends it
		case <-time.After(lastAckTimeout): // this side has nothing to lose
		}
		c.mu.Lock()
		return nil
	}
	ended := e.ended()
	// Like TCP, reset a connection that is closed with unread data, so that the peer does not take
	// the data for read. Written data is delivered before: a request of no bytes proves it.
	reset := c.reader.ring.unread() > 0
	var err error
	switch {
	case reset:
		err = e.post((*control).ping, deadline)
	case !ended:
		err = e.send(msgDisconnect, deadline)
	}
	if err != nil {
		return err
	}
	err = e.wait(deadline, (*Conn).isAcked)
	if c.iwarp && !reset && err == nil && !c.isOver() {
		if ended {
			e.send(msgDisconnect, deadline) // the peer may still wait for it
		}
		if t := time.Now().Add(disconnectTimeout); t.Before(deadline) {
			deadline = t
		}
		e.wait(deadline, (*Conn).isOver)
		return nil
	}
	// A peer that has received everything may have ended the connection before all of it is
	// acknowledged here: rxe drops acknowledgements that it has not handled by then. If both sides
	// have sent SHUTDOWN, the peer has ours, or it would have sent DISCONNECT.
	left := errors.Is(c.err, verbs.ErrDisconnected) || errors.Is(c.err, errEnded)
	if c.peer == bothEnded || c.control.used == 0 || ended && left {
		return nil
	}
	return cmp.Or(err, c.err)
}

// ended reports whether both directions have ended by SHUTDOWN: nothing is left to tell.
func (e *closer) ended() bool { return !e.c.peer.canWrite() && e.c.local&writeEnded != 0 }

// lost returns why a connection has failed before, if that has lost data and the program does not know it:
// KeepAlive or Stats found it.
func (e *closer) lost() error {
	c := e.c
	c.writer.reap()
	if !c.writer.lost || c.reported || e.behind || c.peer == bothEnded || e.ended() {
		return nil
	}
	return c.err
}

// wait waits until ready.
func (e *closer) wait(deadline time.Time, ready func(*Conn) bool) error {
	e.waiter.deadline = deadline
	return e.c.wait(&e.waiter, ready)
}

// SetLinger sets how many seconds Close waits for written data to arrive. With 0, Close does not
// wait and breaks the connection: the peer's calls fail with ECONNRESET. With a negative value,
// Close returns at once, as the Close of a [net.TCPConn], and the data is delivered in the
// background for up to 10 s. Options.Linger does the same for all connections.
func (c *Conn) SetLinger(sec int) error {
	d := time.Duration(min(max(int64(sec), -1), math.MaxInt64/int64(time.Second))) * time.Second
	return c.set(func() { c.closer.setLinger(d) })
}

// setLinger sets how long Close waits; with a negative time it does not.
func (e *closer) setLinger(d time.Duration) {
	e.linger, e.behind = d, d < 0
	if e.behind {
		e.linger = linger
	}
}
