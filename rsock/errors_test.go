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

func addrOf(s string) cm.Addr { return cm.Addr{AddrPort: netip.MustParseAddrPort(s)} }

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
		wantOp(t, err, "dial", cm.Addr{AddrPort: local}, addrOf("10.9.0.1:1"), fs.ErrNotExist)
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
		wantOp(t, err, "dial", cm.Addr{AddrPort: local}, addr, syscall.ECONNREFUSED)
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
