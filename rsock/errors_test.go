//go:build linux

package rsock_test

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rsock"
)

// wantOp checks an error as programs see it: that it is a net.OpError with the addresses
// source and addr, what it matches, and that its text is one line that has the operation
// and the address once.
func wantOp(t *testing.T, err error, op string, source, addr net.Addr, match ...error) {
	t.Helper()
	t.Log(err)
	e, ok := errors.AsType[*net.OpError](err)
	if !ok || e != err {
		t.Errorf("%T: %v is no net.OpError", err, err)
		return
	}
	text := func(a net.Addr) string {
		if a == nil {
			return "<nil>"
		}
		return a.String()
	}
	if e.Op != op || text(e.Source) != text(source) || text(e.Addr) != text(addr) {
		t.Errorf("%v: %s from %v to %v, want %s from %v to %v", err, e.Op, e.Source, e.Addr, op, source, addr)
	}
	for _, target := range match {
		if !errors.Is(err, target) {
			t.Errorf("%v does not match %v", err, target)
		}
	}
	if s := err.Error(); strings.Contains(s, "\n") || strings.Count(s, op+" ") != 1 || addr != nil && strings.Count(s, addr.String()) != 1 {
		t.Errorf("%q has several lines or repeats itself", s)
	}
}

func addrOf(s string) net.Addr { return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(s)) }

// TestErrors tests errors of lookups, dials and listens that need no device.
func TestErrors(t *testing.T) {
	labtest.RequireKernel(t)
	canceled, cancel := context.WithCancel(ctx)
	cancel()
	_, err := rsock.Dial("udp", "10.9.0.1:1")
	wantOp(t, err, "dial", nil, nil, net.UnknownNetworkError("udp"))
	_, err = rsock.Dial("rdma", "10.9.0.1")
	wantOp(t, err, "dial", nil, nil)
	_, err = rsock.Dial("rdma", ":1")
	wantOp(t, err, "dial", nil, nil)
	_, err = rsock.Dial("rdma6", "10.9.0.1:1")
	wantOp(t, err, "dial", nil, nil)
	_, err = new(rsock.Dialer).DialContext(canceled, "rdma", "10.9.0.1:1")
	wantOp(t, err, "dial", nil, nil, context.Canceled)
	_, err = rsock.Listen("rdma", "10.9.0.1")
	wantOp(t, err, "listen", nil, nil)
	if os.Getenv("VERBS_LAB") == "" {
		local := netip.MustParseAddrPort("10.9.0.2:0")
		_, err = (&rsock.Dialer{LocalAddr: local}).Dial("rdma", "10.9.0.1:1")
		wantOp(t, err, "dial", net.TCPAddrFromAddrPort(local), addrOf("10.9.0.1:1"), fs.ErrNotExist)
		_, err = rsock.Listen("tcp", ":1")
		wantOp(t, err, "listen", nil, addrOf("[::]:1"), fs.ErrNotExist)
		_, err = rsock.Listen("tcp6", ":1")
		wantOp(t, err, "listen", nil, addrOf("[::]:1"), fs.ErrNotExist)
	}
}

// TestErrorsOfDevices tests errors of Dial, Listen, Accept and connections.
func TestErrorsOfDevices(t *testing.T) {
	labtest.RequireBoth(t)
	labtest.Each(t, func(t *testing.T, device string) {
		host := labtest.AddrOf(device)
		l := labtest.Must(rsock.Listen("rdma", host+":0"))(t)
		addr := l.Addr()
		_, err := rsock.Listen("rdma", addr.String())
		wantOp(t, err, "listen", nil, addr, syscall.EADDRINUSE)
		_, err = rsock.Listen("rdma", "10.77.77.77:1")
		wantOp(t, err, "listen", nil, addrOf("10.77.77.77:1"), syscall.EADDRNOTAVAIL)
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		wantOp(t, l.Close(), "close", nil, addr, net.ErrClosed)
		_, err = l.Accept()
		wantOp(t, err, "accept", nil, addr, net.ErrClosed)
		_, err = rsock.Dial("rdma", addr.String())
		wantOp(t, err, "dial", nil, addr, syscall.ECONNREFUSED)
		local := netip.AddrPortFrom(netip.MustParseAddr(host), 0)
		_, err = (&rsock.Dialer{LocalAddr: local}).Dial("rdma", addr.String())
		wantOp(t, err, "dial", net.TCPAddrFromAddrPort(local), addr, syscall.ECONNREFUSED)
		_, err = (&rsock.Dialer{Timeout: 100 * time.Millisecond}).Dial("rdma", "192.0.2.1:1") // no route, or no answer
		wantOp(t, err, "dial", nil, addrOf("192.0.2.1:1"))

		other := labtest.Must(cm.Listen(ctx, host+":0"))(t)
		defer other.Close()
		go func() {
			if req, err := other.Accept(ctx); err == nil {
				if e, err := req.Accept(ctx, cm.Options{}); err == nil {
					<-e.Done()
					e.Close()
				}
			}
		}()
		_, err = rsock.Dial("rdma", other.Addr().String())
		wantOp(t, err, "dial", nil, other.Addr(), rsock.ErrProtocol, errors.ErrUnsupported)

		a, b := connect(t, device, rsock.Options{})
		a.SetDeadline(time.Now())
		_, err = a.Read(make([]byte, 1))
		wantOp(t, err, "read", a.LocalAddr(), a.RemoteAddr(), os.ErrDeadlineExceeded)
		_, err = a.Write(make([]byte, 1))
		wantOp(t, err, "write", a.LocalAddr(), a.RemoteAddr(), os.ErrDeadlineExceeded)
		a.SetLinger(0)
		if err := a.Close(); err != nil {
			t.Error(err)
		}
		_, err = a.Read(make([]byte, 1))
		wantOp(t, err, "read", a.LocalAddr(), a.RemoteAddr(), net.ErrClosed)
		_, err = b.Read(make([]byte, 1))
		wantOp(t, err, "read", b.LocalAddr(), b.RemoteAddr(), syscall.ECONNRESET)
		_, err = b.Write(make([]byte, 1))
		wantOp(t, err, "write", b.LocalAddr(), b.RemoteAddr(), syscall.ECONNRESET)
	})
}

// TestErrorsAsNet compares what programs find in errors with what package net has there.
func TestErrorsAsNet(t *testing.T) {
	labtest.RequireBoth(t)
	labtest.Each(t, func(t *testing.T, device string) {
		l := labtest.Must(rsock.Listen("rdma", labtest.AddrOf(device)+":0"))(t)
		defer l.Close()
		a, b := connect(t, device, rsock.Options{})
		a.SetLinger(0)
		labtest.Check(t, a.Close())
		_, read := b.Read(make([]byte, 1))
		b.CloseWrite() // which fails: the connection is broken
		_, write := b.Write([]byte("x"))
		_, listen := rsock.Listen("rdma", l.Addr().String())
		addr := l.Addr().String()
		labtest.Check(t, l.Close())
		_, dial := rsock.Dial("rdma", addr)
		for _, e := range []struct {
			err   error
			call  string
			errno syscall.Errno
		}{
			{read, "read", syscall.ECONNRESET}, {write, "write", syscall.EPIPE},
			{listen, "bind", syscall.EADDRINUSE}, {dial, "connect", syscall.ECONNREFUSED},
		} {
			s, ok := errors.AsType[*os.SyscallError](e.err)
			if !ok || s.Syscall != e.call || !errors.Is(s, e.errno) {
				t.Errorf("%v: %+v", e.err, s)
			}
		}
		for _, err := range []error{read, write} { // without errors.As, as older programs look
			if s, ok := err.(*net.OpError).Err.(*os.SyscallError); !ok || !strings.Contains(s.Error(), errnoOf(err).Error()) {
				t.Errorf("%v: %T", err, err.(*net.OpError).Err)
			}
		}
		ended, cancel := context.WithDeadline(ctx, time.Unix(1, 0))
		defer cancel()
		_, err := new(rsock.Dialer).DialContext(ended, "rdma", addr)
		if e, ok := err.(interface {
			Timeout() bool
			Temporary() bool
		}); !ok || !e.Timeout() || !e.Temporary() {
			t.Errorf("%v: a timeout is temporary", err)
		}
	})
}

func errnoOf(err error) syscall.Errno {
	errno, _ := errors.AsType[syscall.Errno](err)
	return errno
}

// TestAcceptDeadline ends calls of Accept by deadlines, set before and while they wait, and goes on
// without one.
func TestAcceptDeadline(t *testing.T) {
	labtest.RequireBoth(t)
	l := labtest.Must(rsock.Listen("rdma", labtest.AddrOf(labtest.RoCE)+":0"))(t).(*rsock.Listener)
	defer l.Close()
	accept := func() error {
		c, err := l.Accept()
		if err == nil {
			c.Close()
		}
		return err
	}
	labtest.Check(t, l.SetDeadline(time.Unix(1, 0)))
	wantOp(t, accept(), "accept", nil, l.Addr(), os.ErrDeadlineExceeded)
	labtest.Check(t, l.SetDeadline(time.Time{}))
	accepted := make(chan error)
	go func() { accepted <- accept() }()
	select {
	case err := <-accepted:
		t.Errorf("accept: %v", err)
	case <-time.After(10 * time.Millisecond):
	}
	labtest.Check(t, l.SetDeadline(time.Now()))
	wantOp(t, <-accepted, "accept", nil, l.Addr(), os.ErrDeadlineExceeded)
	labtest.Check(t, l.SetDeadline(time.Time{}))
	go func() { accepted <- accept() }()
	labtest.Check(t, labtest.Must(rsock.Dial("rdma", l.Addr().String()))(t).Close(), <-accepted, l.Close())
	if err := l.SetDeadline(time.Time{}); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}
