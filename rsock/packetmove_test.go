package rsock

import (
	"net/netip"
	"testing"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/soft"
	"github.com/goverbs/verbs/verbstest"
)

// TestPacketAddressMoves finds the local address at another device than before: the queue pair ends, and another takes
// its place.
func TestPacketAddressMoves(t *testing.T) {
	network := verbstest.NewNetwork(verbstest.Options{})
	addrs := []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("10.9.0.1")}
	var paths []cm.Path
	var host *soft.Device
	for _, a := range addrs {
		d, err := soft.New(soft.Options{Network: network, Host: t.Name(), Addrs: []netip.Addr{a}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Close() })
		host = d
	}
	transport := &cm.Transport{Host: host}
	t.Cleanup(func() { transport.Close() })
	for _, a := range addrs {
		p, err := (&cm.Dialer{Transport: transport}).Lookup(t.Context(), a.String())
		if err != nil {
			t.Fatal(err)
		}
		p.Local = addrs[0]
		paths = append(paths, p)
	}
	pc, err := (&ListenConfig{Transport: transport}).ListenPacket(t.Context(), "rdma", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := pc.(*PacketConn)
	defer c.Close()
	old, err := c.queue(&paths[0])
	if err != nil {
		t.Fatal(err)
	}
	if q, err := c.queue(&paths[1]); q != old || err != errQueueClosed {
		t.Fatalf("queue of the other device: the old one: %v, %v", q == old, err)
	}
	<-old.done
	q, err := c.queue(&paths[1])
	if err != nil {
		t.Fatal(err)
	}
	if got, want := q.dev.Device().Name, paths[1].Device.Name; got != want {
		t.Errorf("queue of %s, not of %s", got, want)
	}
}
