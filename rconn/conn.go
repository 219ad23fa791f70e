package rconn

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/uverbs"
)

// Conn is one end of a connection: protection domain, queue pair, completion
// queues and the channel of their events. Whoever got it closes it. Its methods
// may be called by several goroutines.
type Conn struct {
	ep    *cm.Endpoint
	iwarp bool
	sges  int

	adverts   []RemoteRegion // that came in private data
	private   []byte         // the rest of that; before that came, what is to go
	announced []byte         // advertisements to go in private data

	send sender
	recv receiver
	copy copier

	sleeper sleeper

	failure atomic.Pointer[error] // a request has failed, and so has the QP
	closed  flag

	closeOnce sync.Once
	closeErr  error
}

// newConn makes a Conn of what cm made for it, before the connection is up.
func newConn(ep *cm.Endpoint, opt Options) (*Conn, error) {
	c := &Conn{ep: ep, iwarp: ep.PD.Context().Device().IWARP(), sges: opt.SGEs, private: opt.PrivateData}
	c.sleeper.init(ep.SendCQ.Channel())
	c.send.init(c, opt)
	c.recv.init(c, opt)
	c.copy.init()
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

// up is called when the connection is.
func (c *Conn) up() *Conn {
	c.adverts, c.private = ParseAdverts(c.ep.PrivateData)
	go func() {
		<-c.ep.Done()
		c.wake()
	}()
	return c
}

// wake has all who wait look again.
func (c *Conn) wake() {
	for _, b := range []*box{&c.send.box, &c.recv.box} {
		b.mu.Lock()
		b.tell()
		b.mu.Unlock()
	}
	c.sleeper.wake()
}

// fails is called when a request has failed, with a box's mu held.
func (c *Conn) fails(why error) {
	err := fmt.Errorf("%w: %w", ErrBroken, why)
	if c.failure.CompareAndSwap(nil, &err) {
		go c.wake()
	}
}

// broken is the error of a connection that a failed request has broken.
func (c *Conn) broken() error {
	if err := c.failure.Load(); err != nil {
		return *err
	}
	return nil
}

// PrivateData is what the peer sent along when connecting or accepting, without
// the advertisements at its start. RoCE pads it with zeros.
func (c *Conn) PrivateData() []byte { return c.private }

// Adverts is the regions that the peer advertised in its private data.
func (c *Conn) Adverts() []RemoteRegion { return c.adverts }

// PD is the connection's protection domain.
func (c *Conn) PD() *uverbs.PD { return c.ep.PD }

// LocalAddr and RemoteAddr are the connection's ends.
func (c *Conn) LocalAddr() cm.Addr  { return c.ep.LocalAddr() }
func (c *Conn) RemoteAddr() cm.Addr { return c.ep.RemoteAddr() }

// Endpoint is what lies beneath, for what is missing here. Posting to its QP and
// polling its CQs is the Conn's alone.
func (c *Conn) Endpoint() *cm.Endpoint { return c.ep }

// Done is closed when the connection has ended, for whatever reason.
func (c *Conn) Done() <-chan struct{} { return c.ep.Done() }

// Err says why the connection ended: [verbs.ErrDisconnected], [verbs.ErrClosed] or
// [verbs.ErrDeviceRemoved]. It is nil while it is up. The kernel removes a device
// when all programs have closed it, so close a Conn that has ended.
func (c *Conn) Err() error {
	if c.closed.Load() {
		return verbs.ErrClosed
	}
	return c.ep.Err()
}

// Disconnect ends the connection for both sides and returns. What has not
// arrived is lost: [Conn.Fence] waits for that first.
func (c *Conn) Disconnect() { c.ep.Disconnect() }

// AwaitDisconnect waits until the peer disconnects; how else the connection may
// end is an error.
func (c *Conn) AwaitDisconnect(ctx context.Context) error {
	select {
	case <-c.Done():
	case <-ctx.Done():
		return c.fail("await disconnection by", ctx.Err())
	}
	if err := c.Err(); !errors.Is(err, verbs.ErrDisconnected) {
		return c.fail("await disconnection by", err)
	}
	return nil
}

// Close disconnects and releases everything, the regions that the Conn made
// included. Waiting calls return [verbs.ErrClosed]. Completions that were not taken
// are gone.
func (c *Conn) Close() error {
	c.closeOnce.Do(func() {
		c.closed.Store(true)
		// From now on nobody begins to post or to poll, and helpers leave off:
		// memory that they use must not go before they do.
		c.wake()
		c.copy.turn <- struct{}{}
		if c.closeErr = c.ep.Close(); c.closeErr != nil {
			c.closeErr = c.fail("close connection with", c.closeErr)
		}
		c.wake()
		c.sleeper.turn <- struct{}{}
		c.sleeper.forget()
		<-c.sleeper.turn
		c.send.dropAll()
		c.recv.dropAll()
		<-c.copy.turn
	})
	return c.closeErr
}

// unfit is why nothing can be posted.
func (c *Conn) unfit() error {
	if err := c.Err(); err != nil {
		return err
	}
	return c.broken()
}
