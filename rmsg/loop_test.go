//go:build linux

package rmsg_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rmsg"
)

// poll dispatches loops as a C program would, waiting for their files with poll(2), until
// done returns true, for which it looks every 10 ms: others may cause it.
func poll(t testing.TB, done func() bool, loops ...*rmsg.Loop) {
	t.Helper()
	for deadline := time.Now().Add(patience); !done(); {
		fds := make([]unix.PollFd, len(loops))
		for i, l := range loops {
			fds[i] = unix.PollFd{Fd: int32(l.FD()), Events: unix.POLLIN}
		}
		if _, err := unix.Poll(fds, 10); err != nil && err != unix.EINTR {
			t.Fatal(err)
		}
		for i, l := range loops {
			if fds[i].Revents == 0 {
				continue
			}
			if _, err := dispatch(l); err != nil {
				t.Fatal(err)
			}
		}
		if time.Now().After(deadline) {
			t.Fatal("waited too long")
		}
	}
}

// callbackLog records the callbacks.
type callbackLog []string

func (g *callbackLog) callbacks() rmsg.Callbacks {
	say := func(format string, args ...any) { *g = append(*g, fmt.Sprintf(format, args...)) }
	return rmsg.Callbacks{
		Request:     func(r *rmsg.Request) { say("request"); r.Accept(nil) },
		Established: func(s *rmsg.Conn) { say("established") },
		Message: func(s *rmsg.Conn, b *rmsg.Buffer) {
			say("message %s", b.Bytes())
			b.Free()
		},
		Sent:         func(s *rmsg.Conn, b *rmsg.Buffer) { say("%v", b.Status()) },
		Writable:     func(s *rmsg.Conn) { say("writable") },
		Disconnected: func(s *rmsg.Conn, why error) { say("disconnected: %v", why) },
	}
}

func (g *callbackLog) contains(line string) func() bool {
	return func() bool { return slices.Contains(*g, line) }
}

// TestCallbacks runs the steps of ibmsg's programs in one goroutine, which dispatches two
// loops in turn.
func TestCallbacks(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		var client, server callbackLog
		cl := labtest.Must(rmsg.NewLoop(rmsg.Options{Callbacks: client.callbacks()}))(t)
		sl := labtest.Must(rmsg.NewLoop(rmsg.Options{Callbacks: server.callbacks()}))(t)
		labtest.Close(t, cl)
		labtest.Close(t, sl)
		ln := labtest.Must((&rmsg.ListenConfig{Loop: sl}).Listen(t.Context(), labtest.AddrOf(device)+":0"))(t)
		s := labtest.Must((&rmsg.Dialer{Loop: cl}).Connect(ln.Addr().String()))(t)
		if s.State() != rmsg.Connecting {
			t.Errorf("at first: %v", s.State())
		}
		if _, err := s.Alloc(1); !errors.Is(err, rmsg.ErrNotConnected) || !errors.Is(err, syscall.ENOTCONN) {
			t.Errorf("alloc before the connection is up: %v", err)
		}
		poll(t, client.contains("established"), cl, sl)
		b := labtest.Must(s.Alloc(100))(t)
		if b.Status() != rmsg.Free {
			t.Errorf("new buffer: %v", b.Status())
		}
		copy(b.Bytes(), "hello")
		if err := b.SetLen(5); err != nil {
			t.Fatal(err)
		}
		if err := s.Post(b); err != nil {
			t.Fatal(err)
		}
		if b.Status() != rmsg.Queued {
			t.Errorf("posted buffer, not dispatched: %v", b.Status())
		}
		poll(t, func() bool { return b.Status() == rmsg.Sent && server.contains("message hello")() }, cl, sl)
		if err := b.Free(); err != nil {
			t.Error(err)
		}
		s.Disconnect()
		poll(t, func() bool { return s.State() == rmsg.Disconnected && len(server) >= 4 }, cl, sl)
		if got, want := strings.Join(client, ", "), "established, sent, disconnected: use of closed object"; got != want {
			t.Errorf("the client heard: %s", got)
		}
		if got, want := strings.Join(server, ", "), "request, established, message hello, disconnected: EOF"; got != want {
			t.Errorf("the server heard: %s", got)
		}
	})
}

// TestFD tests that the loop's file is readable if and only if there is something to do.
func TestFD(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		var heard callbackLog
		l := labtest.Must(rmsg.NewLoop(rmsg.Options{Callbacks: heard.callbacks()}))(t)
		labtest.Close(t, l)
		ln := listen(t, l, device)
		c := labtest.Must((&rmsg.Dialer{Loop: run(t, rmsg.Options{})}).Connect(ln.Addr().String()))(t)
		poll(t, heard.contains("established"), l)
		if err := c.Wait(within(t)); err != nil {
			t.Fatal(err)
		}
		quiet := func() bool {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(l.FD()), Events: unix.POLLIN}}, 100)
			return n == 0 && err == nil
		}
		for i := range 20 {
			poll(t, quiet, l)
			text := fmt.Sprint(i)
			if err := c.Send(within(t), []byte(text)); err != nil {
				t.Fatal(err)
			}
			poll(t, heard.contains("message "+text), l)
		}
	})
}

func TestDispatching(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		var l *rmsg.Loop
		inside := make(chan error, 1)
		l = run(t, rmsg.Options{Callbacks: rmsg.Callbacks{Disconnected: func(s *rmsg.Conn, why error) {
			_, err := dispatch(l)
			inside <- err
		}}})
		s := labtest.Must((&rmsg.Dialer{Loop: l}).Connect(labtest.AddrOf(device) + ":1"))(t)
		s.Close()
		if err := <-inside; !errors.Is(err, rmsg.ErrDispatching) {
			t.Errorf("dispatch in a callback: %v", err)
		}
	})
}

// TestReject tests that unanswered requests are rejected, and that Reject sends private
// data.
func TestReject(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		refused := func(t *testing.T, server rmsg.Options, wait time.Duration, want string) {
			t.Helper()
			ln := labtest.Must((&rmsg.ListenConfig{Loop: run(t, server), AnswerTimeout: wait}).Listen(within(t), labtest.AddrOf(device)+":0"))(t)
			labtest.Close(t, ln)
			c := run(t, rmsg.Options{})
			_, err := (&rmsg.Dialer{Loop: c}).Dial(within(t), ln.Addr().String())
			if !labtest.RejectedWith(t, device, err, want) {
				t.Errorf("dial: %v, want %q", err, want)
			}
		}
		refused(t, rmsg.Options{Callbacks: rmsg.Callbacks{Request: func(*rmsg.Request) {}}}, 0, "")
		refused(t, rmsg.Options{}, 10*time.Millisecond, "")
		refused(t, rmsg.Options{Callbacks: rmsg.Callbacks{Request: func(r *rmsg.Request) {
			if err := r.Reject([]byte("full")); err != nil {
				t.Error(err)
			}
			if _, err := r.Accept(nil); !errors.Is(err, verbs.ErrClosed) {
				t.Errorf("accept after reject: %v", err)
			}
		}}}, 0, "full")
		// One request may wait, the others exceed the backlog.
		config := rmsg.ListenConfig{Loop: run(t, rmsg.Options{}), Backlog: 1, AnswerTimeout: -1}
		ln := labtest.Must(config.Listen(within(t), labtest.AddrOf(device)+":0"))(t)
		labtest.Close(t, ln)
		c := run(t, rmsg.Options{})
		over := make(chan *rmsg.Conn, 3)
		for range cap(over) {
			s := labtest.Must((&rmsg.Dialer{Loop: c}).Connect(ln.Addr().String()))(t)
			go func() { <-s.Done(); over <- s }()
		}
		for range cap(over) - 1 {
			select {
			case s := <-over:
				if !labtest.Rejected(t, device, s.Err()) {
					t.Errorf("above the backlog: %v", s.Err())
				}
			case <-within(t).Done():
				t.Fatal("all wait")
			}
		}
		ln.Close()
		if s := <-over; !labtest.Rejected(t, device, s.Err()) {
			t.Errorf("waiting when the listener was closed: %v", s.Err())
		}
		if _, err := ln.Accept(within(t)); !errors.Is(err, verbs.ErrClosed) {
			t.Errorf("accept after close: %v", err)
		}
	})
}

func TestPrivateData(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		asked := make(chan string, 1)
		server := run(t, rmsg.Options{Callbacks: rmsg.Callbacks{Request: func(r *rmsg.Request) {
			asked <- string(r.PrivateData())
			if r.LocalAddr().Port() == 0 || r.RemoteAddr().Port() == 0 {
				t.Errorf("request to %v from %v", r.LocalAddr(), r.RemoteAddr())
			}
			if _, err := r.Accept([]byte("welcome")); err != nil {
				t.Error(err)
			}
		}}})
		ln := listen(t, server, device)
		l := run(t, rmsg.Options{})
		most := strings.Repeat("x", 32)
		dialer := rmsg.Dialer{Loop: l, PrivateData: []byte(most)}
		c := labtest.Must(dialer.Connect(ln.Addr().String()))(t)
		if err := c.Wait(within(t)); err != nil {
			t.Fatal(err)
		}
		if got := <-asked; got != most {
			t.Errorf("the server heard %q", got)
		}
		if got := string(c.PrivateData()); got != "welcome" {
			t.Errorf("the client heard %q", got)
		}
		if c.RemoteAddr() != ln.Addr() || c.LocalAddr().Port() == 0 || c.Loop() != l {
			t.Errorf("connection from %v to %v", c.LocalAddr(), c.RemoteAddr())
		}
		dialer.PrivateData = make([]byte, 300)
		if _, err := dialer.Connect(ln.Addr().String()); !errors.Is(err, cm.ErrPrivateData) {
			t.Errorf("300 bytes: %v", err)
		}
	})
}

// TestNobody connects to a port without a listener, and to addresses without a machine.
func TestNobody(t *testing.T) {
	labtest.RequireKernel(t)
	labtest.Each(t, func(t *testing.T, device string) {
		hasty, patient := run(t, rmsg.Options{ConnectTimeout: 300 * time.Millisecond}), run(t, rmsg.Options{})
		dead := labtest.AddrOf(device) + "77:1" // 10.9.0.1 has no 10.9.0.177
		for addr, want := range map[string]error{
			labtest.AddrOf(device) + ":1": syscall.ECONNREFUSED,
			dead:                          syscall.ETIMEDOUT,
			"192.0.2.1:1":                 verbs.ErrNoRoute,
			"no such address":             nil,
		} {
			l := patient
			if addr == dead {
				l = hasty
			}
			_, err := (&rmsg.Dialer{Loop: l}).Dial(within(t), addr)
			if err == nil || want != nil && !errors.Is(err, want) {
				t.Errorf("dial %s: %v, want %v", addr, err, want)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if _, err := (&rmsg.Dialer{Loop: patient}).Dial(ctx, dead); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("dial for 50 ms: %v", err)
		}
	})
}

// TestDisconnect tests that everything sent before one or both sides disconnect arrives.
func TestDisconnect(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		for _, who := range []string{"client", "server", "both"} {
			t.Run(who, func(t *testing.T) {
				opt := rmsg.Options{Eager: 1024, Credits: 4}
				c, s := pair(t, device, opt, opt)
				const n = 20
				for i := range n {
					for _, x := range []*rmsg.Conn{c, s} {
						if err := x.Send(within(t), pattern(i*300, i)); err != nil {
							t.Fatal(err)
						}
					}
				}
				if who != "server" {
					c.Disconnect()
				}
				if who != "client" {
					s.Disconnect()
				}
				for _, x := range []*rmsg.Conn{c, s} {
					if err := x.Send(within(t), nil); who == "both" && !errors.Is(err, verbs.ErrClosed) {
						t.Errorf("send after disconnecting: %v", err)
					}
				}
				got := map[*rmsg.Conn]int{}
				for got[c]+got[s] < 2*n {
					for _, x := range []*rmsg.Conn{c, s} {
						b, err := x.Recv(within(t))
						if err != nil {
							t.Fatalf("after %d messages: %v", got[x], err)
						}
						if want := got[x] * 300; len(b.Bytes()) != want {
							t.Errorf("message of %d bytes, not %d", len(b.Bytes()), want)
						}
						b.Free()
						got[x]++
					}
				}
				for x, began := range map[*rmsg.Conn]bool{c: who != "server", s: who != "client"} {
					<-x.Done()
					want := error(io.EOF)
					if began {
						want = verbs.ErrClosed
					}
					if !errors.Is(x.Err(), want) || x.State() != rmsg.Disconnected {
						t.Errorf("%v is %v with %v, want %v", x, x.State(), x.Err(), want)
					}
				}
			})
		}
	})
}

// TestLinger tests that Linger bounds Disconnect if the peer takes nothing.
func TestLinger(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		c, s := pair(t, device, rmsg.Options{Linger: 200 * time.Millisecond}, rmsg.Options{Credits: 1})
		b := labtest.Must(c.Alloc(10))(t)
		second := labtest.Must(c.Alloc(10))(t)
		for _, b := range []*rmsg.Buffer{b, second} {
			if err := c.Post(b); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.Shutdown(within(t)); !errors.Is(err, rmsg.ErrTimeout) {
			t.Errorf("shutdown: %v", err)
		}
		if b.Status() != rmsg.Sent || second.Status() != rmsg.Failed || !errors.Is(second.Err(), rmsg.ErrTimeout) {
			t.Errorf("buffers: %v and %v with %v", b.Status(), second.Status(), second.Err())
		}
		if b, err := s.Recv(within(t)); err != nil || len(b.Bytes()) != 10 {
			t.Errorf("what had come: %v", err)
		}
		if _, err := s.Recv(within(t)); !errors.Is(err, verbs.ErrDisconnected) {
			t.Errorf("after that: %v", err)
		}
	})
}

// TestLoopClose tests that Close ends everything except buffers that the program holds.
func TestLoopClose(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {

		server := labtest.Must(rmsg.NewLoop(rmsg.Options{}))(t)
		go server.Run(context.Background())
		ln := labtest.Must((&rmsg.ListenConfig{Loop: server}).Listen(t.Context(), labtest.AddrOf(device)+":0"))(t)
		ended := make(chan error, 1)
		var client *rmsg.Loop
		client = labtest.Must(rmsg.NewLoop(rmsg.Options{Callbacks: rmsg.Callbacks{
			Message:      func(s *rmsg.Conn, b *rmsg.Buffer) { client.Close() }, // b is not freed
			Disconnected: func(s *rmsg.Conn, why error) { ended <- why },
		}}))(t)
		running := make(chan error, 1)
		go func() { running <- client.Run(context.Background()) }()
		c := labtest.Must((&rmsg.Dialer{Loop: client}).Connect(ln.Addr().String()))(t)
		s := labtest.Must(ln.Accept(within(t)))(t)
		if err := c.Wait(within(t)); err != nil {
			t.Fatal(err)
		}
		kept := labtest.Must(c.Alloc(100 << 10))(t)
		if err := s.Send(within(t), []byte("stop")); err != nil {
			t.Fatal(err)
		}
		if err := <-running; !errors.Is(err, verbs.ErrClosed) {
			t.Errorf("run: %v", err)
		}
		if err := <-ended; !errors.Is(err, verbs.ErrClosed) {
			t.Errorf("the connection: %v", err)
		}
		if _, err := s.Recv(within(t)); !errors.Is(err, verbs.ErrDisconnected) {
			t.Errorf("the other side: %v", err)
		}
		if err := errors.Join(client.Close(), server.Close(), server.Close()); err != nil {
			t.Error(err)
		}
		kept.Bytes()[99] = 1 // the memory is still valid
		for what, err := range map[string]error{
			"connect":  errOf((&rmsg.Dialer{Loop: client}).Connect(ln.Addr().String())),
			"listen":   errOf((&rmsg.ListenConfig{Loop: client}).Listen(within(t), labtest.AddrOf(device)+":0")),
			"dispatch": errOf(dispatch(client)),
			"alloc":    errOf(c.Alloc(1)),
			"post":     c.Post(kept),
			"accept":   errOf(ln.Accept(within(t))),
		} {
			if !errors.Is(err, verbs.ErrClosed) {
				t.Errorf("%s after close: %v", what, err)
			}
		}
		kept.Free()
		if kept.Bytes() != nil {
			t.Error("a freed buffer has bytes")
		}

	})
}

func errOf[T any](_ T, err error) error { return err }

// TestOtherTransport dials and listens with a loop and a Transport that is not the loop's.
func TestOtherTransport(t *testing.T) {
	l, err := rmsg.NewLoop(rmsg.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	opt := rmsg.Options{Transport: new(cm.Transport)}
	if _, err := (&rmsg.Dialer{Loop: l, Options: opt}).Dial(t.Context(), "127.0.0.1:1"); !errors.Is(err, verbs.ErrRange) {
		t.Errorf("dial: %v", err)
	}
	if _, err := (&rmsg.ListenConfig{Loop: l, Options: opt}).Listen(t.Context(), "127.0.0.1:1"); !errors.Is(err, verbs.ErrRange) {
		t.Errorf("listen: %v", err)
	}
	opt.Transport = cm.DefaultTransport() // is the loop's
	if _, err := (&rmsg.Dialer{Loop: l, Options: opt}).Connect("127.0.0.1:1"); errors.Is(err, verbs.ErrRange) {
		t.Errorf("dial by the loop's transport: %v", err)
	}
}
