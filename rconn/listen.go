package rconn

import (
	"cmp"
	"context"
	"log/slog"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
)

// Listener accepts connections. The caller must close it.
type Listener struct {
	l     *cm.Listener
	log   *slog.Logger
	tally tally
}

// ListenConfig contains options for listening, as [cm.ListenConfig] has them. The zero value
// listens as [Listen] does.
type ListenConfig struct {
	Backlog   int // requests that may wait for [Listener.Accept]; zero is 1024
	MaxConns  int // connections that may be open
	ReuseAddr bool
	IPv6Only  bool
	Logger    *slog.Logger  // also for connections whose [Options] have none
	Transport *cm.Transport // nil is [cm.DefaultTransport]
}

// Listen listens on addr, as [cm.Listen] does; port 0 chooses a free one.
func Listen(ctx context.Context, addr string) (*Listener, error) {
	return new(ListenConfig).Listen(ctx, addr)
}

// Listen is the function [Listen] with options.
func (c *ListenConfig) Listen(ctx context.Context, addr string) (*Listener, error) {
	l, err := (&cm.ListenConfig{
		Backlog: c.Backlog, MaxConns: c.MaxConns, ReuseAddr: c.ReuseAddr, IPv6Only: c.IPv6Only, Logger: c.Logger, Transport: c.Transport,
	}).Listen(ctx, addr)
	if err != nil {
		return nil, err
	}
	return &Listener{l: l, log: c.Logger}, nil
}

// Addr returns the address that the listener listens on.
func (l *Listener) Addr() cm.Addr { return l.l.Addr() }

// Accept waits for a request for a connection.
func (l *Listener) Accept(ctx context.Context) (*Request, error) {
	r, err := l.l.Accept(ctx)
	if err != nil {
		return nil, err
	}
	q := &Request{Request: r, l: l}
	q.adverts, q.private = parseAdverts(r.PrivateData())
	return q, nil
}

// Close stops listening; Accept returns [verbs.ErrClosed]. Requests and connections
// that Accept has returned are not affected.
func (l *Listener) Close() error {
	if l == nil {
		return verbs.ErrClosed
	}
	return l.l.Close()
}

// Shutdown stops listening and waits until the accepted connections have ended, or ctx has. It ends
// no connection.
func (l *Listener) Shutdown(ctx context.Context) error { return l.l.Shutdown(ctx) }

// Request is a peer's request for a connection, as in package cm. It must be accepted or
// rejected, exactly once.
type Request struct {
	*cm.Request
	l       *Listener
	adverts []RemoteRegion
	private []byte
}

// PrivateData and Adverts are as [Conn.PrivateData] and [Conn.Adverts].
func (r *Request) PrivateData() []byte     { return r.private }
func (r *Request) Adverts() []RemoteRegion { return r.adverts }

// Accept makes the connection and waits until it is up. If that fails, or ctx
// ends first, the request is rejected.
func (r *Request) Accept(ctx context.Context, opt Options) (*Conn, error) {
	opt.Logger = cmp.Or(opt.Logger, r.l.log)
	var c *Conn
	lower, err := opt.lower(&c)
	if err != nil {
		r.Reject(nil)
		return nil, &verbs.Error{Op: "accept", Object: r.RemoteAddr().String(), Err: err}
	}
	if _, err = r.Request.Accept(ctx, lower); err != nil {
		c.discard()
		return nil, err
	}
	return c.established(&r.l.tally), nil
}
