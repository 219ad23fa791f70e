//go:build linux

package rmsg

import (
	"context"
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

// TestFailedDevice makes a device's file report EPOLLERR, as a completion channel does
// when the driver has removed the device. The loop ends the connections on it and sleeps
// again.
func TestFailedDevice(t *testing.T) {
	l, err := NewLoop(Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pipe[1])
	unix.Close(pipe[0])
	d := &device{l: l, id: 1, fd: pipe[1], refs: 1}
	if err := l.files.Add(d.fd, d.id); err != nil {
		t.Fatal(err)
	}
	l.devices.list = []*device{d}
	s := newConn(l, "10.9.0.1:1", true)
	s.arena, s.qp = &arena{dev: d}, new(uverbs.QP)
	l.conns[1] = s

	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := l.Run(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	// Each Dispatch counts twice. Start, pipe and context cause a few.
	if n := l.counts.dispatches.Load() / 2; n > 10 {
		t.Errorf("the loop was dispatched %d times and did not sleep", n)
	}
	if !errors.Is(s.err, verbs.ErrDeviceRemoved) || s.ctx.Err() == nil {
		t.Errorf("the connection has ended with %v", s.err)
	}
	if err := s.setup(new(cm.Endpoint)); !errors.Is(err, verbs.ErrDeviceRemoved) {
		t.Errorf("a connection that comes to the device later: %v", err)
	}
	if len(l.devices.list) != 0 {
		t.Error("the loop keeps the device")
	}
}

// TestOtherQP has completions of another queue pair, as after a dial that has failed on the first of two devices. They do
// not end the connection.
func TestOtherQP(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		ctx := labtest.Within(t, 20*time.Second)
		l := labtest.Made((&ListenConfig{}).Listen(ctx, labtest.AddrOf(device)+":0"))(t)
		c, s := labtest.DialAccept(t, func() (*Conn, error) { return Dial(ctx, l.Addr().String()) }, func() (*Conn, error) { return l.Accept(ctx) })
		defer s.Close()
		defer c.Close()
		c.mu.Lock()
		c.complete(reqReceive, 0, &verbs.WC{Status: verbs.WCFlushErr, QPNum: c.qp.Num() + 1})
		flushed := c.flushed
		c.complete(reqReceive, 0, &verbs.WC{Status: verbs.WCFlushErr, QPNum: c.qp.Num()})
		if flushed != nil || c.flushed == nil {
			t.Error("completions of another queue pair count as those of the connection's")
		}
		c.mu.Unlock()
	})
}
