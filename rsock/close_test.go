//go:build linux

package rsock_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rsock"
)

// connect makes a connection with a deadline, which is closed when the test ends.
func connect(t *testing.T, device string, opt rsock.Options) (dialed, accepted *rsock.Conn) {
	t.Helper()
	a, b, err := pair(device, opt)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []*rsock.Conn{a, b} {
		c.SetDeadline(time.Now().Add(40 * time.Second))
		t.Cleanup(func() { c.Close() })
	}
	return a, b
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{}).Read(b)
	return b
}

// want checks that err is a net.OpError that matches target.
func want(t *testing.T, what string, err, target error) {
	t.Helper()
	var op *net.OpError
	if !errors.Is(err, target) || !errors.As(err, &op) {
		t.Errorf("%s: %v, want %v", what, err, target)
	}
}

// TestClose tests that Close delivers written data, and ends running calls and the peer.
func TestClose(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		t.Run("delivers", func(t *testing.T) {
			for _, size := range []int{1, 1000, 60000} { // all fits in b's first offer
				a, b := connect(t, device, rsock.Options{})
				data := randomBytes(size)
				if _, err := a.Write(data); err != nil {
					t.Fatal(err)
				}
				if err := a.Close(); err != nil {
					t.Error(err)
				}
				got, err := io.ReadAll(b)
				if err != nil || !bytes.Equal(got, data) {
					t.Errorf("%v, %d bytes of %d, or others", err, len(got), size)
				}
				_, err = b.Write([]byte("x"))
				want(t, "write to one that is closed", err, syscall.EPIPE)
				want(t, "second close", a.Close(), net.ErrClosed)
				_, err = a.Read(make([]byte, 1))
				want(t, "read after close", err, net.ErrClosed)
				_, err = a.Write([]byte("x"))
				want(t, "write after close", err, net.ErrClosed)
				want(t, "deadline after close", a.SetDeadline(time.Now()), net.ErrClosed)
				want(t, "CloseWrite after close", a.CloseWrite(), net.ErrClosed)
				want(t, "CloseRead after close", a.CloseRead(), net.ErrClosed)
				want(t, "keepalive after close", a.SetKeepAlive(true), net.ErrClosed)
				want(t, "linger after close", a.SetLinger(1), net.ErrClosed)
				if a.LocalAddr() == nil || a.RemoteAddr().String() != b.LocalAddr().String() {
					t.Error("addresses are gone")
				}
			}
		})
		t.Run("a peer that only writes", func(t *testing.T) {
			a, b := connect(t, device, rsock.Options{})
			if err := a.Close(); err != nil {
				t.Fatal(err)
			}
			// On RoCE the message has arrived when Close returns; on iWARP it may be under way.
			var err error
			labtest.Until(t, "the end", func() bool {
				_, err = b.Write([]byte("x"))
				return err != nil || !labtest.IWARP(t, device)
			})
			want(t, "write to one that is closed", err, syscall.EPIPE)
		})
		t.Run("delivers to a peer that sends credits", func(t *testing.T) {
			data := randomBytes(400000)
			for i := range 20 {
				a, b := connect(t, device, rsock.Options{ReadBuffer: 16384, RecvQueue: 16})
				if i%2 == 1 {
					a, b = b, a
				}
				go func() {
					a.Write(data)
					if err := a.Close(); err != nil {
						t.Error(err)
					}
				}()
				if got, err := io.ReadAll(b); err != nil || !bytes.Equal(got, data) {
					t.Fatalf("%v, %d bytes of %d, or others", err, len(got), len(data))
				}
			}
		})
		t.Run("while all wait", func(t *testing.T) {
			for range 10 {
				a, b := connect(t, device, rsock.Options{})
				var wg sync.WaitGroup
				wg.Go(func() { _, err := a.Read(make([]byte, 1)); want(t, "read", err, net.ErrClosed) })
				wg.Go(func() { _, err := a.Write(make([]byte, 1<<20)); want(t, "write", err, net.ErrClosed) })
				wg.Go(func() { _, err := io.Copy(io.Discard, io.MultiReader(a)); want(t, "copy", err, net.ErrClosed) })
				time.Sleep(time.Duration(rand.IntN(10)) * time.Millisecond)
				var closed [3]error
				for i := range closed {
					wg.Go(func() { closed[i] = a.Close() })
				}
				wg.Wait()
				ok := 0
				for _, err := range closed {
					if err == nil {
						ok++
					} else {
						want(t, "close", err, net.ErrClosed)
					}
				}
				if ok != 1 {
					t.Errorf("%d of 3 closed it: %v", ok, closed)
				}
				if n, err := io.Copy(io.Discard, b); err != nil {
					t.Errorf("the peer read %d bytes, %v", n, err)
				}
			}
		})
		t.Run("both at once", func(t *testing.T) {
			for range 10 {
				a, b := connect(t, device, rsock.Options{})
				data := randomBytes(50000)
				if _, err := a.Write(data); err != nil {
					t.Fatal(err)
				}
				var wg sync.WaitGroup
				wg.Go(func() { // b may have closed with data that it has not read
					if err := a.Close(); err != nil && !errors.Is(err, syscall.ECONNRESET) {
						t.Error(err)
					}
				})
				wg.Go(func() {
					if err := b.Close(); err != nil {
						t.Error(err)
					}
				})
				wg.Wait()
			}
		})
		t.Run("halves", func(t *testing.T) {
			a, b := connect(t, device, rsock.Options{})
			go func() {
				a.Write([]byte("question"))
				a.CloseWrite()
			}()
			if got, err := io.ReadAll(b); string(got) != "question" || err != nil {
				t.Fatalf("%q, %v", got, err)
			}
			if err := a.CloseWrite(); err != nil {
				t.Errorf("second CloseWrite: %v", err)
			}
			answer := randomBytes(300000)
			go func() {
				b.Write(answer)
				b.CloseWrite()
			}()
			if got, err := io.ReadAll(a); !bytes.Equal(got, answer) || err != nil {
				t.Errorf("%d bytes, %v", len(got), err)
			}
			want(t, "CloseWrite of both", a.CloseWrite(), syscall.ENOTCONN)
			want(t, "CloseRead of both", a.CloseRead(), syscall.ENOTCONN)
			_, err := a.Write([]byte("x"))
			want(t, "write after CloseWrite", err, syscall.EPIPE)
			for _, c := range []*rsock.Conn{a, b} {
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			}
		})
		t.Run("CloseRead", func(t *testing.T) {
			a, b := connect(t, device, rsock.Options{})
			done := make(chan error, 1)
			go func() { _, err := a.Read(make([]byte, 1)); done <- err }()
			labtest.Until(t, "the Read to sleep", func() bool { return a.Stats().Sleeps > 0 })
			if err := a.CloseRead(); err != nil {
				t.Fatal(err)
			}
			if err := <-done; err != io.EOF {
				t.Error(err)
			}
			// Data is dropped, so b is not blocked while a call of a runs:
			// here a waits for b.
			go func() { a.Write(make([]byte, 1<<20)) }()
			if n, err := b.Write(make([]byte, 1<<20)); err != nil {
				t.Errorf("wrote %d, %v", n, err)
			}
			if _, err := io.ReadFull(b, make([]byte, 1<<20)); err != nil {
				t.Error(err)
			}
			if err := a.CloseWrite(); err != nil { // a neither reads nor writes now
				t.Error(err)
			}
			if _, err := b.Read(make([]byte, 1)); err != io.EOF {
				t.Error(err)
			}
			_, err := b.Write([]byte("x"))
			want(t, "write to one that does not read", err, syscall.EPIPE)
		})
		t.Run("CloseRead of one that writes", func(t *testing.T) { // and finds room each time
			a, b := connect(t, device, rsock.Options{})
			labtest.Check(t, a.CloseRead())
			b.SetDeadline(time.Now().Add(20 * time.Second))
			go io.Copy(io.Discard, b)
			done := make(chan error, 1)
			go func() {
				_, err := b.Write(make([]byte, 1<<20))
				done <- err
			}()
			for {
				select {
				case err := <-done:
					if err != nil {
						t.Error(err)
					}
					return
				case <-time.After(time.Millisecond):
					labtest.Must(a.Write([]byte{0}))(t)
				}
			}
		})
		t.Run("in the background", func(t *testing.T) {
			a, b := connect(t, device, rsock.Options{})
			a.SetLinger(-1)
			data := randomBytes(60000) // fits in b's first offer
			if _, err := a.Write(data); err != nil {
				t.Fatal(err)
			}
			if err := a.Close(); err != nil {
				t.Error(err)
			}
			closed := make(chan error, 3)
			for _, call := range []func() error{a.Close, a.CloseWrite, a.CloseRead} { // wait for nothing
				go func() { closed <- call() }()
			}
			for range cap(closed) {
				want(t, "call after close", <-closed, net.ErrClosed)
			}
			if got, err := io.ReadAll(b); err != nil || !bytes.Equal(got, data) {
				t.Errorf("%v, %d bytes of %d, or others", err, len(got), len(data))
			}
		})
		for i := range 2 {
			t.Run("unread data", func(t *testing.T) {
				a, b := connect(t, device, rsock.Options{})
				data := randomBytes(100000)
				for _, c := range []*rsock.Conn{b, a} {
					if _, err := c.Write(data); err != nil {
						t.Fatal(err)
					}
				}
				// a has b's data, or some of it, before it closes: as TCP, b reads what a has
				// written, and then ECONNRESET.
				if i == 1 {
					labtest.Must(io.ReadFull(a, make([]byte, 10)))(t)
				} else {
					labtest.Until(t, "data to arrive", func() bool { return a.Stats().Unread > 0 })
				}
				if err := a.Close(); err != nil {
					t.Error(err)
				}
				got, err := io.ReadAll(b)
				want(t, "read", err, syscall.ECONNRESET)
				if !bytes.Equal(got, data) {
					t.Errorf("%d bytes of %d, or others", len(got), len(data))
				}
				b.Close()
			})
		}
		t.Run("linger 0", func(t *testing.T) {
			a, b := connect(t, device, rsock.Options{})
			a.SetLinger(0)
			if err := a.Close(); err != nil {
				t.Error(err)
			}
			_, err := b.Read(make([]byte, 1))
			want(t, "read", err, syscall.ECONNRESET)
			if err := b.Close(); err != nil {
				t.Error(err)
			}
		})
	})
}

// TestCopies tests that ReadFrom and WriteTo copy everything, end with their source, and
// return the errors of their reader and writer.
func TestCopies(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		data := randomBytes(1 << 20)
		for name, opt := range map[string]rsock.Options{
			"":         {},
			", small":  {ReadBuffer: 4096, WriteBuffer: 4096, SendQueue: 16, RecvQueue: 16, SpinTime: -1, Inline: -1},
			", uneven": {ReadBuffer: 12345, WriteBuffer: 54321, SendQueue: 99, RecvQueue: 77},
		} {
			t.Run("through"+name, func(t *testing.T) {
				a, b := connect(t, device, opt)
				go func() {
					// A reader without WriteTo, which returns pieces.
					n, err := a.ReadFrom(iotest.DataErrReader(iotest.HalfReader(bytes.NewReader(data))))
					if n != int64(len(data)) || err != nil {
						t.Errorf("ReadFrom %d, %v", n, err)
					}
					a.CloseWrite()
				}()
				var got bytes.Buffer
				if n, err := b.WriteTo(&got); n != int64(len(data)) || err != nil {
					t.Errorf("WriteTo %d, %v", n, err)
				}
				if !bytes.Equal(got.Bytes(), data) {
					t.Error("the data is another")
				}
			})
		}
		t.Run("errors", func(t *testing.T) {
			a, b := connect(t, device, rsock.Options{})
			broken := errors.New("broken")
			n, err := a.ReadFrom(io.MultiReader(bytes.NewReader(data[:10]), iotest.ErrReader(broken)))
			wantOp(t, err, "readfrom", a.LocalAddr(), a.RemoteAddr(), broken)
			if n != 10 {
				t.Errorf("ReadFrom %d", n)
			}
			r, w := io.Pipe()
			r.CloseWithError(broken)
			n, err = b.WriteTo(w)
			wantOp(t, err, "writeto", b.LocalAddr(), b.RemoteAddr(), broken)
			if n != 0 {
				t.Errorf("WriteTo %d", n)
			}
			b.SetReadDeadline(time.Now())
			_, err = b.WriteTo(io.Discard)
			want(t, "WriteTo", err, os.ErrDeadlineExceeded)
			b.SetWriteDeadline(time.Now().Add(10 * time.Millisecond))
			_, err = b.ReadFrom(bytes.NewReader(data))
			want(t, "ReadFrom", err, os.ErrDeadlineExceeded)
			// Close does not wait for a writer.
			in, out := io.Pipe()
			done := make(chan error)
			a.Write(make([]byte, 10))
			b.SetReadDeadline(time.Time{})
			go func() { _, err := b.WriteTo(out); done <- err }()
			in.Read(make([]byte, 1))
			if err := b.Close(); err != nil {
				t.Error(err)
			}
			go io.Copy(io.Discard, in)
			want(t, "WriteTo after Close", <-done, net.ErrClosed)
		})
	})
}

// TestBothWrite tests that two sides that write at the same time do not block each other.
func TestBothWrite(t *testing.T) {
	labtest.RequireBoth(t)
	labtest.Each(t, func(t *testing.T, device string) {
		data := randomBytes(labtest.Rounds(2<<20, 300<<10))
		a, b := connect(t, device, rsock.Options{})
		var wg sync.WaitGroup
		for _, c := range []*rsock.Conn{a, b} {
			wg.Go(func() {
				if _, err := c.Write(data); err != nil {
					t.Error(err)
				}
			})
			wg.Go(func() {
				got := make([]byte, len(data))
				if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, data) {
					t.Errorf("%v, or other data", err)
				}
			})
		}
		wg.Wait()
	})
}

// TestAllocations tests that reading and writing do not allocate.
func TestAllocations(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		// What is written is read afterwards: the default may be smaller.
		a, b := connect(t, device, rsock.Options{ReadBuffer: 256 << 10, WriteBuffer: 256 << 10})
		for _, size := range []int{1, 64, 1000, 60000} {
			in, out := make([]byte, size), make([]byte, size)
			allocs := testing.AllocsPerRun(100, func() {
				if _, err := a.Write(out); err != nil {
					t.Fatal(err)
				}
				for n := 0; n < size; {
					m, err := b.Read(in)
					if err != nil {
						t.Fatal(err)
					}
					n += m
				}
			})
			if allocs != 0 && !labtest.Allocates {
				t.Errorf("%v allocations to write and read %d bytes", allocs, size)
			}
		}
	})
}

// TestListener tests Accept, Close, errors and the backlog of a listener.
func TestListener(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		l := labtest.Must((&rsock.ListenConfig{Backlog: 2}).Listen(ctx, "tcp", labtest.AddrOf(device)+":0"))(t)
		addr := l.Addr().String()
		ended := make(chan error)
		for range 2 {
			go func() { _, err := l.Accept(); ended <- err }()
		}
		labtest.UntilBlocked(t, 2, "(*Listener).Accept")
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		for range 2 {
			want(t, "accept under way", <-ended, net.ErrClosed)
		}
		_, err := l.Accept()
		want(t, "accept after close", err, net.ErrClosed)
		want(t, "second close", l.Close(), net.ErrClosed)
		_, err = rsock.Dial("rdma", addr)
		want(t, "dial a closed listener", err, syscall.ECONNREFUSED)
		_, err = rsock.Dial("udp", addr)
		want(t, "dial udp", err, net.UnknownNetworkError("udp"))
		_, err = rsock.Dial("tcp6", addr)
		if err == nil {
			t.Error("dialed IPv4 as IPv6")
		}
		_, err = rsock.Listen("unix", addr)
		want(t, "listen", err, net.UnknownNetworkError("unix"))
		canceled, cancel := context.WithCancel(ctx)
		cancel()
		_, err = new(rsock.Dialer).DialContext(canceled, "rdma", addr)
		want(t, "canceled dial", err, context.Canceled)
		_, err = (&rsock.Dialer{Timeout: 1}).Dial("rdma", addr)
		want(t, "dial in no time", err, context.DeadlineExceeded)
		var ne net.Error
		if !errors.As(err, &ne) || !ne.Timeout() {
			t.Errorf("%v is no timeout", err)
		}

		// Dials beyond the backlog wait, and connections that are not accepted
		// are reset.
		l = labtest.Must((&rsock.ListenConfig{Backlog: 2}).Listen(ctx, "tcp", labtest.AddrOf(device)+":0"))(t)
		const n = 6
		conns := make(chan net.Conn, n)
		for range n {
			go func() {
				c, err := (&rsock.Dialer{Timeout: 30 * time.Second}).Dial("rdma", l.Addr().String())
				if err != nil {
					t.Error(err)
				}
				conns <- c
			}()
		}
		for range n - 2 {
			c := labtest.Must(l.Accept())(t)
			defer c.Close()
		}
		all := make([]net.Conn, n)
		for i := range all {
			if all[i] = <-conns; all[i] == nil {
				t.FailNow()
			}
			defer all[i].Close()
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		reset := 0
		for _, c := range all {
			c.SetReadDeadline(time.Now().Add(time.Second))
			if _, err := c.Read(make([]byte, 1)); errors.Is(err, syscall.ECONNRESET) {
				reset++
			}
		}
		if reset != 2 {
			t.Errorf("%d connections were broken off, not 2", reset)
		}
	})
}
