//go:build linux

package cm_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
)

func within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// TestShutdown checks that Shutdown waits for accepted connections, at most until its
// context ends.
func TestShutdown(t *testing.T) {
	labtest.RequireBoth(t)
	labtest.Each(t, func(t *testing.T, device string) {
		ctx := within(t, 20*time.Second)
		l := labtest.Must(cm.Listen(ctx, labtest.AddrOf(device)+":0"))(t)
		accepted := make(chan *cm.Endpoint, 1)
		go func() {
			if r, err := l.Accept(ctx); err == nil {
				e, _ := r.Accept(ctx, cm.Options{})
				accepted <- e
			}
			_, err := l.Accept(ctx)
			if !errors.Is(err, net.ErrClosed) {
				t.Errorf("accept after shutdown: %v", err)
			}
		}()
		client := labtest.Must(cm.Dial(ctx, l.Addr().String()))(t)
		server := <-accepted
		labtest.Close(t, server)
		if err := l.Shutdown(within(t, 50*time.Millisecond)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("shut down with a connection up: %v", err)
		}
		if _, err := cm.Dial(within(t, 5*time.Second), l.Addr().String()); !labtest.Rejected(t, device, err) {
			t.Errorf("dial after shutdown: %v", err)
		}
		time.AfterFunc(50*time.Millisecond, func() { client.Close() })
		if err := l.Shutdown(ctx); err != nil {
			t.Error(err)
		}
	})
}

// TestShutdownDuringAccept checks that Shutdown waits for a connection whose Accept is still running,
// and for its end.
func TestShutdownDuringAccept(t *testing.T) {
	labtest.RequireBoth(t)
	labtest.Each(t, func(t *testing.T, device string) {
		ctx := within(t, 20*time.Second)
		l := labtest.Made(cm.Listen(ctx, labtest.AddrOf(device)+":0"))(t)
		inSetup, goOn := make(chan struct{}), make(chan struct{})
		accepted := make(chan *cm.Endpoint, 1)
		go func() {
			e, err := labtest.Must(l.Accept(ctx))(t).Accept(ctx, cm.Options{Setup: func(*cm.Endpoint) error {
				close(inSetup)
				<-goOn
				return nil
			}})
			if err != nil {
				t.Error(err)
			}
			accepted <- e
		}()
		dialed := make(chan *cm.Endpoint, 1)
		go func() { dialed <- labtest.Must(cm.Dial(ctx, l.Addr().String()))(t) }()
		<-inSetup
		if err := l.Shutdown(within(t, 50*time.Millisecond)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("shut down during Accept: %v", err)
		}
		ended := make(chan error, 1)
		go func() { ended <- l.Shutdown(ctx) }()
		close(goOn)
		server, client := <-accepted, <-dialed
		defer server.Close()
		defer client.Close()
		select {
		case err := <-ended:
			t.Fatalf("shut down with a connection up: %v", err)
		case <-time.After(50 * time.Millisecond):
		}
		client.Close()
		labtest.Check(t, <-ended)
	})
}

// TestBacklog checks that requests beyond the backlog are turned away, and that those
// that wait can be accepted.
func TestBacklog(t *testing.T) {
	labtest.RequireBoth(t)
	labtest.Each(t, func(t *testing.T, device string) {
		const backlog, dials = 4, 12
		ctx := within(t, 60*time.Second)
		l := labtest.Made((&cm.ListenConfig{Backlog: backlog}).Listen(ctx, labtest.AddrOf(device)+":0"))(t)
		results := make(chan error, dials)
		for range dials {
			go func() {
				e, err := cm.Dial(ctx, l.Addr().String())
				if err == nil {
					e.Close()
				}
				results <- err
			}()
		}
		for range dials - backlog {
			if err := <-results; !labtest.Rejected(t, device, err) {
				t.Errorf("beyond the backlog: %v", err)
			}
		}
		for range backlog {
			r := labtest.Must(l.Accept(ctx))(t)
			labtest.Close(t, labtest.Must(r.Accept(ctx, cm.Options{}))(t))
			if err := <-results; err != nil {
				t.Errorf("within the backlog: %v", err)
			}
		}
	})
}

// TestBacklogRange listens with backlogs that are none.
func TestBacklogRange(t *testing.T) {
	labtest.Require(t)
	for _, backlog := range []int{-1, math.MinInt32} {
		l, err := (&cm.ListenConfig{Backlog: backlog}).Listen(t.Context(), labtest.Addr+":0")
		if !errors.Is(err, verbs.ErrRange) {
			t.Errorf("backlog %d: %v", backlog, err)
			l.Close()
		}
	}
}

// TestPortInUse listens twice on a port, on the wildcard or on an address of the
// device, and dials from the port.
func TestPortInUse(t *testing.T) {
	labtest.RequireBoth(t)
	labtest.Each(t, func(t *testing.T, device string) {
		ctx := within(t, 20*time.Second)
		own := labtest.AddrOf(device)
		for _, host := range []string{"", own} {
			l := labtest.Must(cm.Listen(ctx, host+":0"))(t)
			port := l.Addr().Port()
			for _, second := range []string{"", own} {
				_, err := cm.Listen(ctx, fmt.Sprintf("%s:%d", second, port))
				if !errors.Is(err, syscall.EADDRINUSE) || strings.Contains(err.Error(), "no interface here has") {
					t.Errorf("listen on %q behind %q: %v", second, host, err)
				}
			}
			d := cm.Dialer{LocalAddr: netip.AddrPortFrom(netip.MustParseAddr(own), port)}
			if _, err := d.Dial(ctx, own+":7"); !errors.Is(err, syscall.EADDRINUSE) {
				t.Errorf("dial from the port of %q: %v", host, err)
			}
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		}
		if _, err := cm.Listen(ctx, "192.0.2.1:7471"); !errors.Is(err, syscall.EADDRNOTAVAIL) || !strings.Contains(err.Error(), "no interface here has") {
			t.Errorf("listen on a foreign address: %v", err)
		}
	})
}

// TestBothFamilies listens on all addresses of both families by one listener.
func TestBothFamilies(t *testing.T) {
	labtest.RequireBoth(t)
	labtest.Each(t, func(t *testing.T, device string) {
		addrs := labtest.AddrsOf(t, device)
		for _, host := range []string{"", "[::]"} {
			ctx := within(t, 30*time.Second)
			l := labtest.Must(cm.Listen(ctx, host+":0"))(t)
			port := l.Addr().Port()
			want := netip.AddrPortFrom(netip.IPv6Unspecified(), port)
			if len(addrs) == 1 { // one device without IPv6 keeps all from listening on [::] (cma_listen_on_all)
				want = netip.AddrPortFrom(netip.IPv4Unspecified(), port)
			}
			if l.Addr().AddrPort != want {
				t.Errorf("%q: listens on %v", host, l.Addr())
			}
			for _, own := range addrs {
				addr := netip.AddrPortFrom(netip.MustParseAddr(own), port)
				dialed, accepted := labtest.DialAccept(t,
					func() (*cm.Endpoint, error) { return cm.Dial(ctx, addr.String()) },
					func() (*cm.Endpoint, error) {
						r, err := l.Accept(ctx)
						if err != nil {
							return nil, err
						}
						if r.LocalAddr().AddrPort != addr {
							t.Errorf("dialed %v, not %v", r.LocalAddr(), addr)
						}
						return r.Accept(ctx, cm.Options{})
					})
				labtest.Check(t, dialed.Close(), accepted.Close())
			}
			if s := l.Stats(); int(s.Requests) != len(addrs) || int(s.Accepted) != len(addrs) {
				t.Errorf("%+v", s)
			}
			labtest.Check(t, l.Close(), l.Close())
			if _, err := l.Accept(ctx); !errors.Is(err, verbs.ErrClosed) {
				t.Errorf("accept after Close: %v", err)
			}
			for _, own := range addrs {
				if _, err := cm.Dial(ctx, net.JoinHostPort(own, fmt.Sprint(port))); !errors.Is(err, syscall.ECONNREFUSED) {
					t.Errorf("dial %s after Close: %v", own, err)
				}
			}
		}
	})
}

// TestLaterAddress listens on wildcards, and dials an address that the device's interface gets
// then.
func TestLaterAddress(t *testing.T) {
	labtest.RequireKernel(t)
	labtest.Each(t, func(t *testing.T, device string) {
		ifi := labtest.LinkOf(device)
		for wildcard, later := range map[string][2]string{
			"0.0.0.0": {"10.9.77.1", "10.9.77.1/24"}, "[::]": {"fd00:9:77::1", "fd00:9:77::1/64 nodad"},
		} {
			if wildcard == "[::]" && len(labtest.AddrsOf(t, device)) == 1 {
				continue
			}
			ctx := within(t, 30*time.Second)
			l := labtest.Must((&cm.ListenConfig{IPv6Only: wildcard == "[::]"}).Listen(ctx, wildcard+":0"))(t)
			defer l.Close()
			labtest.Shell(t, "ip address add "+later[1]+" dev "+ifi)
			t.Cleanup(func() { labtest.Shell(t, "ip address del "+strings.TrimSuffix(later[1], " nodad")+" dev "+ifi) })
			accepted := make(chan struct{})
			go func() {
				defer close(accepted)
				if r, err := l.Accept(ctx); err == nil {
					if e, err := r.Accept(ctx, cm.Options{}); err == nil {
						e.Close()
					}
				}
			}()
			addr := net.JoinHostPort(later[0], fmt.Sprint(l.Addr().Port()))
			c, err := cm.Dial(ctx, addr)
			if err != nil {
				t.Errorf("%s: %v", wildcard, err)
				continue
			}
			<-accepted
			c.Close()
		}
	})
}
