//go:build linux

package cm_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/verbstest"
)

// TestChannelLeaving closes a channel before the peer of a closed endpoint has answered: the transport
// forgets the ID. A channel that is closed first takes IDs and endpoints with it.
func TestChannelLeaving(t *testing.T) {
	network := verbstest.NewNetwork(verbstest.Options{})
	client, server := verbstest.NewHost(t, network, "10.0.0.1"), verbstest.NewHost(t, network, "10.0.0.2")
	ctx := labtest.Within(t, 20*time.Second)
	l := labtest.Made((&cm.ListenConfig{Transport: server}).Listen(ctx, "10.0.0.2:7471"))(t)
	for _, channelFirst := range []bool{false, true} {
		c := labtest.Must(client.NewChannel())(t)
		id := labtest.Must(c.NewID(cm.PortSpaceTCP))(t)
		labtest.Check(t, id.ResolveAddr(netip.AddrPort{}, netip.MustParseAddrPort("10.0.0.2:7471"), time.Second))
		labtest.Expect(t, id, cm.AddrResolved)
		labtest.Check(t, id.ResolveRoute(time.Second))
		resolved := labtest.Expect(t, id, cm.RouteResolved)
		accepted := make(chan *cm.Endpoint, 1)
		go func() {
			e, _ := labtest.Must(l.Accept(ctx))(t).Accept(ctx, cm.Options{})
			accepted <- e
		}()
		e := labtest.Must(c.Connect(resolved, cm.Options{}))(t)
		labtest.Expect(t, id, cm.Established)
		peer := <-accepted
		if channelFirst {
			labtest.Check(t, c.Close(), e.Close(), id.Close())
		} else {
			network.Partition(netip.MustParseAddr("10.0.0.2"))
			labtest.Check(t, e.Close())
			if n := client.LeavingLen(); n != 1 {
				t.Errorf("%d IDs leave", n)
			}
			labtest.Check(t, c.Close())
			network.Heal()
		}
		if n := client.LeavingLen(); n != 0 {
			t.Errorf("%d IDs of a closed channel leave", n)
		}
		labtest.Check(t, peer.Close())
	}
}
