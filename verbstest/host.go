package verbstest

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/soft"
)

// NewHost makes a machine on a network, with one device that has the addresses, and returns what
// programs on it dial and listen with:
//
//	network := verbstest.NewNetwork(verbstest.Options{})
//	client, server := verbstest.NewHost(t, network, "10.0.0.1"), verbstest.NewHost(t, network, "10.0.0.2")
//	l, err := (&rsock.ListenConfig{Transport: server}).Listen(ctx, "rdma", "10.0.0.2:7471")
//	...
//	conn, err := (&rsock.Dialer{Transport: client}).Dial("rdma", "10.0.0.2:7471")
//
// The machine lives until the test ends. The test fails if listeners or connections are still
// open some seconds after that.
func NewHost(t testing.TB, n *Network, addrs ...string) *cm.Transport {
	t.Helper()
	if len(addrs) == 0 {
		t.Fatal("verbstest: a host needs an address")
	}
	o := soft.Options{Network: n, Host: addrs[0]}
	for _, a := range addrs {
		addr, err := netip.ParseAddr(a)
		if err != nil {
			t.Fatal(err)
		}
		o.Addrs = append(o.Addrs, addr)
	}
	d, err := soft.New(o)
	if err != nil {
		t.Fatal(err)
	}
	transport := &cm.Transport{Host: d}
	t.Cleanup(func() {
		// Goroutines that see the end of the test's context need a moment.
		err := transport.Close()
		for end := time.Now().Add(10 * time.Second); errors.Is(err, verbs.ErrInUse) && time.Now().Before(end); err = transport.Close() {
			time.Sleep(time.Millisecond)
		}
		if err := errors.Join(err, d.Close()); err != nil {
			t.Error(err)
		}
	})
	return transport
}
