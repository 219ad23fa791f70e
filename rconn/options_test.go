//go:build linux

package rconn

import (
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
)

// TestListenConfig sets ReuseAddr, and tests that requests beyond the backlog are
// rejected.
func TestListenConfig(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		const backlog, dials = 2, 6
		ctx := testContext(t)
		l := labtest.Made((&ListenConfig{Backlog: backlog, ReuseAddr: true}).Listen(ctx, labtest.AddrOf(device)+":0"))(t)
		results := make(chan error, dials)
		for range dials {
			go func() {
				c, err := Dial(ctx, l.Addr().String())
				if err == nil {
					c.Close()
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
			labtest.Close(t, labtest.Must(r.Accept(ctx, Options{}))(t))
			check(t, <-results)
		}
	})
}

// TestDialer tests that the options of a dial apply to the connection.
func TestDialer(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		ctx := testContext(t)
		l := labtest.Made(Listen(ctx, labtest.AddrOf(device)+":0"))(t)
		accepted := make(chan error, 1)
		go func() {
			r, err := l.Accept(ctx)
			if err == nil {
				var c *Conn
				if c, err = r.Accept(ctx, Options{}); err == nil {
					// The peer's RNRRetryCount applies to this side.
					if attr, _ := c.Endpoint().QP.Query(); device == labtest.RXE && attr.RNRRetry != 2 {
						t.Errorf("the acceptor's QP has %+v", attr)
					}
					err = c.AwaitDisconnect(ctx)
					c.Close()
				}
			}
			accepted <- err
		}()
		local := netip.MustParseAddr(labtest.AddrOf(device))
		c := labtest.Must((&Dialer{
			Options:   Options{Options: cm.Options{ResponderResources: 2, InitiatorDepth: 8, RetryCount: 4, RNRRetryCount: 2}},
			LocalAddr: netip.AddrPortFrom(local, 0), ResolveTimeout: time.Minute, ConnectTimeout: time.Minute, TOS: 0x68,
		}).Dial(ctx, l.Addr().String()))(t)
		if c.LocalAddr().Addr() != local {
			t.Errorf("from %v", c.LocalAddr())
		}
		attr := labtest.Must(c.Endpoint().QP.Query())(t)
		if device == labtest.RXE && (attr.AV.TrafficClass != 0x68 || attr.MaxRDAtomic != 8 || attr.MaxDestRDAtomic != 2 || attr.RetryCount != 4) {
			t.Errorf("the QP has %+v", attr)
		}
		check(t, c.Close())
		check(t, <-accepted)
		_, err := (&Dialer{LocalAddr: netip.MustParseAddrPort("192.0.2.1:0")}).Dial(ctx, l.Addr().String())
		if err == nil {
			t.Error("dialed from an address that is not this machine's")
		}
	})
}

// TestCMOptions checks that each option of package cm exists here as well, except the port space:
// that for datagrams has no connections, and that of native InfiniBand takes no IP addresses.
func TestCMOptions(t *testing.T) {
	for here, there := range map[reflect.Type]reflect.Type{
		reflect.TypeFor[Dialer]():       reflect.TypeFor[cm.Dialer](),
		reflect.TypeFor[ListenConfig](): reflect.TypeFor[cm.ListenConfig](),
	} {
		for i := range there.NumField() {
			name := there.Field(i).Name
			if _, has := here.FieldByName(name); !has && name != "PortSpace" {
				t.Errorf("%v has no %s", here, name)
			}
		}
	}
}
