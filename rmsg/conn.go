package rmsg

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/uverbs"
)

// State is the state of a connection.
type State int

const (
	Connecting State = iota
	Established
	Disconnecting // messages posted before are still sent and received
	Disconnected
)

func (c State) String() string {
	names := [...]string{"connecting", "established", "disconnecting", "disconnected"}
	if c < 0 || int(c) >= len(names) {
		return "unknown"
	}
	return names[c]
}

// Conn is one end of a connection that carries messages in order. Its methods may be called by
// several goroutines. Its memory is released when it has ended and its buffers have been freed.
type Conn struct {
	l             *Loop
	id            uint32
	addr          string // of the peer, for errors
	dialed        bool
	ctx           context.Context // done when the connection must end
	cancel        context.CancelFunc
	establishedCh chan struct{} // closed when it is established
	done          chan struct{} // closed when it has ended
	origin        *origin       // its dialer or listener

	mu    sync.Mutex
	state State
	stats ConnStats // only the counters
	ending
	link
	peer          hello
	helloReceived bool // the peer's hello frame has arrived
	testing       bool // a test is in flight

	out sender
	in  receiver
}

// link has the connection's objects on its device. All fields but the addresses are set before the
// first completion, by the goroutine that connects, which holds mu.
type link struct {
	arena         *arena
	shard         *shard
	endpoint      *cm.Endpoint
	qp            *uverbs.QP
	local, remote cm.Addr
}

// release releases the CQ and the memory that the QP used.
func (k *link) release() {
	if k.shard != nil {
		k.shard.release()
	}
	if k.arena != nil {
		k.arena.release()
	}
}

func newConn(l *Loop, addr string, dialed bool) *Conn {
	c := &Conn{
		l: l, addr: addr, dialed: dialed, establishedCh: make(chan struct{}), done: make(chan struct{}),
	}
	c.ctx, c.cancel = context.WithCancel(l.ctx)
	c.out.init(c)
	c.in.init(c, l.opt.Credits)
	return c
}

// start registers the connection and starts to connect.
func (c *Conn) start(o *origin, connect connector) error {
	l := c.l
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.in(closing) {
		c.cancel()
		return verbs.ErrClosed
	}
	for c.id == 0 || l.conns[c.id] != nil {
		l.lastID++
		c.id = l.lastID
	}
	l.conns[c.id] = c
	c.origin = o
	o.conns.Add(c)
	l.tasks.Go(func() { c.run(connect) })
	return nil
}

// read returns a field that mu guards.
func read[T any](c *Conn, field *T) T {
	c.mu.Lock()
	defer c.mu.Unlock()
	return *field
}

// State returns the state of the connection.
func (c *Conn) State() State { return read(c, &c.state) }

// Done returns a channel that is closed when the connection has ended, after all callbacks
// except Disconnected.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Err returns why the connection ended, or nil before: [verbs.ErrClosed] after Close, and after
// Disconnect if all messages have arrived; io.EOF if the peer called Disconnect and has got all
// messages; and otherwise an error.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state != Disconnected {
		return nil
	}
	return c.err
}

// LocalAddr and RemoteAddr return the addresses of the connection, once it is established.
func (c *Conn) LocalAddr() cm.Addr  { return read(c, &c.local) }
func (c *Conn) RemoteAddr() cm.Addr { return read(c, &c.remote) }

// PrivateData returns the private data of the peer's program, and MaxMessage the size in bytes
// of the largest message that the peer accepts, once the connection is established.
func (c *Conn) PrivateData() []byte { return read(c, &c.peer.private) }
func (c *Conn) MaxMessage() int     { return int(read(c, &c.peer.max)) }

// Endpoint returns the underlying connection of package cm, for queries of its device, QP and
// PD. It is nil until there is a QP, and closed when the connection has ended. The program must
// not close, modify, post or poll anything of it.
func (c *Conn) Endpoint() *cm.Endpoint { return read(c, &c.endpoint) }

func (c *Conn) String() string { return fmt.Sprintf("connection to %s", c.addr) }

// Disconnect ends the connection gracefully and does not wait: all messages posted on both sides
// are sent, read and acknowledged before Disconnected is called, within Options.Linger. This side
// can post no more, and soon the peer cannot either.
func (c *Conn) Disconnect() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state == Connecting {
		c.fail(verbs.ErrClosed)
	} else if c.state == Established && c.err == nil {
		c.startDisconnect(verbs.ErrClosed)
	}
}

// startDisconnect starts to disconnect. A peer that has all messages may leave without a sign: the
// network may lose the message that ends the connection, and the peer's process may exit before it
// is repeated. goodEnd is [verbs.ErrClosed] if this side disconnects, and io.EOF if the peer does.
func (c *Conn) startDisconnect(goodEnd error) {
	c.state, c.goodEnd = Disconnecting, goodEnd
	c.linger = c.failAfter(c.l.opt.Linger, func() error {
		if c.byeDelivered {
			return c.goodEnd
		}
		return fmt.Errorf("disconnect within %v: %w", c.l.opt.Linger, ErrTimeout)
	})
	c.progress()
}

func (c *Conn) failAfter(d time.Duration, reason func() error) *time.Timer {
	return time.AfterFunc(d, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.fail(reason())
	})
}

// Close ends the connection immediately. Queued messages fail; received messages that the program
// has not taken are dropped. The loop calls Disconnected when the connection has ended.
func (c *Conn) Close() error {
	if c == nil {
		return verbs.ErrClosed
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	c.fail(verbs.ErrClosed)
	if c.state == Disconnected {
		c.in.trim(true)
	}
	return nil
}

// reason returns why the connection ends as err says that the peer has left: if both sides have all
// messages, nothing is missing.
func (c *Conn) reason(err error) error {
	if c.bye.heard() && c.out.pending == 0 {
		return c.goodEnd
	}
	return err
}

// fail starts the end of the connection. Only the first reason is recorded.
func (c *Conn) fail(err error) {
	if c.err == nil {
		c.err = err
		c.cancel()
	}
}

// test is the test of the connection for [bridge.KeepAlive]: a WRITE of no bytes. The loop handles
// its completion. A READ in flight tests the connection as well, and rxe would refuse to answer it again
// after an empty request.
func (c *Conn) test(post bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !post || c.testing || c.in.reads.inFlight > 0 || c.state == Connecting || c.err != nil {
		return nil
	}
	c.out.wrs[0] = verbs.SendWR{ID: c.wrID(reqTest, 0), Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled}
	_, err := c.qp.PostSend(c.out.wrs[:1]...)
	if c.testing = err == nil; !c.testing {
		c.out.postError(err)
	}
	return nil
}

// sendBye says bye, or answers it, when no messages are left, and ends the connection if this side
// must.
func (c *Conn) sendBye() {
	if c.state != Disconnecting || c.err != nil || c.out.pending > 0 {
		return
	}
	if c.bye.ends(c.dialed) {
		c.fail(c.goodEnd)
		return
	}
	next := byeSteps[c.bye].say
	if next == byeNone {
		return
	}
	f, r := c.in.frame(kindBye), reqAnnounce
	if c.bye.heard() {
		f.flags, r = flagByeAnswer, reqByeAnswer
	}
	if c.out.postFrame(&f, r) {
		c.bye = next
	}
}

// progress sends, reads, acknowledges and disconnects as far as possible now.
func (c *Conn) progress() {
	if c.err != nil || c.state == Connecting {
		return
	}
	c.out.flush()
	c.in.postReads()
	c.in.flushAck()
	c.sendBye()
}

// handleEnd handles the end of a connection: it returns the buffers to the program. If a callback
// panics, the next Dispatch runs the others.
func (l *Loop) handleEnd(c *Conn, why error) {
	c.mu.Lock()
	for _, t := range []*time.Timer{c.linger, c.flushed} {
		if t != nil {
			t.Stop()
		}
	}
	c.lost = c.out.pending > 0
	if c.err == nil {
		c.err = c.reason(why)
	}
	if c.state == Connecting {
		c.origin.failed.Add(1)
	}
	c.state = Disconnected
	c.out.failAll()
	c.in.trim(c.closed)
	c.in.moveToHeap()
	c.origin.conns.Remove(c, c.stats)
	c.mu.Unlock()
	l.mu.Lock()
	delete(l.conns, c.id)
	l.mu.Unlock()
	c.cancel()
	l.runCallbacks(c)
}

func (l *Loop) notifyDisconnected(c *Conn) {
	close(c.done)
	defer l.closeUnused()
	err, level := c.Err(), slog.LevelDebug
	if errors.Is(err, ErrProtocol) || errors.Is(err, ErrTimeout) || errors.Is(err, ErrUnreadable) || errors.Is(err, ErrVersion) {
		level = slog.LevelWarn
	}
	l.logConn(level, "connection disconnected", c, err)
	if l.opt.Callbacks.Disconnected != nil {
		l.opt.Callbacks.Disconnected(c, err)
	}
}
