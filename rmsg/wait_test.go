//go:build linux

package rmsg_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rmsg"
)

// nowhere is an invalid address: it has no port.
const nowhere = "10.9.0.1"

// waits returns the methods that take a context, by name.
func waits(s *rmsg.Socket) map[string]func(context.Context) error {
	l := s.Loop()
	return map[string]func(context.Context) error{
		"Run":        l.Run,
		"Listen":     func(ctx context.Context) error { return errOf((&rmsg.ListenConfig{Loop: l}).Listen(ctx, nowhere)) },
		"Dial":       func(ctx context.Context) error { return errOf((&rmsg.Dialer{Loop: l}).Dial(ctx, nowhere)) },
		"Wait":       s.Wait,
		"Send":       func(ctx context.Context) error { return s.Send(ctx, []byte("x")) },
		"SendBuffer": func(ctx context.Context) error { return s.SendBuffer(ctx, new(rmsg.Buffer)) },
		"Recv":       func(ctx context.Context) error { return errOf(s.Recv(ctx)) },
		"Messages": func(ctx context.Context) (err error) {
			for _, err = range s.Messages(ctx) {
			}
			return err
		},
		"Shutdown": s.Shutdown,
	}
}

// TestWaitInCallback calls methods that wait for the loop in a callback, where they are
// refused, and from another goroutine while the callback runs.
func TestWaitInCallback(t *testing.T) {
	ended := make(chan struct{})
	var once sync.Once
	inCallback := func(s *rmsg.Socket) {
		defer close(ended)
		var other sync.WaitGroup
		for name, wait := range waits(s) {
			if err := wait(context.Background()); !errors.Is(err, rmsg.ErrDispatching) {
				t.Errorf("%s in a callback: %v", name, err)
			}
			if name == "Run" {
				continue // always refused
			}
			other.Go(func() {
				ctx, cancel := context.WithCancel(context.Background())
				cancel()
				if err := wait(ctx); errors.Is(err, rmsg.ErrDispatching) {
					t.Errorf("%s of another goroutine during a callback: %v", name, err)
				}
			})
		}
		other.Wait()
	}
	l := run(t, rmsg.Options{Callbacks: rmsg.Callbacks{Disconnected: func(s *rmsg.Socket, why error) {
		once.Do(func() { inCallback(s) }) // Dial makes sockets too
	}}})
	labtest.Must((&rmsg.Dialer{Loop: l}).Connect(nowhere))(t)
	<-ended
}

// TestWaitBesideCallbacks calls methods that wait from many goroutines, on all
// threads, while callbacks run.
func TestWaitBesideCallbacks(t *testing.T) {
	const rounds = 100
	over := make(chan struct{}, rounds)
	l := run(t, rmsg.Options{Callbacks: rmsg.Callbacks{Disconnected: func(*rmsg.Socket, error) { over <- struct{}{} }}})
	s := labtest.Must((&rmsg.Dialer{Loop: l}).Connect(nowhere))(t)
	<-over
	ctx, cancel := context.WithCancel(t.Context())
	var others sync.WaitGroup
	for range 8 {
		others.Go(func() {
			for ctx.Err() == nil {
				if _, err := s.Recv(ctx); errors.Is(err, rmsg.ErrDispatching) {
					t.Errorf("receive beside callbacks: %v", err)
					return
				}
			}
		})
	}
	for range rounds {
		labtest.Must((&rmsg.Dialer{Loop: l}).Connect(nowhere))(t)
		<-over
	}
	cancel()
	others.Wait()
}

// TestSendInMessage calls Send in the Message callback. It is refused from the first
// message on, not only when the send queue is full, and no message is blocked.
func TestSendInMessage(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		const n = 500
		var refused, posted int
		all := make(chan struct{})
		listening := make(chan *rmsg.Listener, 1)
		server := run(t, rmsg.Options{Callbacks: rmsg.Callbacks{
			Request: func(r *rmsg.Request) {
				ln := <-listening
				if err := errOf(ln.Accept(context.Background())); !errors.Is(err, rmsg.ErrDispatching) {
					t.Errorf("accept in a callback: %v", err)
				}
				r.Accept(rmsg.ConnOptions{})
			},
			Message: func(s *rmsg.Socket, b *rmsg.Buffer) {
				defer b.Free()
				if err := s.Send(context.Background(), b.Bytes()); errors.Is(err, rmsg.ErrDispatching) {
					refused++
				}
				if answer, err := s.Alloc(1); err != nil {
					t.Error(err)
				} else if s.Post(answer) == nil {
					posted++
				} else {
					answer.Free()
				}
				if refused == n {
					close(all)
				}
			},
			Sent: func(s *rmsg.Socket, b *rmsg.Buffer) { b.Free() },
		}})
		ln := listen(t, server, device)
		listening <- ln
		c := labtest.Must((&rmsg.Dialer{Loop: run(t, rmsg.Options{})}).Dial(within(t), ln.Addr().String()))(t)
		for range n {
			if err := c.Send(within(t), make([]byte, 100)); err != nil {
				t.Fatal(err)
			}
		}
		select {
		case <-all:
		case <-within(t).Done():
			t.Fatal("not every Send was refused")
		}
		if posted == 0 {
			t.Error("nothing was posted")
		}
	})
}

// TestNotRunning waits for a loop that nothing runs: timeouts apply, and errors match
// ErrNotRunning.
func TestNotRunning(t *testing.T) {
	idle := func(opt rmsg.Options) *rmsg.Loop {
		l := labtest.Must(rmsg.NewLoop(opt))(t)
		labtest.Close(t, l)
		return l
	}
	check := func(what string, err error, also error) {
		t.Helper()
		if !errors.Is(err, rmsg.ErrNotRunning) || !errors.Is(err, also) {
			t.Errorf("%s: %v", what, err)
		}
	}
	const soon = 50 * time.Millisecond
	l := idle(rmsg.Options{ConnectTimeout: soon, Linger: soon})
	check("dial", errOf((&rmsg.Dialer{Loop: l}).Dial(within(t), nowhere)), rmsg.ErrTimeout)
	s := labtest.Must((&rmsg.Dialer{Loop: l}).Connect(nowhere))(t)
	check("shut down", s.Shutdown(within(t)), rmsg.ErrTimeout)

	l = idle(rmsg.Options{})
	for name := range waits(s) {
		if name == "Run" || name == "Listen" || name == "SendBuffer" {
			continue
		}
		ctx, cancel := context.WithTimeout(t.Context(), soon)
		s := labtest.Must((&rmsg.Dialer{Loop: l}).Connect(nowhere))(t)
		check(name, waits(s)[name](ctx), context.DeadlineExceeded)
		cancel()
	}
}

// TestRunning waits until the context ends, with a running loop and one dispatched by
// hand.
func TestRunning(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		client := run(t, rmsg.Options{})
		server := labtest.Must(rmsg.NewLoop(rmsg.Options{}))(t)
		labtest.Close(t, server)
		ln := listen(t, server, device)
		c := labtest.Must((&rmsg.Dialer{Loop: client}).Connect(ln.Addr().String()))(t)
		accepted := make(chan *rmsg.Socket, 1)
		go func() {
			if s, err := ln.Accept(within(t)); err == nil {
				accepted <- s
			}
		}()
		poll(t, func() bool { return c.State() == rmsg.Established }, server)
		s := <-accepted
		receive := func(s *rmsg.Socket) error {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			return errOf(s.Recv(ctx))
		}
		poll(t, func() bool {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(server.FD()), Events: unix.POLLIN}}, 100)
			return n == 0 && err == nil
		}, server)
		for _, s := range []*rmsg.Socket{c, s} {
			if err := receive(s); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, rmsg.ErrNotRunning) {
				t.Errorf("receive with nothing to do: %v", err)
			}
		}
		if err := c.Send(within(t), []byte("x")); err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(patience); ; {
			err := receive(s)
			if errors.Is(err, rmsg.ErrNotRunning) {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("receive what was not dispatched: %v", err)
			}
		}
	})
}
