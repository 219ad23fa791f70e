//go:build linux

package rmsg_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rmsg"
)

// TestDialListen connects connections with their own loops, which leave nothing behind.
func TestDialListen(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		before := labtest.SettledInventory(t)
		addr := labtest.AddrOf(device)
		ln := labtest.Must(rmsg.Listen(within(t), addr+":0"))(t)
		if _, err := rmsg.Listen(within(t), ln.Addr().String()); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("listen again: %v", err)
		}
		if _, err := (&rmsg.ListenConfig{Backlog: -1}).Listen(within(t), addr+":0"); !errors.Is(err, verbs.ErrRange) {
			t.Errorf("backlog of -1: %v", err)
		}
		config := rmsg.Dialer{
			LocalAddr:   netip.MustParseAddrPort(addr + ":0"),
			TOS:         0x20,
			PrivateData: []byte("me"),
			Options:     rmsg.Options{MaxMessage: 1000},
		}
		c := labtest.Must(config.Connect(ln.Addr().String()))(t)
		s := labtest.Must(ln.Accept(within(t)))(t)
		if err := errors.Join(c.Wait(within(t)), s.Wait(within(t))); err != nil {
			t.Fatal(err)
		}
		if s.Loop() != ln.Loop() || c.Loop() == s.Loop() {
			t.Error("connections have other loops than they should")
		}
		if string(s.PrivateData()) != "me" || s.MaxMessage() != 1000 {
			t.Errorf("private data %q, messages up to %d", s.PrivateData(), s.MaxMessage())
		}
		if err := ln.Close(); err != nil { // the connection stays up
			t.Error(err)
		}
		other := labtest.Must(rmsg.Listen(within(t), addr+":0"))(t)
		d := make(chan *rmsg.Conn, 1)
		go func() {
			s, err := rmsg.Dial(within(t), other.Addr().String())
			if err != nil {
				t.Error(err)
			}
			d <- s
		}()
		labtest.Must(other.Accept(within(t)))(t)
		if s := <-d; s != nil {
			s.Close()
		}
		other.Loop().Close()

		if err := c.Send(within(t), []byte("hello")); err != nil {
			t.Error(err)
		}
		b := labtest.Must(s.Recv(within(t)))(t)
		if string(b.Bytes()) != "hello" {
			t.Errorf("received %q", b.Bytes())
		}
		b.Free()
		if err := c.Shutdown(within(t)); err != nil {
			t.Error(err)
		}
		if _, err := s.Recv(within(t)); err != io.EOF {
			t.Errorf("the peer disconnected: %v", err)
		}
		// The listener is closed.
		if _, err := rmsg.Dial(within(t), ln.Addr().String()); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("dial: %v", err)
		}
		for _, l := range []*rmsg.Loop{c.Loop(), s.Loop(), other.Loop()} {
			labtest.Until(t, "the end of a loop without connections", func() bool {
				_, err := dispatch(l)
				return errors.Is(err, verbs.ErrClosed)
			})
		}
		labtest.CheckLeaks(t, before)
	})
}

// TestDispatch runs a connection from Connect to Disconnect with Dispatch.
func TestDispatch(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		l := labtest.Must(rmsg.NewLoop(rmsg.Options{}))(t)
		labtest.Close(t, l)
		calls := 0
		until := func(done func() bool) {
			t.Helper()
			for !done() {
				n, err := l.Dispatch(within(t))
				if err != nil || n < 1 {
					t.Fatalf("dispatched %d: %v", n, err)
				}
				calls++
			}
		}
		ln := listen(t, run(t, rmsg.Options{}), device)
		c := labtest.Must((&rmsg.Dialer{Loop: l}).Connect(ln.Addr().String()))(t)
		s := labtest.Must(ln.Accept(within(t)))(t)
		until(func() bool { return c.State() == rmsg.Established })
		b := labtest.Must(c.Alloc(5))(t)
		if err := c.Post(b); err != nil {
			t.Fatal(err)
		}
		until(func() bool { return b.Status() == rmsg.Sent })
		labtest.Must(s.Recv(within(t)))(t).Free()
		c.Disconnect()
		until(func() bool { return c.State() == rmsg.Disconnected })
		if calls > 30 {
			t.Errorf("%d dispatches for a message", calls)
		}
		for ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond); ; {
			n, err := l.Dispatch(ctx) // 0 when the idle device has been closed
			if err == nil && n > 0 {
				continue
			}
			if !errors.Is(err, context.DeadlineExceeded) || n != 0 {
				t.Errorf("nothing to do: %d, %v", n, err)
			}
			cancel()
			break
		}
		// Run and Dispatch exclude each other.
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			for {
				if err := l.Run(ctx); !errors.Is(err, rmsg.ErrDispatching) {
					ended <- err
					return
				}
			}
		}()
		for {
			short, stop := context.WithTimeout(t.Context(), time.Millisecond)
			_, err := l.Dispatch(short)
			stop()
			if errors.Is(err, rmsg.ErrDispatching) {
				break
			}
			if !errors.Is(err, context.DeadlineExceeded) && err != nil {
				t.Fatal(err)
			}
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("run: %v", err)
		}
		go func() { time.Sleep(20 * time.Millisecond); l.Close() }()
		for {
			if _, err := l.Dispatch(within(t)); errors.Is(err, verbs.ErrClosed) {
				break
			} else if err != nil {
				t.Fatalf("the loop is closed: %v", err)
			}
		}
	})
}

// TestNestedEpoll waits for the file of a loop in another epoll file, level- and
// edge-triggered.
func TestNestedEpoll(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		for name, edge := range map[string]uint32{"level": 0, "edge": unix.EPOLLET} {
			t.Run(name, func(t *testing.T) {
				outer := labtest.Must(unix.EpollCreate1(unix.EPOLL_CLOEXEC))(t)
				defer unix.Close(outer)
				got := 0
				l := labtest.Must(rmsg.NewLoop(rmsg.Options{Callbacks: rmsg.Callbacks{
					Request: func(r *rmsg.Request) { r.Accept(nil) },
					Message: func(_ *rmsg.Conn, b *rmsg.Buffer) { got++; b.Free() },
				}}))(t)
				labtest.Close(t, l)
				ev := unix.EpollEvent{Events: unix.EPOLLIN | edge, Fd: int32(l.FD())}
				if err := unix.EpollCtl(outer, unix.EPOLL_CTL_ADD, l.FD(), &ev); err != nil {
					t.Fatal(err)
				}
				// until dispatches once for each event.
				until := func(n int) {
					t.Helper()
					for got < n {
						var evs [1]unix.EpollEvent
						n, err := unix.EpollWait(outer, evs[:], int(patience.Milliseconds()))
						if err == unix.EINTR {
							continue
						}
						if err != nil || n == 0 {
							t.Fatalf("%d messages, and then no event: %v", got, err)
						}
						if _, err := dispatch(l); err != nil {
							t.Fatal(err)
						}
					}
				}
				ln := listen(t, l, device)
				c := labtest.Must((&rmsg.Dialer{Loop: run(t, rmsg.Options{})}).Connect(ln.Addr().String()))(t)
				const n = 3000
				sent := make(chan error, 1)
				go func() {
					for i := range n {
						if err := c.Send(within(t), make([]byte, 1+i%30_000)); err != nil {
							sent <- err
							return
						}
						if i%100 == 0 {
							time.Sleep(time.Millisecond)
						}
					}
					sent <- nil
				}()
				until(n)
				if err := <-sent; err != nil {
					t.Error(err)
				}
			})
		}
	})
}

// TestEndpoint tests the underlying connection of a connection.
func TestEndpoint(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		c, s := pair(t, device, rmsg.Options{}, rmsg.Options{})
		e := c.Endpoint()
		if got := e.PD.Context().Device().Name; got != device {
			t.Errorf("device %s", got)
		}
		if e.LocalAddr() != c.LocalAddr() || e.RemoteAddr() != s.LocalAddr() {
			t.Errorf("addresses %v and %v", e.LocalAddr(), e.RemoteAddr())
		}
		if attr := labtest.Must(e.QP.Query())(t); attr.State != verbs.StateRTS && (device == labtest.RXE || attr.State != verbs.StateReset) { // siw of Linux 6.1 does not return it
			t.Errorf("QP is %v", attr.State)
		}
		c.Close()
		<-e.Done()
		<-c.Done()
		l := run(t, rmsg.Options{})
		if e := labtest.Must((&rmsg.Dialer{Loop: l}).Connect(nowhere))(t).Endpoint(); e != nil {
			t.Error("a connection without a connection has an endpoint")
		}
	})
}

// TestStats compares the statistics with what was done.
func TestStats(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		ln := listen(t, run(t, rmsg.Options{Credits: 4}), device)
		c := labtest.Must((&rmsg.Dialer{Loop: run(t, rmsg.Options{SendQueue: 8, SendBuffer: 4 << 10})}).Connect(ln.Addr().String()))(t)
		s := labtest.Must(ln.Accept(within(t)))(t)
		if err := c.Wait(within(t)); err != nil {
			t.Fatal(err)
		}
		if st := c.Stats(); st.Credits != 4 || st.Queued != 0 || st.Memory < 100<<10 {
			t.Errorf("at first: %+v", st)
		}
		var bufs []*rmsg.Buffer
		for range 9 {
			b := labtest.Must(c.Alloc(10))(t)
			if err := c.Post(b); err != nil {
				b.Free()
				continue
			}
			bufs = append(bufs, b)
		}
		for st := c.Stats(); st.MessagesSent < 4; st = c.Stats() {
			if within(t).Err() != nil {
				t.Fatalf("%+v", st)
			}
		}
		if st := c.Stats(); st.WouldBlock == 0 && len(bufs) < 9 || st.CreditWaits == 0 || st.Credits != 0 || st.Queued != len(bufs)-4 {
			t.Errorf("%d posted, 4 credits: %+v", len(bufs), st)
		}
		var size uint64
		for _, n := range []int{1000, 2000, 100_000} {
			size += uint64(n)
			go c.Send(within(t), make([]byte, n))
		}
		for range len(bufs) + 3 {
			labtest.Must(s.Recv(within(t)))(t).Free()
		}
		if err := c.Shutdown(within(t)); err != nil {
			t.Fatal(err)
		}
		<-s.Done()
		n, size := uint64(len(bufs)+3), size+uint64(10*len(bufs))
		if st := c.Stats(); st.MessagesSent != n || st.BytesSent != size || st.LargeSent != 1 || st.Queued != 0 || st.AcksReceived == 0 {
			t.Errorf("the client: %+v", st)
		}
		if st := s.Stats(); st.MessagesReceived != n || st.BytesReceived != size || st.LargeReceived != 1 || st.Unread != 0 || st.AcksSent == 0 {
			t.Errorf("the server: %+v", st)
		}
		for _, b := range bufs {
			b.Free()
		}
		if st := s.Loop().Stats(); st.Dispatches == 0 || st.Wakeups == 0 || st.Handled < n || st.Conns != 0 || st.Listeners != 1 {
			t.Errorf("the server's loop: %+v", st)
		}
		if st := ln.Stats(); st.Requests != 1 || st.Accepted != 1 || st.Rejected != 0 || st.Waiting != 0 {
			t.Errorf("the listener: %+v", st)
		}
	})
}

// logBuffer is the output of a logger.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (r *logBuffer) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.b.Write(b)
}

func (r *logBuffer) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.b.String()
}

// TestLogger tests what is logged about a connection, and about peers that are rejected
// or break the protocol.
func TestLogger(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		var r logBuffer
		logger := slog.New(slog.NewTextHandler(&r, &slog.HandlerOptions{Level: slog.LevelDebug}))
		l := run(t, rmsg.Options{Logger: logger})
		ln := listen(t, l, device)
		c := labtest.Must((&rmsg.Dialer{Loop: run(t, rmsg.Options{})}).Connect(ln.Addr().String()))(t)
		s := labtest.Must(ln.Accept(within(t)))(t)
		if err := c.Wait(within(t)); err != nil {
			t.Fatal(err)
		}
		c.Shutdown(within(t))
		<-s.Done()
		if _, err := dialHostile(t, ln.Addr().String(), []byte("something else")); err == nil {
			t.Error("a peer of another protocol is accepted")
		}
		go ln.Accept(within(t))
		liar := labtest.Must(dialHostile(t, ln.Addr().String(), rmsg.PrivateData(3, 3, 4, 2048, 0)))(t)
		liar.send(rmsg.Frame{Kind: 77, Granted: 4})
		<-liar.e.Done()
		for _, want := range []string{
			"level=DEBUG msg=\"connection established\" peer=",
			"level=DEBUG msg=\"connection disconnected\" peer=",
			"level=WARN msg=\"request rejected\" local=",
			"level=WARN msg=\"connection disconnected\" peer=",
			"device=" + device,
		} {
			labtest.Until(t, "the log to have "+want, func() bool { return strings.Contains(r.String(), want) })
		}
	})
}

// TestEdgeOfEachEvent waits for edges of a loop whose connections have several CQs: events of all
// of them come before the loop gets to run, and one more afterwards.
func TestEdgeOfEachEvent(t *testing.T) {
	labtest.RequireBoth(t)
	labtest.Each(t, func(t *testing.T, device string) {
		// Each has a CQ of its own on rxe and siw. dispatchAll, which calls Dispatch at least
		// twice, would leave an event.
		const conns, rounds = 4, 3
		large := rmsg.Options{KeepAlive: -1, Credits: 4096, SendQueue: 4096, Eager: 64}
		server := run(t, large)
		ln := listen(t, server, device)
		got := 0
		large.Callbacks.Message = func(_ *rmsg.Conn, b *rmsg.Buffer) { got++; b.Free() }
		l := labtest.Must(rmsg.NewLoop(large))(t)
		labtest.Close(t, l)
		var peers []*rmsg.Conn
		for range conns {
			c := labtest.Must((&rmsg.Dialer{Loop: l}).Connect(ln.Addr().String()))(t)
			accepted := make(chan *rmsg.Conn, 1)
			go func() { accepted <- labtest.Must(ln.Accept(within(t)))(t) }()
			poll(t, func() bool { return c.State() != rmsg.Connecting }, l)
			peers = append(peers, <-accepted)
		}
		set := labtest.Must(unix.EpollCreate1(unix.EPOLL_CLOEXEC))(t)
		defer unix.Close(set)
		labtest.Check(t, unix.EpollCtl(set, unix.EPOLL_CTL_ADD, l.FD(), &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET}))
		edge := func(wait time.Duration) bool {
			for {
				n, err := unix.EpollWait(set, make([]unix.EpollEvent, 1), int(wait.Milliseconds()))
				if err != unix.EINTR {
					return n > 0
				}
			}
		}
		dispatchAll := func() {
			for {
				if n := labtest.Must(dispatch(l))(t); n == 0 {
					return
				}
			}
		}
		send := func(p *rmsg.Conn) {
			n := p.Stats().MessagesSent
			if err := p.Send(within(t), []byte("x")); err != nil {
				t.Fatal(err)
			}
			labtest.Until(t, "the message to arrive", func() bool { return p.Stats().MessagesSent > n })
		}
		for range rounds {
			dispatchAll()
			for edge(0) {
				dispatchAll()
			}
			for _, p := range peers {
				send(p)
			}
			for want := got + conns; got < want; dispatchAll() {
				if !edge(patience) {
					t.Fatalf("no edge; %d of %d messages were handled", want-got, conns)
				}
			}
			for edge(0) { // of acks
				dispatchAll()
			}
			before := got
			send(peers[0])
			if !edge(10 * time.Second) {
				dispatchAll()
				t.Fatalf("no edge for a message after Dispatch, which then handles %d", got-before)
			}
		}
	})
}
