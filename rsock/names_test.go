package rsock

import (
	"context"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goverbs/verbs/verbstest"
)

// TestSilentAddress dials a name whose first address does not answer: the second has its share of the time.
func TestSilentAddress(t *testing.T) {
	for _, fallback := range []Fallback{FallbackNone, FallbackAlways} {
		synctest.Test(t, func(t *testing.T) {
			network := verbstest.NewNetwork(verbstest.Options{})
			client, server := verbstest.NewHost(t, network, "10.0.0.1"), verbstest.NewHost(t, network, "10.0.0.2")
			verbstest.NewHost(t, network, "10.0.0.3")
			network.Partition(netip.MustParseAddr("10.0.0.3"))
			l, err := (&ListenConfig{Transport: server}).Listen(t.Context(), "rdma", "10.0.0.2:7471")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()
			d := &Dialer{Transport: client, Fallback: fallback}
			c, err := d.dialRDMA(ctx, []netip.AddrPort{netip.MustParseAddrPort("10.0.0.3:7471"), netip.MustParseAddrPort("10.0.0.2:7471")})
			if err != nil {
				t.Fatalf("fallback %v: %v", fallback, err)
			}
			s, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			c.Close()
			s.Close()
		})
	}
}
