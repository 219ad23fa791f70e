package rconn

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/bridge"
	"github.com/goverbs/verbs/internal/event"
	"github.com/goverbs/verbs/internal/host"
	"github.com/goverbs/verbs/internal/option"
)

// Conn is one end of a connection: a protection domain, a queue pair, completion queues and their
// completion channel. The caller must close it. Its methods may be called by several goroutines.
type Conn struct {
	ep     *cm.Endpoint
	iwarp  bool
	logger *slog.Logger

	keepAlive time.Duration  // 0 is none
	adverts   []RemoteRegion // from the peer's private data
	private   []byte         // the rest of it; while connecting, this side's
	announced []byte         // advertisements to be sent in private data

	send sender
	recv receiver
	copy copier

	waiters event.Group

	windowsMu sync.Mutex
	windows   map[*Window]struct{} // that are not closed

	failure atomic.Pointer[error] // a request, and thus the QP, has failed
	closed  atomic.Bool
	closing sync.Mutex // held by Close

	tally *tally // of its Dialer or Listener
}

// newConn makes a Conn of the endpoint that cm made, before the connection is up.
func newConn(ep *cm.Endpoint, opt *Options) (*Conn, error) {
	c := &Conn{ep: ep, iwarp: ep.PD.Context().Device().IWARP(), logger: opt.Logger, private: opt.PrivateData, keepAlive: option.KeepAlive(opt.KeepAlive)}
	c.waiters.Init(eventSource{c})
	size, made := opt.Cap, ep.QP.Cap() // the device may have more SGEs than the default
	size.MaxSendSGE = cmp.Or(size.MaxSendSGE, min(defaultSGE, made.MaxSendSGE))
	size.MaxRecvSGE = cmp.Or(size.MaxRecvSGE, min(defaultSGE, made.MaxRecvSGE))
	c.send.init(c, size)
	c.recv.init(c, size, opt.Adverts)
	c.copy = copier{c: c, sem: make(chan struct{}, 1)}
	for range opt.Adverts {
		if err := c.PostRecvAdvert(); err != nil {
			return nil, err
		}
	}
	if opt.Setup == nil {
		return c, nil
	}
	return c, opt.Setup(c)
}

// established is called when the connection of a Dialer or Listener is up.
func (c *Conn) established(t *tally) *Conn {
	c.tally = t
	t.Add(c)
	c.adverts, c.private = parseAdverts(c.ep.PrivateData)
	bridge.KeepAlive(c.ep, c.keepAlive, c.test)
	c.ep.Describe(c.describe)
	go func() {
		<-c.ep.Done()
		c.waiters.SignalAll()
	}()
	return c
}

// log logs a message about the connection. No lock is held: handlers may use the Conn.
func (c *Conn) log(level slog.Level, msg string, args ...any) {
	if c.logger != nil {
		args = append([]any{"device", c.ep.PD.Context().Device().Name, "local", c.LocalAddr().String(), "remote", c.RemoteAddr().String()}, args...)
		c.logger.Log(context.Background(), level, msg, args...)
	}
}

// setFailure records that a request has failed. The caller holds the mu of its direction. Flushed
// requests, of a connection that another request or its end has broken, may come first.
func (c *Conn) setFailure(why error) {
	err := fmt.Errorf("%w: %w", ErrBroken, why)
	flushed := errors.Is(why, verbs.WCFlushErr)
	for {
		first := c.failure.Load()
		if first != nil && (flushed || !errors.Is(*first, verbs.WCFlushErr)) {
			return
		}
		if c.failure.CompareAndSwap(first, &err) {
			break
		}
	}
	go func() {
		if !flushed {
			c.log(slog.LevelDebug, "request failed", "err", why)
		}
		c.waiters.SignalAll()
	}()
}

// brokenErr returns the error of a connection broken by a failed request, or nil.
func (c *Conn) brokenErr() error {
	if err := c.failure.Load(); err != nil {
		return *err
	}
	return nil
}

// PrivateData returns the private data that the peer sent when connecting or accepting,
// without the advertisements at its start. RoCE pads it with zeros.
func (c *Conn) PrivateData() []byte { return c.private }

// Adverts returns the regions that the peer advertised in its private data.
func (c *Conn) Adverts() []RemoteRegion { return c.adverts }

// LocalAddr and RemoteAddr return the addresses of this side and of the peer.
func (c *Conn) LocalAddr() cm.Addr  { return c.ep.LocalAddr() }
func (c *Conn) RemoteAddr() cm.Addr { return c.ep.RemoteAddr() }

// Endpoint returns the underlying connection of package cm, for everything that is missing here. A
// program may make objects in its PD, which it closes before the Conn, query and modify the QP, and
// use the ID for calls that neither end the connection nor read its events. It must leave the rest
// to the Conn: posting to the QP ([Conn.Post] takes any request), the CQs and their channel, and
// closing any of these. A completion of a request that the Conn did not post is lost, or mistaken
// for another one.
func (c *Conn) Endpoint() *cm.Endpoint { return c.ep }

// Done is closed when the connection has ended, for whatever reason.
func (c *Conn) Done() <-chan struct{} { return c.ep.Done() }

// Err returns why the connection ended: [verbs.ErrDisconnected], [verbs.ErrClosed] or
// [verbs.ErrDeviceRemoved]. It returns nil while the connection is up.
func (c *Conn) Err() error {
	if c.closed.Load() {
		return verbs.ErrClosed
	}
	return c.ep.Err()
}

// Disconnect ends the connection for both sides and returns. Data that has not arrived is
// lost: call [Conn.AwaitDelivery] first.
func (c *Conn) Disconnect() { c.ep.Disconnect() }

// AwaitDisconnect waits until the peer disconnects. It fails if the connection ends for
// another reason.
func (c *Conn) AwaitDisconnect(ctx context.Context) error {
	select {
	case <-c.Done():
	case <-ctx.Done():
		return c.fail("await disconnection by", host.Ended(ctx))
	}
	if err := c.Err(); !errors.Is(err, verbs.ErrDisconnected) {
		return c.fail("await disconnection by", err)
	}
	return nil
}

// Close disconnects and releases everything, including the regions and windows that the Conn made.
// Blocked calls return [verbs.ErrClosed]. Completions that were not taken are lost. After a failure
// Close can be called again, to release the rest.
func (c *Conn) Close() error {
	if c == nil {
		return verbs.ErrClosed
	}
	c.closing.Lock()
	defer c.closing.Unlock()
	// A poll reads advertisements in the Conn's memory, with mu held.
	for _, q := range []*queue{&c.send.queue, &c.recv.queue} {
		q.mu.Lock()
		c.closed.Store(true)
		q.mu.Unlock()
	}
	// From now on no call starts to post or to poll, and helpers return. The memory
	// that they use must not be released before they have.
	c.waiters.SignalAll()
	c.copy.sem <- struct{}{}
	err := errors.Join(c.closeWindows(), c.ep.Close())
	c.send.releaseAll()
	c.recv.releaseAll()
	<-c.copy.sem
	if err != nil {
		return c.fail("close connection with", err)
	}
	c.tally.Remove(c, c.Stats())
	return nil
}

// discard releases what is left of a connection that has not come up: windows hold the PD. c may be
// nil.
func (c *Conn) discard() {
	if c != nil && len(c.windows) > 0 {
		c.closeWindows()
		c.ep.Close()
	}
}

// closeWindows closes all windows. Once closed is set, there are no new ones.
func (c *Conn) closeWindows() (err error) {
	c.windowsMu.Lock()
	defer c.windowsMu.Unlock()
	for w := range c.windows {
		err = errors.Join(err, w.close())
	}
	return err
}

// checkUsable returns the reason why nothing can be posted, or nil.
func (c *Conn) checkUsable() error {
	if err := c.Err(); err != nil {
		return err
	}
	return c.brokenErr()
}
