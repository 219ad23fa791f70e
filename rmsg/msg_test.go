//go:build linux

package rmsg_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rmsg"
)

// patience is how long tests wait for what should happen immediately.
const patience = 60 * time.Second

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// run makes a loop and runs it until the test ends, and checks that it closes without an
// error.
func run(t testing.TB, opt rmsg.Options) *rmsg.Loop {
	t.Helper()
	l := labtest.Must(rmsg.NewLoop(opt))(t)
	var running sync.WaitGroup
	running.Go(func() {
		if err := l.Run(context.Background()); !errors.Is(err, verbs.ErrClosed) {
			t.Errorf("run: %v", err)
		}
	})
	t.Cleanup(func() {
		l.Close()
		running.Wait()
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// dispatch dispatches without waiting.
func dispatch(l *rmsg.Loop) (int, error) {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	n, err := l.Dispatch(ended)
	if errors.Is(err, context.Canceled) {
		err = nil
	}
	return n, err
}

// listen listens on a device.
func listen(t testing.TB, l *rmsg.Loop, device string) *rmsg.Listener {
	t.Helper()
	ln := labtest.Must((&rmsg.ListenConfig{Loop: l}).Listen(t.Context(), labtest.AddrOf(device)+":0"))(t)
	labtest.Close(t, ln)
	return ln
}

// pair runs two loops and connects them.
func pair(t testing.TB, device string, client, server rmsg.Options) (c, s *rmsg.Conn) {
	t.Helper()
	listening := run(t, server)
	return connect(t, device, run(t, client), listening)
}

// connect connects two running loops.
func connect(t testing.TB, device string, client, server *rmsg.Loop) (c, s *rmsg.Conn) {
	t.Helper()
	ln := listen(t, server, device)
	c = labtest.Must((&rmsg.Dialer{Loop: client}).Connect(ln.Addr().String()))(t)
	s = labtest.Must(ln.Accept(within(t)))(t)
	for _, s := range []*rmsg.Conn{c, s} {
		if err := s.Wait(within(t)); err != nil {
			t.Fatal(err)
		}
	}
	return c, s
}

// pattern returns a message of n bytes that depends on seed.
func pattern(n, seed int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8 + seed)
	}
	return b
}

// TestUnread tests that messages that have not been taken outlast the connection, and do not hold
// its device open.
func TestUnread(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		server := run(t, rmsg.Options{})
		c, s := connect(t, device, run(t, rmsg.Options{}), server)
		sizes := []int{100, 100_000, 0, 8192}
		for i, n := range sizes {
			labtest.Check(t, c.Send(within(t), pattern(n, i)))
		}
		labtest.Until(t, "the messages to arrive", func() bool { return c.Stats().Queued == 0 })
		c.Close()
		<-s.Done()
		labtest.Until(t, "the device to be closed", func() bool { return server.Stats().Devices == 0 })
		for i, n := range sizes {
			b := labtest.Must(s.Recv(within(t)))(t)
			if !bytes.Equal(b.Bytes(), pattern(n, i)) {
				t.Errorf("message %d is wrong", i)
			}
			labtest.Check(t, b.Free())
		}
		if _, err := s.Recv(within(t)); !errors.Is(err, s.Err()) {
			t.Errorf("%v, want %v", err, s.Err())
		}
	})
}

// TestSizes sends messages of many sizes in both directions at the same time.
func TestSizes(t *testing.T) {
	labtest.RequireBoth(t)
	labtest.Each(t, func(t *testing.T, device string) {
		c, s := pair(t, device, rmsg.Options{Eager: 4096}, rmsg.Options{Eager: 8192, Credits: 5, SendQueue: 3})
		sizes := labtest.Few(16, []int{0, 1, 24, 40, 4095, 4096, 4097, 5000, 8192, 8193, 100, 0, 65536, 1 << 20, 1<<20 + 1, 7, 3<<20 + 5, 2 << 20, 16 << 20, 1})
		var both sync.WaitGroup
		one := func(from, to *rmsg.Conn, seed int) {
			both.Go(func() {
				for i, n := range sizes {
					if err := from.Send(within(t), pattern(n, i+seed)); err != nil {
						t.Error(err)
						return
					}
				}
			})
			both.Go(func() {
				for i, n := range sizes {
					b, err := to.Recv(within(t))
					if err != nil {
						t.Error(err)
						return
					}
					if !bytes.Equal(b.Bytes(), pattern(n, i+seed)) {
						t.Errorf("message %d, of %d bytes, came as %d others", i, n, len(b.Bytes()))
					}
					b.Free()
				}
			})
		}
		one(c, s, 0)
		one(s, c, 100)
		both.Wait()
		if err := c.Shutdown(within(t)); err != nil {
			t.Error(err)
		}
		if _, err := s.Recv(within(t)); err != io.EOF {
			t.Errorf("after the peer disconnected: %v", err)
		}
		if err := c.Err(); !errors.Is(err, verbs.ErrClosed) {
			t.Errorf("after disconnecting: %v", err)
		}
	})
}

// TestReuse reuses the memory of a message as soon as its send completes: siw must not
// send from it after that.
func TestReuse(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		opt := rmsg.Options{Eager: 16 << 10, SendBuffer: 48 << 10}
		c, s := pair(t, device, opt, opt)
		const n = 1000
		size := func(i int) int { return 2000 + i*997%(14<<10) }
		var sending sync.WaitGroup
		sending.Go(func() {
			for i := range n {
				if err := c.Send(within(t), pattern(size(i), i)); err != nil {
					t.Error(err)
					return
				}
			}
		})
		for i := range n {
			b, err := s.Recv(within(t))
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(b.Bytes(), pattern(size(i), i)) {
				t.Errorf("message %d is another", i)
			}
			b.Free()
		}
		sending.Wait()
	})
}
