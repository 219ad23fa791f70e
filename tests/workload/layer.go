// Package workload puts load on the layers, for tests: sessions between two ends, in one
// process or in two, which check all data.
//
//	Session.Round ── data, several ways ──► Server checks the data,
//	checks        ◄── other data ────────── and reports how its connections end
//
// Each side has a Key, which determines all its data. [Layers] lists the layers.
package workload

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"
)

// Layer is a load on one or two packages of this project.
type Layer struct {
	Name      string
	Datagrams bool // without connections, and on rxe only
	// Listen serves connections to addr until ctx ends or the server is closed. It calls
	// report, from any goroutine, with the error of the listener and of each connection
	// that does not end normally.
	Listen func(ctx context.Context, addr string, report func(error)) (*Server, error)
	// Dial connects to a server.
	Dial func(ctx context.Context, addr string) (Session, error)
	// PeerGoneErrors are the errors, by errors.Is, of a session whose peer or link is gone.
	PeerGoneErrors []error
}

// Layers are all layers.
var Layers = []*Layer{CM, UD, RConn, RMsg, RSock, HTTP}

// ByName returns the layer with a name.
func ByName(name string) (*Layer, error) {
	for _, l := range append(slices.Clone(Layers), S3) {
		if l.Name == name {
			return l, nil
		}
	}
	return nil, fmt.Errorf("no layer %q", name)
}

// Use dials a server, does some rounds of size bytes, and closes the session.
func (l *Layer) Use(ctx context.Context, addr string, rounds, size int) error {
	s, err := l.Dial(ctx, addr)
	if err != nil {
		return fmt.Errorf("dial: %w", err)
	}
	for i := range rounds {
		if err := s.Round(ctx, size); err != nil {
			s.Close()
			return fmt.Errorf("round %d: %w", i, err)
		}
	}
	return errors.Join(s.Shutdown(ctx), s.Close())
}

// Session is a connection to a layer's server.
type Session interface {
	// Round transfers about n bytes in each direction, by all operations of the layer,
	// and both sides check them. An error ends the session.
	Round(ctx context.Context, n int) error
	// Poke sends something that has no effect. It may be called during Round, and may
	// fail: if the peer is gone, Round returns an error.
	Poke()
	// Shutdown ends the session gracefully, if the layer supports this. The session must
	// still be closed.
	Shutdown(ctx context.Context) error
	io.Closer
}

// simple is a session that needs no Poke, or has no Shutdown.
type simple struct{}

func (simple) Poke()                          {}
func (simple) Shutdown(context.Context) error { return nil }

// Server is a layer's server.
type Server struct {
	Addr string
	stop func() error
	done chan struct{}
	err  error // after done
}

// Wait waits until the server has ended.
func (s *Server) Wait() error {
	<-s.done
	return s.err
}

// Close ends the listener and waits until all connections have ended.
func (s *Server) Close() error {
	s.stop()
	return s.Wait()
}

// Serve calls handle for each connection that a listener accepts, in a goroutine of its
// own, until ctx ends or the listener is closed. When all handlers have returned it calls
// end, if that is not nil.
func Serve[T any, A fmt.Stringer](ctx context.Context, l interface {
	Addr() A
	Close() error
}, accept func(context.Context) (T, error), handle func(context.Context, T) error, report func(error), end func() error) *Server {
	s := &Server{Addr: l.Addr().String(), stop: sync.OnceValue(l.Close), done: make(chan struct{})}
	stopWatching := context.AfterFunc(ctx, func() { s.stop() })
	failed := func(what string, err error) {
		if err != nil && ctx.Err() == nil {
			report(fmt.Errorf("%s: %w", what, err))
		}
	}
	go func() {
		defer close(s.done)
		defer stopWatching()
		var handlers sync.WaitGroup
		for {
			c, err := accept(ctx)
			var scarcity interface{ Temporary() bool } // of files, say, as with rsock
			if errors.As(err, &scarcity) && scarcity.Temporary() && ctx.Err() == nil {
				time.Sleep(10 * time.Millisecond)
				continue
			}
			if err != nil {
				if !errors.Is(err, net.ErrClosed) {
					failed("accept", err)
				}
				break
			}
			handlers.Go(func() { failed("connection", handle(ctx, c)) })
		}
		s.err = s.stop()
		handlers.Wait()
		if end != nil {
			s.err = errors.Join(s.err, end())
		}
	}()
	return s
}
