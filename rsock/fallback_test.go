//go:build linux

package rsock_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rsock"
)

// exchange sends a word from c to the connection that l accepts, and back.
func exchange(t *testing.T, l net.Listener, c net.Conn) (accepted net.Conn) {
	t.Helper()
	accepted = labtest.Must(l.Accept())(t)
	for _, ends := range [][2]net.Conn{{c, accepted}, {accepted, c}} {
		from, to := ends[0], ends[1]
		from.SetDeadline(time.Now().Add(20 * time.Second))
		to.SetDeadline(time.Now().Add(20 * time.Second))
		if _, err := from.Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 5)
		if _, err := io.ReadFull(to, got); err != nil || string(got) != "hello" {
			t.Fatalf("%q, %v", got, err)
		}
	}
	for _, c := range []net.Conn{c, accepted} {
		t.Cleanup(func() { c.Close() })
	}
	return accepted
}

// isTCP reports whether v is a TCP connection, and checks the type of its address a.
func isTCP(t *testing.T, v any, a net.Addr) bool {
	t.Helper()
	_, tcp := v.(*net.TCPConn)
	_, rdma := v.(*rsock.Conn)
	if _, ok := a.(*net.TCPAddr); tcp == rdma || !ok {
		t.Errorf("%T has address %T %v", v, a, a)
	}
	return tcp
}

// plainLoopback skips a test that needs 127.0.0.1 to be no device's.
func plainLoopback(t *testing.T) {
	if !labtest.Lab && !labtest.Soft {
		t.Skip("VERBS_SOFT is set")
	}
}

// TestFallbackToTCP dials and listens on loopback, which no RDMA device serves. It also
// runs on machines without devices.
func TestFallbackToTCP(t *testing.T) {
	plainLoopback(t)
	for _, mode := range []rsock.Fallback{rsock.FallbackMissing, rsock.FallbackAlways} {
		for _, host := range []string{"127.0.0.1", "localhost"} {
			for _, network := range []string{"rdma", "tcp", "rdma4"} {
				t.Run(fmt.Sprint(mode, "/", host, "/", network), func(t *testing.T) {
					var log labtest.Log
					lc := rsock.ListenConfig{Fallback: mode, Logger: log.Logger()}
					l := labtest.Must(lc.Listen(ctx, network, host+":0"))(t)
					log.Want(t, "level=INFO", `msg="listening on TCP only"`, "err=")
					if l.(*rsock.Listener).RDMA() {
						t.Errorf("listens at %v by RDMA", l.Addr())
					}
					d := rsock.Dialer{Fallback: mode, Logger: log.Logger(), LocalAddr: netip.MustParseAddrPort("127.0.0.1:0"), Timeout: 20 * time.Second}
					_, port, _ := net.SplitHostPort(l.Addr().String())
					c := labtest.Must(d.Dial(network, net.JoinHostPort(host, port)))(t)
					log.Want(t, "level=INFO", `msg="falling back to TCP"`, "err=")
					s := exchange(t, l, c)
					if !isTCP(t, c, c.LocalAddr()) || !isTCP(t, s, s.RemoteAddr()) {
						t.Errorf("%T, %T", c, s)
					}
					if stats := l.(*rsock.Listener).Stats(); stats != (rsock.ListenerStats{AcceptedTCP: 1}) {
						t.Errorf("%+v", stats)
					}
					waiting := make(chan error)
					go func() { _, err := l.Accept(); waiting <- err }()
					labtest.UntilBlocked(t, 1, "(*Listener).Accept")
					if err := l.Close(); err != nil {
						t.Error(err)
					}
					wantOp(t, <-waiting, "accept", nil, l.Addr(), net.ErrClosed)
					wantOp(t, l.Close(), "close", nil, l.Addr(), net.ErrClosed)
					_, err := d.Dial(network, l.Addr().String())
					if !errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, verbs.ErrNoRDMA) {
						t.Errorf("after Close: %v", err)
					}
				})
			}
		}
	}
}

// TestNoFallback tests errors that do not cause a fallback.
func TestNoFallback(t *testing.T) {
	plainLoopback(t)
	_, err := rsock.Dial("rdma", "127.0.0.1:1")
	wantOp(t, err, "dial", nil, addrOf("127.0.0.1:1"), verbs.ErrNoRDMA)
	_, err = rsock.Listen("rdma", "127.0.0.1:1")
	wantOp(t, err, "listen", nil, addrOf("127.0.0.1:1"), verbs.ErrNoRDMA)
	canceled, cancel := context.WithCancel(ctx)
	cancel()
	var log labtest.Log
	d := rsock.Dialer{Fallback: rsock.FallbackAlways, Logger: log.Logger()}
	_, err = d.DialContext(canceled, "rdma", "127.0.0.1:1")
	wantOp(t, err, "dial", nil, nil, context.Canceled)
	_, err = d.Dial("rdma", ":1")
	wantOp(t, err, "dial", nil, nil)
	_, err = d.Dial("udp", "127.0.0.1:1")
	wantOp(t, err, "dial", nil, nil, net.UnknownNetworkError("udp"))
	if text := log.String(); text != "" {
		t.Errorf("fell back: %s", text)
	}
}

// TestOptionRange tests the errors for options that are out of range.
func TestOptionRange(t *testing.T) {
	for _, o := range []rsock.Options{
		{ReadBuffer: 4095}, {ReadBuffer: 512<<20 + 1}, {ReadBuffer: -1}, {WriteBuffer: 1}, {WriteBuffer: -1},
		{SendQueue: 15}, {SendQueue: -1}, {SendQueue: 65535}, {RecvQueue: 15}, {RecvQueue: 65535}, {Inline: 1 << 20},
	} {
		_, err := (&rsock.Dialer{Options: o}).Dial("rdma", "127.0.0.1:1")
		wantOp(t, err, "dial", nil, nil, verbs.ErrRange)
		_, err = (&rsock.ListenConfig{Options: o}).Listen(ctx, "rdma", "127.0.0.1:1")
		wantOp(t, err, "listen", nil, nil, verbs.ErrRange)
	}
	for _, lc := range []rsock.ListenConfig{{Backlog: -1}, {Backlog: 65536}, {Fallback: 3}, {Fallback: -1}} {
		_, err := lc.Listen(ctx, "rdma", "127.0.0.1:1")
		wantOp(t, err, "listen", nil, nil, verbs.ErrRange)
	}
	_, err := (&rsock.Dialer{Fallback: 3}).Dial("rdma", "127.0.0.1:1")
	wantOp(t, err, "dial", nil, nil, verbs.ErrRange)
}

// TestListenBoth listens on RDMA and TCP, on each device's address and on all addresses,
// on a free port and on a fixed one.
func TestListenBoth(t *testing.T) {
	labtest.RequireKernel(t)
	labtest.Each(t, func(t *testing.T, device string) {
		host := labtest.AddrOf(device)
		for _, at := range []string{host, "", "0.0.0.0", "[::]"} {
			t.Run("at "+at, func(t *testing.T) {
				var log labtest.Log
				lc := rsock.ListenConfig{Fallback: rsock.FallbackAlways, Backlog: 1, Logger: log.Logger()}
				l := labtest.Must(lc.Listen(ctx, "rdma", at+":0"))(t)
				_, port, _ := net.SplitHostPort(l.Addr().String())
				if err := l.Close(); err != nil {
					t.Fatal(err)
				}
				l = labtest.Must(lc.Listen(ctx, "rdma", at+":"+port))(t)
				defer l.Close()
				t.Logf("RDMA %v, %v", l.(*rsock.Listener).RDMA(), l.Addr())
				if _, p, _ := net.SplitHostPort(l.Addr().String()); p != port {
					t.Errorf("listens on port %s", p)
				}
				addr := net.JoinHostPort(host, port)

				c := labtest.Must(net.Dial("tcp", addr))(t)
				if s := exchange(t, l, c); !isTCP(t, s, s.LocalAddr()) {
					t.Errorf("%T", s)
				}
				d := rsock.Dialer{Fallback: rsock.FallbackAlways, Logger: log.Logger()}
				c = labtest.Must(d.Dial("rdma", addr))(t)
				s := exchange(t, l, c)
				if isTCP(t, c, c.RemoteAddr()) != (labtest.IWARP(t, device)) || isTCP(t, s, s.LocalAddr()) != (labtest.IWARP(t, device)) {
					t.Errorf("%T, %T", c, s)
				}
				want := rsock.ListenerStats{Accepted: 1, AcceptedTCP: 1, Open: 1}
				if labtest.IWARP(t, device) {
					log.Want(t, "falling back to TCP", "iWARP")
					want = rsock.ListenerStats{AcceptedTCP: 2}
				} else {
					c := labtest.Must(rsock.Dial("rdma", addr))(t)
					exchange(t, l, c)
					want.Accepted, want.Open = 2, 2
				}
				got := l.(*rsock.Listener).Stats()
				if got.Conns = (rsock.ConnStats{}); got != want {
					t.Errorf("%+v, want %+v", got, want)
				}

				_, err := lc.Listen(ctx, "rdma", at+":"+port)
				if !errors.Is(err, syscall.EADDRINUSE) {
					t.Errorf("listened twice: %v", err)
				}
				if err := l.Close(); err != nil {
					t.Error(err)
				}
				_, err = l.Accept()
				wantOp(t, err, "accept", nil, l.Addr(), net.ErrClosed)
				if c, err := net.Dial("tcp", addr); err == nil {
					c.Close()
					t.Error("TCP is still listened on")
				}
			})
		}
		t.Run("a port in use for RDMA", func(t *testing.T) {
			other := labtest.Must(cm.Listen(ctx, host+":0"))(t)
			defer other.Close()
			_, err := (&rsock.ListenConfig{Fallback: rsock.FallbackAlways}).Listen(ctx, "rdma", other.Addr().String())
			if !errors.Is(err, syscall.EADDRINUSE) {
				t.Error(err)
			}
			if !labtest.IWARP(t, device) { // TCP's port is free again
				labtest.Must(net.Listen("tcp", other.Addr().String()))(t).Close()
			}
		})
	})
}

// TestListenAll listens for RDMA at all addresses, and at all of one family.
func TestListenAll(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		four, six, addrs := labtest.AddrOf(device), labtest.Addr6Of(device), labtest.AddrsOf(t, device)
		for _, r := range []struct {
			network, host string
			four, six     bool
		}{
			{"rdma", "", true, true}, {"rdma4", "", true, false}, {"rdma", "0.0.0.0", true, false},
			{"rdma", "[::]", true, true}, {"rdma6", "", false, true}, {"rdma6", "[::]", false, true},
		} {
			t.Run(r.network+" "+r.host, func(t *testing.T) {
				if !r.four && len(addrs) == 1 {
					t.Skip("one device without IPv6 keeps all from listening on [::] (cma_listen_on_all)")
				}
				l := labtest.Must(rsock.Listen(r.network, r.host+":0"))(t)
				defer l.Close()
				_, port, _ := net.SplitHostPort(l.Addr().String())
				for addr, listens := range map[string]bool{four: r.four, six: r.six && len(addrs) > 1} {
					c, err := rsock.Dial("rdma", net.JoinHostPort(addr, port))
					if listens != (err == nil) {
						t.Errorf("dialed %s: %v", addr, err)
					}
					if err == nil {
						exchange(t, l, c)
					}
				}
			})
		}
	})
}

// TestFallbackText parses the results of String, as flags do.
func TestFallbackText(t *testing.T) {
	for _, f := range []rsock.Fallback{rsock.FallbackNone, rsock.FallbackMissing, rsock.FallbackAlways} {
		var got rsock.Fallback
		flags := flag.NewFlagSet("", flag.ContinueOnError)
		flags.TextVar(&got, "fallback", rsock.FallbackMissing, "")
		if err := flags.Parse([]string{"-fallback", f.String()}); err != nil || got != f {
			t.Errorf("%v became %v, %v", f, got, err)
		}
	}
	var f rsock.Fallback
	if err := f.UnmarshalText([]byte("never")); !errors.Is(err, verbs.ErrRange) {
		t.Error(err)
	}
	if _, err := rsock.Fallback(3).MarshalText(); !errors.Is(err, verbs.ErrRange) {
		t.Error(err)
	}
}

// TestFallbackMissing tests that RDMA is preferred, and that a refused dial fails.
func TestFallbackMissing(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		host := labtest.AddrOf(device)
		lc := rsock.ListenConfig{Fallback: rsock.FallbackMissing}
		d := rsock.Dialer{Fallback: rsock.FallbackMissing}
		for _, at := range []string{host, ""} {
			l := labtest.Must(lc.Listen(ctx, "rdma", at+":0"))(t)
			_, port, _ := net.SplitHostPort(l.Addr().String())
			c := labtest.Must(d.Dial("rdma", net.JoinHostPort(host, port)))(t)
			if s := exchange(t, l, c); isTCP(t, c, c.RemoteAddr()) || isTCP(t, s, s.LocalAddr()) {
				t.Errorf("%T, %T", c, s)
			}
			l.Close()
			_, err := d.Dial("rdma", net.JoinHostPort(host, port))
			if !errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, verbs.ErrNoRDMA) {
				t.Errorf("refused: %v", err)
			}
		}
	})
}

// TestSeveralAddresses dials a name whose second address alone has RDMA. It tests that
// the error is the refusal there, and that TCP is not used.
func TestSeveralAddresses(t *testing.T) {
	labtest.RequireKernel(t)
	hosts := labtest.Must(os.ReadFile("/etc/hosts"))(t)
	defer os.WriteFile("/etc/hosts", hosts, 0o644)
	hosts2 := string(hosts) + "\n127.0.0.9 two.example\n" + labtest.Addr + " two.example\n"
	if err := os.WriteFile("/etc/hosts", []byte(hosts2), 0o644); err != nil {
		t.Fatal(err)
	}
	// The resolver reads the file again after 5 s.
	labtest.Until(t, "both addresses", func() bool {
		addrs, _ := net.DefaultResolver.LookupHost(ctx, "two.example")
		return len(addrs) == 2
	})
	var log labtest.Log
	d := rsock.Dialer{Fallback: rsock.FallbackMissing, Logger: log.Logger()}
	_, err := d.Dial("rdma", "two.example:7")
	wantOp(t, err, "dial", nil, addrOf(labtest.Addr+":7"), syscall.ECONNREFUSED)
	if errors.Is(err, verbs.ErrNoRDMA) || log.Has("falling back") {
		t.Errorf("%v; %v", err, &log)
	}
}

// TestFallbackAlways dials servers that only TCP reaches: RDMA is refused, not answered,
// or would be iWARP.
func TestFallbackAlways(t *testing.T) {
	labtest.RequireKernel(t)
	labtest.Each(t, func(t *testing.T, device string) {
		l := labtest.Must(net.Listen("tcp", labtest.AddrOf(device)+":0"))(t)
		defer l.Close()
		local := netip.AddrPortFrom(netip.MustParseAddr(labtest.AddrOf(device)), 0)
		d := rsock.Dialer{Fallback: rsock.FallbackAlways, LocalAddr: local}
		c := labtest.Must(d.Dial("rdma", l.Addr().String()))(t)
		exchange(t, l, c)
		if !isTCP(t, c, c.RemoteAddr()) || c.LocalAddr().(*net.TCPAddr).AddrPort().Addr() != local.Addr() {
			t.Errorf("%T from %v", c, c.LocalAddr())
		}
		if labtest.IWARP(t, device) {
			return
		}
		silent := labtest.Must(cm.Listen(ctx, l.Addr().String()))(t)
		defer silent.Close()
		d.FallbackDelay = 200 * time.Millisecond
		start := time.Now()
		exchange(t, l, labtest.Must(d.Dial("rdma", l.Addr().String()))(t))
		if took := time.Since(start); took < d.FallbackDelay {
			t.Errorf("TCP after %v", took)
		}
		d.FallbackDelay, d.Timeout = 0, 2*time.Second // RDMA gets half of it
		exchange(t, l, labtest.Must(d.Dial("rdma", l.Addr().String()))(t))
		d.FallbackDelay, d.Timeout = -1, 300*time.Millisecond
		_, err := d.Dial("rdma", l.Addr().String())
		wantOp(t, err, "dial", net.TCPAddrFromAddrPort(local), l.Addr(), context.DeadlineExceeded)
	})
}

// TestFallbackReason dials by TCP where nobody listens: the error is TCP's, and says why TCP was
// tried.
func TestFallbackReason(t *testing.T) {
	l := labtest.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	addr := l.Addr().String()
	labtest.Check(t, l.Close())
	_, err := (&rsock.Dialer{Fallback: rsock.FallbackMissing}).Dial("rdma", addr)
	_, plain := net.Dial("tcp", addr)
	var op *net.OpError
	var sys *os.SyscallError
	if !errors.As(err, &op) || op.Net != "tcp" || !errors.As(err, &sys) || !errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, verbs.ErrNoRDMA) {
		t.Errorf("%v is no error of TCP", err)
	}
	if !strings.Contains(err.Error(), plain.Error()) || !strings.Contains(err.Error(), "TCP was tried because RDMA failed: ") || strings.Contains(err.Error(), "\n") {
		t.Errorf("%v; of TCP alone: %v", err, plain)
	}
	if op.Timeout() {
		t.Errorf("%v is no timeout", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
	defer cancel()
	<-ctx.Done()
	_, err = (&rsock.Dialer{Fallback: rsock.FallbackMissing}).DialContext(ctx, "rdma", addr)
	if errors.As(err, &op); !op.Timeout() {
		t.Errorf("%v is a timeout", err)
	}
}
