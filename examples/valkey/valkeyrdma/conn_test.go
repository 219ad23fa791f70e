//go:build linux

package valkeyrdma

import (
	"context"
	"net"
	"testing"

	"golang.org/x/net/nettest"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/rdmatest"
)

// pair connects two Conns: the protocol is the same on both sides.
func pair(d rdmatest.Device) (c1, c2 net.Conn, stop func(), err error) {
	ctx := context.Background()
	l, err := cm.Listen(ctx, d.ListenAddr())
	if err != nil {
		return nil, nil, nil, err
	}
	defer l.Close()
	accepted := newConn()
	done := make(chan error, 1)
	go func() {
		r, err := l.Accept(ctx)
		if err == nil {
			_, err = r.Accept(ctx, accepted.options())
		}
		if err == nil {
			err = accepted.start()
		}
		done <- err
	}()
	if c1, err = DialContext(ctx, "tcp", l.Addr().String()); err != nil {
		return nil, nil, nil, err
	}
	if err := <-done; err != nil {
		return nil, nil, nil, err
	}
	return c1, accepted, func() { c1.Close(); accepted.Close() }, nil
}

func TestConn(t *testing.T) {
	d := rdmatest.Find(t, "rxe")
	rdmatest.CheckLeaks(t)
	nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) { return pair(d) })
}

// TestLarge sends more than the buffers hold, both ways at the same time.
func TestLarge(t *testing.T) {
	a, b, stop, err := pair(rdmatest.Find(t, "rxe"))
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	const size = 5*bufferSize + 12345
	errs := make(chan error)
	for _, c := range []net.Conn{a, b} {
		go func() {
			_, err := c.Write(make([]byte, size))
			errs <- err
		}()
		go func() {
			buf, n := make([]byte, 100_000), 0
			for n < size {
				k, err := c.Read(buf)
				if n += k; err != nil {
					errs <- err
					return
				}
			}
			errs <- nil
		}()
	}
	for range 4 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}
