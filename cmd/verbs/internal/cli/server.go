package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// Server serves the clients of a listener.
type Server struct {
	Most   int // clients at a time
	Handle func(context.Context, net.Conn)
	Refuse func(net.Conn, error) // tells a client beyond Most why, within a short time
	Log    func(error)           // gets errors after which the server continues
}

// Serve calls Handle for each connection that l accepts, on a goroutine of its own, until
// ctx ends, and returns when all calls have returned. It closes l and the connections, and
// cancels the context of the calls.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	calls, cancel := context.WithCancelCause(ctx)
	var clients sync.WaitGroup
	defer clients.Wait()
	defer cancel(nil)
	defer l.Close()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	slots, refusals := make(chan struct{}, s.Most), make(chan struct{}, s.Most)
	for {
		conn, err := s.accept(ctx, l)
		if ctx.Err() != nil {
			if err == nil {
				conn.Close()
			}
			return nil
		}
		if err != nil {
			cancel(err)
			return err
		}
		select {
		case slots <- struct{}{}:
			clients.Go(func() {
				defer func() { <-slots }()
				defer conn.Close()
				s.Handle(calls, conn)
			})
			continue
		default:
		}
		select {
		case refusals <- struct{}{}:
			clients.Go(func() {
				defer func() { <-refusals }()
				defer conn.Close()
				s.Refuse(conn, fmt.Errorf("the server has %d clients, and takes no more", s.Most))
			})
		default: // too many to be told
			conn.Close()
		}
	}
}

// accept waits for a connection. After a temporary error, as when the process has too many files,
// it tries again, after 5 ms and then twice as long each time, to a second, as net/http does.
func (s *Server) accept(ctx context.Context, l net.Listener) (net.Conn, error) {
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		conn, err := l.Accept()
		var scarcity interface{ Temporary() bool }
		if !errors.As(err, &scarcity) || !scarcity.Temporary() {
			return conn, err
		}
		s.Log(err)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Join returns a listener that accepts the connections of several, and closes them. Its address is
// the first listener's.
func Join(listeners ...net.Listener) net.Listener {
	if len(listeners) == 1 {
		return listeners[0]
	}
	j := &joined{listeners: listeners, accepted: make(chan accepted), done: make(chan struct{})}
	for _, l := range listeners {
		j.loops.Go(func() { j.loop(l) })
	}
	return j
}

type joined struct {
	listeners []net.Listener
	accepted  chan accepted
	done      chan struct{} // closed by Close
	close     sync.Once
	loops     sync.WaitGroup
}

// accepted is the result of a listener's Accept.
type accepted struct {
	conn net.Conn
	err  error
}

func (j *joined) loop(l net.Listener) {
	for {
		conn, err := l.Accept()
		select {
		case j.accepted <- accepted{conn, err}:
		case <-j.done:
			if err == nil {
				conn.Close()
			}
			return
		}
	}
}

func (j *joined) Accept() (net.Conn, error) {
	select {
	case a := <-j.accepted:
		return a.conn, a.err
	case <-j.done:
		return nil, net.ErrClosed
	}
}

func (j *joined) Addr() net.Addr { return j.listeners[0].Addr() }

func (j *joined) Close() error {
	var errs []error
	j.close.Do(func() {
		close(j.done)
		for _, l := range j.listeners {
			errs = append(errs, l.Close())
		}
		j.loops.Wait()
	})
	return errors.Join(errs...)
}
