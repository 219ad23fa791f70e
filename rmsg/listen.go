package rmsg

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/host"
	"github.com/goverbs/verbs/internal/option"
)

// Listener accepts connections. It must be closed, by the program or with its loop.
type Listener struct {
	l       *Loop
	cm      *cm.Listener
	timeout time.Duration // of a request that waits for Accept
	backlog int
	mu      sync.Mutex
	waiting []*Request    // for Accept, the oldest first
	wake    chan struct{} // of Accept, if waiting has one
	once    sync.Once
	closed  chan struct{} // closed after why is set
	why     error         // Accept fails
	err     error         // of Close

	unanswered                   atomic.Int32 // requests
	requests, accepted, rejected atomic.Uint64
	origin                       origin
}

// ListenConfig contains options for listening. The zero value listens as [Listen] does.
type ListenConfig struct {
	// Loop is the loop of the listener and its connections. If it is nil, they get their
	// own loop with Options, run by a goroutine until all of them have ended.
	Loop *Loop
	Options
	// Backlog is the number of requests that may be unanswered, by default 128, at most
	// 65535. AnswerTimeout bounds the wait of a request for [Listener.Accept], by default
	// 3 s; a negative value means no limit. Other requests are rejected.
	Backlog       int
	AnswerTimeout time.Duration
	// MaxConns, ReuseAddr and IPv6Only are as in [cm.ListenConfig].
	MaxConns  int
	ReuseAddr bool
	IPv6Only  bool
}

// Listen accepts connections on addr, as [cm.Listen] does. The listener and its connections
// get their own loop with default options.
func Listen(ctx context.Context, addr string) (*Listener, error) {
	return new(ListenConfig).Listen(ctx, addr)
}

// Listen is the function [Listen] with options. ctx bounds the resolution of a name. The
// loop need not run yet.
func (c *ListenConfig) Listen(ctx context.Context, addr string) (*Listener, error) {
	const op = "listen on"
	transport := c.Transport
	if c.Loop != nil {
		if err := c.Loop.check(c.Options); err != nil {
			return nil, fail(op, addr, err)
		}
		transport = c.Loop.opt.Transport
	}
	backlog := c.Backlog
	if err := option.Set(option.Size("Backlog", &backlog, 128, 1, maxBacklog)); err != nil {
		return nil, fail(op, addr, err)
	}
	lower, err := (&cm.ListenConfig{Backlog: backlog, MaxConns: c.MaxConns, ReuseAddr: c.ReuseAddr, IPv6Only: c.IPv6Only, Transport: transport}).Listen(ctx, addr)
	if err != nil {
		return nil, err
	}
	l, err := loopOrNew(c.Loop, c.Options)
	if err != nil {
		lower.Close()
		return nil, fail(op, addr, err)
	}
	ln := &Listener{
		l: l, cm: lower, backlog: backlog, timeout: timeout(c.AnswerTimeout, 3*time.Second),
		wake: make(chan struct{}, 1), closed: make(chan struct{}),
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.in(closing) {
		lower.Close()
		return nil, fail(op, addr, verbs.ErrClosed)
	}
	l.listeners[ln] = struct{}{}
	l.tasks.Go(ln.serve)
	return ln, nil
}

const maxBacklog = 65535

// Loop returns the loop of the listener.
func (ln *Listener) Loop() *Loop { return ln.l }

// Addr returns the address of the listener.
func (ln *Listener) Addr() cm.Addr { return ln.cm.Addr() }

// Close stops listening and rejects the requests that wait for Accept. Connections
// are not affected.
func (ln *Listener) Close() error {
	if ln == nil {
		return verbs.ErrClosed
	}
	ln.end(verbs.ErrClosed)
	return ln.err
}

func (ln *Listener) end(why error) {
	ln.once.Do(func() {
		ln.l.mu.Lock()
		delete(ln.l.listeners, ln)
		ln.l.mu.Unlock()
		ln.why, ln.err = why, ln.cm.Close()
		close(ln.closed)
		for r := ln.next(); r != nil; r = ln.next() {
			r.reject(verbs.ErrClosed)
		}
		ln.l.closeUnused()
	})
}

func (ln *Listener) serve() {
	for {
		lower, err := ln.cm.Accept(ln.l.ctx)
		if err != nil {
			why := verbs.ErrClosed
			select {
			case <-ln.closed:
			case <-ln.l.ctx.Done():
			default:
				ln.l.log(slog.LevelWarn, "listener failed", slog.Any("local", ln.Addr()), slog.Any("err", err))
				why = err
			}
			ln.end(why) // otherwise Accept would block forever
			return
		}
		r := &Request{ln: ln, cm: lower}
		ln.unanswered.Add(1)
		ln.requests.Add(1)
		if r.peer, err = parseHello(lower.PrivateData()); err == nil && int(ln.unanswered.Load()) > ln.backlog {
			err = fmt.Errorf("more requests wait than Backlog of %d", ln.backlog)
		}
		if err != nil {
			r.reject(err)
			continue
		}
		ln.l.post(nil, r.dispatch)
	}
}

// Accept waits for a request and accepts it. The connection may not be established yet: Send and
// Recv wait until it is, so a slow peer does not delay others. Accept is for loops without a
// Request callback. It fails with [verbs.ErrClosed] after Close. An error that has ended the
// listener, such as [verbs.ErrDeviceRemoved], does not pass: listen again.
func (ln *Listener) Accept(ctx context.Context) (*Conn, error) {
	const op = "accept on"
	for {
		for r := ln.next(); r != nil; r = ln.next() {
			if c, err := r.Accept(nil); err == nil {
				return c, nil
			} // otherwise it waited too long
		}
		select {
		case <-ln.wake:
		case <-ln.closed:
			return nil, fail(op, ln.Addr().String(), ln.why)
		case <-ctx.Done():
			return nil, fail(op, ln.Addr().String(), ln.l.addNotRunning(host.Ended(ctx)))
		}
	}
}

// next takes the oldest request that waits, or returns nil.
func (ln *Listener) next() *Request {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	if len(ln.waiting) == 0 {
		return nil
	}
	r := ln.waiting[0]
	ln.waiting = slices.Delete(ln.waiting, 0, 1)
	if len(ln.waiting) > 0 {
		signal(ln.wake) // another Accept
	}
	return r
}

// Request is a peer's request for a connection, to be accepted or rejected once.
type Request struct {
	ln   *Listener
	cm   *cm.Request
	peer hello

	mu       sync.Mutex
	answered bool
	timer    *time.Timer // while it waits for Accept
}

// RemoteAddr returns the address of the peer, LocalAddr the address that it dialed.
func (r *Request) RemoteAddr() cm.Addr { return r.cm.RemoteAddr() }
func (r *Request) LocalAddr() cm.Addr  { return r.cm.LocalAddr() }

// PrivateData returns the private data of the peer's program.
func (r *Request) PrivateData() []byte { return r.peer.private }

// dispatch passes the request to the callback, or to Accept.
func (r *Request) dispatch() {
	ln := r.ln
	if cb := ln.l.opt.Callbacks.Request; cb != nil {
		defer r.reject(errors.New("the callback did not accept it")) // also if it panics
		cb(r)
		return
	}
	r.mu.Lock()
	ln.mu.Lock()
	ln.waiting = append(ln.waiting, r)
	ln.mu.Unlock()
	r.timer = time.AfterFunc(ln.timeout, func() { r.reject(fmt.Errorf("accept within %v: %w", ln.timeout, ErrTimeout)) })
	r.mu.Unlock()
	select {
	case <-ln.closed: // after Close has rejected those that waited
		r.reject(verbs.ErrClosed)
	default:
		signal(ln.wake)
	}
}

// answer marks the request as answered, or fails if it was answered before.
func (r *Request) answer() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.answered {
		return verbs.ErrClosed
	}
	r.answered = true
	r.ln.unanswered.Add(-1)
	r.ln.mu.Lock()
	r.ln.waiting = slices.DeleteFunc(r.ln.waiting, func(other *Request) bool { return other == r })
	r.ln.mu.Unlock()
	if r.timer != nil {
		r.timer.Stop()
	}
	return nil
}

// Accept accepts the connection and returns without waiting. The loop then calls
// Established or Disconnected. The peer reads privateData with [Conn.PrivateData].
func (r *Request) Accept(privateData []byte) (*Conn, error) {
	l, addr := r.ln.l, r.RemoteAddr().String()
	private, err := l.hello(privateData)
	if err == nil {
		err = r.answer()
	}
	if err != nil {
		return nil, fail("accept from", addr, err)
	}
	c := newConn(l, addr, false)
	c.setPeerHello(r.peer)
	err = c.start(&r.ln.origin, func(ctx context.Context, opt cm.Options) (*cm.Endpoint, error) {
		opt.PrivateData = private
		return r.cm.Accept(ctx, opt)
	})
	if err != nil {
		r.cm.Reject(nil)
		return nil, fail("accept from", addr, err)
	}
	r.ln.accepted.Add(1)
	return c, nil
}

// Reject rejects the request: the peer's connection ends with a [*cm.RejectedError] that
// has privateData, up to 128 bytes on RoCE.
func (r *Request) Reject(privateData []byte) error {
	const op = "reject"
	private, err := r.ln.l.hello(privateData)
	if err == nil {
		err = r.answer()
	}
	if err != nil {
		return fail(op, r.RemoteAddr().String(), err)
	}
	r.ln.rejected.Add(1)
	return r.cm.Reject(private)
}

func (r *Request) reject(why error) {
	if r.answer() != nil {
		return
	}
	r.ln.rejected.Add(1)
	r.ln.l.log(slog.LevelWarn, "request rejected", slog.Any("local", r.LocalAddr()), slog.Any("remote", r.RemoteAddr()), slog.Any("err", why))
	private, _ := r.ln.l.hello(nil)
	r.cm.Reject(private)
}
