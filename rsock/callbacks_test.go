//go:build linux

package rsock_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime/debug"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rsock"
)

// eachTransport runs a test with TCP connections and, in the lab, with those of each device.
func eachTransport(t *testing.T, test func(t *testing.T, a, b net.Conn)) {
	bound := func(t *testing.T, a, b net.Conn) {
		for _, c := range []net.Conn{a, b} {
			c.SetDeadline(time.Now().Add(40 * time.Second))
			t.Cleanup(func() { c.Close() })
		}
		test(t, a, b)
	}
	t.Run("tcp", func(t *testing.T) {
		l := labtest.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
		defer l.Close()
		a := labtest.Must(net.Dial("tcp", l.Addr().String()))(t)
		bound(t, a, labtest.Must(l.Accept())(t))
	})
	t.Run("rdma", func(t *testing.T) {
		labtest.Each(t, func(t *testing.T, device string) {
			a, b := connect(t, device, rsock.Options{})
			bound(t, a, b)
		})
	})
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// faultingMemory returns n bytes of memory that fault on access.
func faultingMemory(t *testing.T, n int) []byte {
	f := labtest.Must(os.Create(filepath.Join(t.TempDir(), "file")))(t)
	defer f.Close()
	if err := f.Truncate(int64(n)); err != nil {
		t.Fatal(err)
	}
	mem := labtest.Must(unix.Mmap(int(f.Fd()), 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED))(t)
	t.Cleanup(func() { unix.Munmap(mem) })
	if err := f.Truncate(0); err != nil {
		t.Fatal(err)
	}
	return mem
}

// didPanic calls f, which may panic, and reports whether it panicked.
func didPanic(f func()) (panicked bool) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() { panicked = recover() != nil }()
	f()
	return false
}

// TestPanics tests that a connection stays usable after a panic of the caller's
// reader or writer, or a fault of the caller's memory.
func TestPanics(t *testing.T) {
	for name, call := range map[string]func(t *testing.T, a, b net.Conn){
		"reader of ReadFrom": func(t *testing.T, a, _ net.Conn) {
			if !didPanic(func() { io.Copy(a, readerFunc(func([]byte) (int, error) { panic("reader") })) }) {
				t.Error("no panic")
			}
		},
		"writer of WriteTo": func(t *testing.T, a, b net.Conn) {
			if _, err := b.Write(make([]byte, 1000)); err != nil {
				t.Fatal(err)
			}
			if !didPanic(func() { io.Copy(writerFunc(func([]byte) (int, error) { panic("writer") }), a) }) {
				t.Error("no panic")
			}
		},
		"short Write": func(t *testing.T, a, _ net.Conn) { faultyWrite(t, a, 10) },
		"long Write":  func(t *testing.T, a, _ net.Conn) { faultyWrite(t, a, 100000) },
		"short Read":  func(t *testing.T, a, b net.Conn) { faultyRead(t, a, b, 10) },
		"long Read":   func(t *testing.T, a, b net.Conn) { faultyRead(t, a, b, 20000) },
	} {
		t.Run(name, func(t *testing.T) {
			eachTransport(t, func(t *testing.T, a, b net.Conn) {
				call(t, a, b)
				for _, c := range [][2]net.Conn{{a, b}, {b, a}} {
					if _, err := c[0].Write([]byte("after")); err != nil {
						t.Fatal(err)
					}
					got := make([]byte, 0, 1<<17)
					for !bytes.HasSuffix(got, []byte("after")) {
						n, err := c[1].Read(got[len(got):cap(got)])
						if err != nil {
							t.Fatalf("%v after %d bytes", err, len(got))
						}
						got = got[:len(got)+n]
					}
				}
				for _, c := range []net.Conn{a, b} {
					if err := c.Close(); err != nil {
						t.Error(err)
					}
				}
			})
		})
	}
}

// faultyWrite writes memory that faults: TCP reports EFAULT.
func faultyWrite(t *testing.T, c net.Conn, n int) {
	mem := faultingMemory(t, n)
	if !didPanic(func() {
		if n, err := c.Write(mem); !errors.Is(err, unix.EFAULT) {
			t.Errorf("%d bytes, %v", n, err)
		}
	}) && isRDMA(c) {
		t.Error("no panic")
	}
}

// faultyRead reads n bytes to memory that faults.
func faultyRead(t *testing.T, c, peer net.Conn, n int) {
	mem := faultingMemory(t, n)
	if _, err := peer.Write(make([]byte, n)); err != nil {
		t.Fatal(err)
	}
	if !didPanic(func() {
		if n, err := c.Read(mem); !errors.Is(err, unix.EFAULT) {
			t.Errorf("%d bytes, %v", n, err)
		}
	}) && isRDMA(c) {
		t.Error("no panic")
	}
}

func isRDMA(c net.Conn) bool {
	_, ok := c.(*rsock.Conn)
	return ok
}

// TestCopiesHoldNoLock tests that Read and Write proceed, and end with their
// deadlines and with Close, while the reader of a ReadFrom and the writer of a
// WriteTo block.
func TestCopiesHoldNoLock(t *testing.T) {
	eachTransport(t, func(t *testing.T, a, b net.Conn) {
		reading, writing, release := make(chan bool), make(chan bool), make(chan bool)
		copies := make(chan error, 2)
		go func() {
			_, err := io.Copy(a, readerFunc(func(b []byte) (int, error) { close(reading); <-release; return 1, nil }))
			copies <- err
		}()
		<-reading
		if _, err := b.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		go func() {
			_, err := io.Copy(writerFunc(func(b []byte) (int, error) { close(writing); <-release; return len(b), nil }), a)
			copies <- err
		}()
		<-writing

		if _, err := a.Write([]byte("y")); err != nil {
			t.Errorf("write: %v", err)
		}
		if _, err := io.ReadFull(b, make([]byte, 1)); err != nil {
			t.Errorf("read by the peer: %v", err)
		}
		if _, err := b.Write([]byte("z")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(a, make([]byte, 1)); err != nil {
			t.Errorf("read: %v", err)
		}

		full := make([]byte, 32<<20)
		a.SetDeadline(time.Now().Add(10 * time.Millisecond))
		_, err := a.Write(full)
		want(t, "write past its deadline", err, os.ErrDeadlineExceeded)
		_, err = a.Read(make([]byte, 1))
		want(t, "read past its deadline", err, os.ErrDeadlineExceeded)

		a.SetDeadline(time.Now().Add(40 * time.Second))
		calls := make(chan error, 2)
		go func() { _, err := a.Write(full); calls <- err }()
		go func() { _, err := a.Read(make([]byte, 1)); calls <- err }()
		labtest.UntilBlocked(t, 1, "onn).Write") // of rsock.Conn, or of net's conn
		labtest.UntilBlocked(t, 1, "onn).Read")
		if c, ok := a.(interface{ SetLinger(int) error }); ok {
			c.SetLinger(0) // b does not read
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
		for range 2 {
			want(t, "call after Close", <-calls, net.ErrClosed)
		}
		close(release)
		for range 2 {
			want(t, "copy after Close", <-copies, net.ErrClosed)
		}
	})
}

// reentrant is a handler that calls methods of a connection.
type reentrant struct {
	slog.Handler
	calls func()
}

func (reentrant) Enabled(context.Context, slog.Level) bool { return true }

func (h reentrant) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "connection failed" {
		h.calls()
	}
	return nil
}

// TestLoggerUsesConnection tests that a handler may use the connection that has failed.
func TestLoggerUsesConnection(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		l := labtest.Must(rsock.Listen("rdma", labtest.AddrOf(device)+":0"))(t)
		defer l.Close()
		var a net.Conn
		handled := make(chan bool)
		d := rsock.Dialer{Logger: slog.New(reentrant{slog.DiscardHandler, func() {
			for _, call := range []func([]byte) (int, error){a.Read, a.Write} {
				if _, err := call(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
					t.Error(err)
				}
			}
			close(handled)
		}})}
		a = labtest.Must(d.Dial("rdma", l.Addr().String()))(t)
		b := labtest.Must(l.Accept())(t).(*rsock.Conn)
		b.SetLinger(0)
		b.Close()
		go a.Read(make([]byte, 1))
		select {
		case <-handled:
		case <-time.After(20 * time.Second):
			t.Fatal("the handler waits for the call that logs")
		}
		a.Close()
	})
}
