package rmsg

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
)

// connector makes a socket's connection.
type connector func(context.Context, cm.Options) (*cm.Endpoint, error)

// ConnOptions contains options for one connection.
type ConnOptions struct {
	// PrivateData is sent to the peer, which reads it with [Request.PrivateData] or
	// [Socket.PrivateData]. RoCE carries 36 bytes in a request and 176 in its
	// acceptance, iWARP 235.
	PrivateData []byte
	// RetryCount and RNRRetryCount are as in [cm.Options].
	RetryCount, RNRRetryCount int
}

// hello returns the private data to send: this side's hello.
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

// setPeerHello stores the peer's hello.
func (s *Socket) setPeerHello(h hello) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.peer = h
	s.out.granted = h.credits
	s.out.eager = min(int(h.eager), s.l.opt.Eager)
}

// run runs a socket from connecting to its end.
func (s *Socket) run(connect connector) {
	ctx, cancel := context.WithTimeoutCause(s.ctx, s.l.opt.ConnectTimeout, fmt.Errorf("connect: %w", ErrTimeout))
	defer cancel()
	e, abandoned, err := s.connect(ctx, connect)
	if err == nil {
		if err = s.exchangeHello(ctx, e); err == nil {
			select {
			case <-e.Done():
				err = e.Err()
			case <-s.ctx.Done():
				err = verbs.ErrClosed
			}
		}
		if cerr := e.Close(); cerr != nil {
			err = errors.Join(err, cerr)
		}
	}
	do := []func(){func() { s.l.handleEnd(s, err) }, func() { s.l.notifyDisconnected(s) }, s.release}
	if abandoned {
		do = do[:2]
	}
	s.l.post(s, do...)
}

// connect makes the connection. iWARP handshakes cannot be canceled. If one takes too
// long, the socket ends and abandoned is true: the handshake ends later in the
// background, and the socket's resources are released then.
func (s *Socket) connect(ctx context.Context, connect connector) (e *cm.Endpoint, abandoned bool, err error) {
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
	opt := &s.l.opt
	made := make(chan result, 1)
	go func() {
		defer abort()
		defer stop()
		e, err := connect(dialCtx, cm.Options{
			Logger: opt.Logger, RetryCount: s.conn.RetryCount, RNRRetryCount: s.conn.RNRRetryCount,
			Cap: verbs.QPCap{MaxSendWR: opt.sends(), MaxRecvWR: opt.receives(), MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: 64},
			Prepare: func(r cm.Route, o *cm.Options) error {
				err := s.prepare(r, o)
				if err == nil && s.arena.dev.iwarp {
					iwarp.Store(true)
					err = ctx.Err() // ctx may have ended before iwarp was set
				}
				return err
			},
			Setup: s.setup,
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
		s.l.post(s, s.release)
	}()
	return nil, true, context.Cause(ctx)
}

// prepare allocates CQ and memory when the device is known. A dial that tries again calls
// it again.
func (s *Socket) prepare(r cm.Route, opt *cm.Options) error {
	if s.arena == nil {
		dev, err := s.l.device(r)
		if err != nil {
			return err
		}
		a, err := newArena(s, dev)
		if err != nil {
			dev.unref()
			return err
		}
		sh, err := dev.acquireShard(s.l)
		if err != nil {
			a.release()
			return err
		}
		s.arena, s.shard = a, sh
	}
	opt.PD, opt.SendCQ, opt.RecvCQ = s.arena.pd, s.shard.cq, s.shard.cq
	return nil
}

// setup posts the receives, before the peer can send.
func (s *Socket) setup(e *cm.Endpoint) (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endpoint, s.qp, s.local, s.remote = e, e.QP, e.LocalAddr(), e.RemoteAddr()
	if s.arena.dev.failed.Load() {
		return verbs.ErrDeviceRemoved
	}
	if s.in.slots == nil {
		if s.in.slots, err = s.arena.receives(s.l.opt.receives()); err != nil {
			return err
		}
	}
	for i := range s.in.slots {
		if err := s.in.postReceive(i); err != nil {
			return err
		}
	}
	return nil
}

// exchangeHello waits until both sides have sent hello: the dialing side first, as iWARP
// requires (RFC 5044, section 7.1.1).
func (s *Socket) exchangeHello(ctx context.Context, e *cm.Endpoint) error {
	s.mu.Lock()
	s.local, s.remote = e.LocalAddr(), e.RemoteAddr()
	s.mu.Unlock()
	if s.dialed {
		h, err := parseHello(e.PrivateData)
		if err != nil {
			return err
		}
		s.setPeerHello(h)
		var b [headerSize]byte
		f := frame{kind: kindHello, granted: uint32(s.l.opt.Credits)}
		n := f.put(b[:])
		s.mu.Lock()
		if s.state == Connecting {
			wr := [1]verbs.SendWR{{ID: s.wrID(reqAnnounce, 0), Opcode: verbs.OpSend, Flags: verbs.SendSignaled, Inline: b[:n]}}
			_, err = e.QP.PostSend(wr[:]...)
		}
		s.mu.Unlock()
		if err != nil {
			return err
		}
	}
	select {
	case <-s.establishedCh:
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
