package rmsg

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/bridge"
)

// connector dials or accepts: it makes the endpoint of a connection.
type connector func(context.Context, cm.Options) (*cm.Endpoint, error)

// hello returns this side's hello, the private data to send.
func (l *Loop) hello(private []byte) ([]byte, error) {
	if len(private) > cm.MaxPrivateData-helloSize {
		return nil, fmt.Errorf("%w: %d bytes of at most %d", cm.ErrPrivateData, len(private), cm.MaxPrivateData-helloSize)
	}
	h := hello{
		version: version, min: minVersion, private: private,
		credits: uint32(l.opt.Credits), eager: uint32(l.opt.Eager), max: uint32(l.opt.MaxMessage),
	}
	return h.append(nil), nil
}

func (c *Conn) setPeerHello(h hello) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.peer = h
	c.out.granted = h.credits
	c.out.eager = min(int(h.eager), c.l.opt.Eager)
}

// run runs a connection from connecting to its end.
func (c *Conn) run(connect connector) {
	ctx, cancel := context.WithTimeoutCause(c.ctx, c.l.opt.ConnectTimeout, fmt.Errorf("connect within %v: %w", c.l.opt.ConnectTimeout, ErrTimeout))
	defer cancel()
	e, abandoned, err := c.connect(ctx, connect)
	if err == nil {
		if err = c.exchangeHello(ctx, e); err == nil {
			bridge.KeepAlive(e, c.l.opt.KeepAlive, c.test)
			select {
			case <-e.Done():
				err = e.Err()
			case <-c.ctx.Done():
				err = verbs.ErrClosed
			}
		}
		if cerr := e.Close(); cerr != nil {
			err = errors.Join(err, cerr)
		}
	}
	do := []func(){func() { c.l.handleEnd(c, err) }, func() { c.l.notifyDisconnected(c) }, c.release}
	if abandoned {
		do = do[:2]
	}
	c.l.post(c, do...)
}

// connect makes the connection. iWARP handshakes cannot be canceled: if one takes too long, the
// connection ends and abandoned is true. The handshake ends later in the background, which then
// releases the connection's resources.
func (c *Conn) connect(ctx context.Context, connect connector) (e *cm.Endpoint, abandoned bool, err error) {
	type result struct {
		e   *cm.Endpoint
		err error
	}
	var iwarp atomic.Bool
	dialCtx, abort := context.WithCancel(context.Background())
	stop := context.AfterFunc(ctx, func() {
		if !iwarp.Load() {
			abort()
		}
	})
	opt := &c.l.opt
	made := make(chan result, 1)
	go func() {
		defer abort()
		defer stop()
		e, err := connect(dialCtx, cm.Options{
			Logger: opt.Logger, RetryCount: opt.RetryCount,
			Cap: verbs.QPCap{MaxSendWR: opt.sends(), MaxRecvWR: opt.receives(), MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: 64},
			Prepare: func(r cm.Route, o *cm.Options) error {
				err := c.prepare(r, o)
				if err == nil && c.arena.dev.iwarp {
					iwarp.Store(true)
					err = ctx.Err() // ctx may have ended before iwarp was set
				}
				return err
			},
			Setup: c.setup,
		})
		made <- result{e, err}
	}()
	select {
	case r := <-made:
		if r.err != nil && ctx.Err() != nil {
			r.err = context.Cause(ctx)
		}
		return r.e, false, rejection(r.err)
	case <-ctx.Done():
		if !iwarp.Load() {
			r := <-made // soon
			if r.e != nil {
				r.e.Close()
			}
			return nil, false, context.Cause(ctx)
		}
	}
	go func() {
		if r := <-made; r.e != nil {
			r.e.Close()
		}
		c.l.post(c, c.release)
	}()
	return nil, true, context.Cause(ctx)
}

// prepare allocates CQ and memory when the device is known. A dial that tries again calls it again,
// for another address of a name perhaps on another device.
func (c *Conn) prepare(r cm.Route, opt *cm.Options) error {
	if c.arena != nil && c.arena.dev.index != r.Index {
		c.mu.Lock()
		old := c.link
		c.link, c.in.slots = link{}, nil
		c.mu.Unlock()
		old.release()
	}
	if c.arena == nil {
		dev, err := c.l.device(r)
		if err != nil {
			return err
		}
		a, err := newArena(c, dev)
		if err != nil {
			dev.unref()
			return err
		}
		sh, err := dev.acquireShard(c.l)
		if err != nil {
			a.release()
			return err
		}
		c.mu.Lock()
		c.arena, c.shard = a, sh
		c.mu.Unlock()
	}
	opt.PD, opt.SendCQ, opt.RecvCQ = c.arena.pd, c.shard.cq, c.shard.cq
	return nil
}

// setup posts the receives, before the peer can send.
func (c *Conn) setup(e *cm.Endpoint) (err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endpoint, c.qp, c.local, c.remote = e, e.QP, e.LocalAddr(), e.RemoteAddr()
	e.Describe(c.describe)
	if c.arena.dev.failed.Load() {
		return verbs.ErrDeviceRemoved
	}
	if c.in.slots == nil {
		if c.in.slots, err = c.arena.receives(c.l.opt.receives()); err != nil {
			return err
		}
	}
	for i := range c.in.slots {
		if err := c.in.postReceive(i); err != nil {
			return err
		}
	}
	return nil
}

// exchangeHello waits until both sides have sent hello, the dialing side first, as iWARP requires
// (RFC 5044, section 7.1.2).
func (c *Conn) exchangeHello(ctx context.Context, e *cm.Endpoint) error {
	c.mu.Lock()
	c.local, c.remote = e.LocalAddr(), e.RemoteAddr()
	c.mu.Unlock()
	if c.dialed {
		h, err := parseHello(e.PrivateData)
		if err != nil {
			return err
		}
		c.setPeerHello(h)
		var b [headerSize]byte
		f := frame{kind: kindHello, granted: uint32(c.l.opt.Credits)}
		n := f.put(b[:])
		c.mu.Lock()
		if c.state == Connecting {
			wr := [1]verbs.SendWR{{ID: c.wrID(reqAnnounce, 0), Opcode: verbs.OpSend, Flags: verbs.SendSignaled, Inline: b[:n]}}
			_, err = e.QP.PostSend(wr[:]...)
		}
		c.mu.Unlock()
		if err != nil {
			return err
		}
	}
	select {
	case <-c.establishedCh:
		return nil
	case <-e.Done():
		return e.Err()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// rejection parses the hello at the start of the private data of a rejection.
func rejection(err error) error {
	refused, ok := errors.AsType[*cm.RejectedError](err)
	if !ok {
		return err
	}
	h, herr := parseHello(refused.PrivateData)
	if errors.Is(herr, ErrVersion) {
		return fmt.Errorf("%w: %w", herr, err)
	}
	if herr == nil {
		refused.PrivateData = h.private
	}
	return err
}
