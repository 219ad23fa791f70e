//go:build linux

package rmsg_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rmsg"
)

// waits returns the methods that wait for the loop, by name.
func waits(s *rmsg.Conn) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"Dial":     func(ctx context.Context) error { return errOf((&rmsg.Dialer{Loop: s.Loop()}).Dial(ctx, nowhere)) },
		"Send":     func(ctx context.Context) error { return s.Send(ctx, []byte("x")) },
		"Recv":     func(ctx context.Context) error { return errOf(s.Recv(ctx)) },
		"Shutdown": s.Shutdown,
	}
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
		accepted := make(chan *rmsg.Conn, 1)
		go func() {
			if s, err := ln.Accept(within(t)); err == nil {
				accepted <- s
			}
		}()
		poll(t, func() bool { return c.State() == rmsg.Established }, server)
		s := <-accepted
		receive := func(s *rmsg.Conn) error {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			return errOf(s.Recv(ctx))
		}
		poll(t, func() bool {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(server.FD()), Events: unix.POLLIN}}, 100)
			return n == 0 && err == nil
		}, server)
		for _, s := range []*rmsg.Conn{c, s} {
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
