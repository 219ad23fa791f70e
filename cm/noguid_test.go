//go:build linux

package cm_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

// TestNoNodeGUID listens on all addresses, and finds the addresses of adapters, when they are the
// only devices: with rdmalab --nic connectx-noguid,connectx-noguid their node GUIDs are zero.
func TestNoNodeGUID(t *testing.T) {
	labtest.RequireAdapter(t)
	for _, d := range []string{labtest.RXE, labtest.SIW} { // they have addresses by which the listener would do
		labtest.Shell(t, "rdma link delete "+d)
	}
	t.Cleanup(func() {
		for _, d := range []string{labtest.RXE, labtest.SIW} {
			labtest.Shell(t, "rdma link add "+d+" type "+d[:3]+" netdev "+labtest.LinkOf(d))
		}
	})
	ctx := labtest.Within(t, 30*time.Second)
	l := labtest.Made(cm.Listen(ctx, ":0"))(t)
	for i := range labtest.Adapters() {
		d := labtest.Must(uverbs.Find(fmt.Sprintf("mlx5_%d", i)))(t)
		want := netip.MustParseAddr(labtest.AddrOf(d.Name))
		addrs := labtest.Must(cm.DeviceAddrs(d))(t)
		if others := slices.DeleteFunc(slices.Clone(addrs), func(a netip.Addr) bool { return a.Is6() }); !slices.Equal(others, []netip.Addr{want}) {
			t.Errorf("the addresses of %s, %v: %v", d.Name, d.GUID, addrs)
		}
		client, server := labtest.DialAccept(t, func() (*cm.Endpoint, error) {
			return cm.Dial(ctx, netip.AddrPortFrom(want, l.Addr().Port()).String())
		}, func() (*cm.Endpoint, error) { return labtest.Must(l.Accept(ctx))(t).Accept(ctx, cm.Options{}) })
		if name := client.PD.Context().Device().Name; name != d.Name {
			t.Errorf("%v is dialed from %s", want, name)
		}
		labtest.Check(t, client.Close(), server.Close())
	}
}
