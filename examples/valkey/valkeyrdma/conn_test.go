//go:build linux

package valkeyrdma

import (
	"context"
	"errors"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/nettest"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
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

// TestDeadlineOfFullQueue sets deadlines of a write that waits for its send queue.
func TestDeadlineOfFullQueue(t *testing.T) {
	c := dialDeaf(t)
	for _, deadline := range []time.Duration{-1, 10 * time.Millisecond} {
		if err := c.SetWriteDeadline(time.Time{}); err != nil {
			t.Fatal(err)
		}
		written := make(chan error, 1)
		go func() {
			for {
				if _, err := c.Write([]byte{1}); err != nil {
					written <- err
					return
				}
			}
		}()
		labtest.UntilBlocked(t, 1, "valkeyrdma.(*Conn).awaitRoom")
		if err := c.SetWriteDeadline(time.Now().Add(deadline)); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-written:
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatal(err)
			}
		case <-time.After(10 * time.Second):
			t.Fatal("the write waits on")
		}
	}
}

// dialDeaf returns a connection to a peer that has no receives.
func dialDeaf(t *testing.T) *Conn {
	c := newConn()
	_, peer := rdmatest.Connect(t, rdmatest.Find(t, "rxe"), c.options(), cm.Options{})
	mr, err := peer.AllocMR(bufferSize, verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(c.handleMemory(mr.Addr(), bufferSize, mr.RKey()), c.start()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// TestRoomByOthers has another send take the completion for which a Write waits.
func TestRoomByOthers(t *testing.T) {
	c := dialDeaf(t)
	var written atomic.Int64
	go func() {
		for {
			if _, err := c.Write([]byte{1}); err != nil {
				return
			}
			written.Add(1)
		}
	}()
	labtest.UntilBlocked(t, 1, "valkeyrdma.(*Conn).awaitRoom")
	before := written.Load()
	c.mu.Lock()
	err := c.reclaim([]verbs.WC{{ID: signalled}})
	c.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	labtest.Until(t, "the Write to find room", func() bool { return written.Load() > before })
}
