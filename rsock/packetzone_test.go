package rsock

import (
	"bytes"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/soft"
	"github.com/goverbs/verbs/verbstest"
)

// linkLocal returns a link-local address of this machine, or ends the test.
func linkLocal(t *testing.T) netip.Addr {
	interfaces, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, ifi := range interfaces {
		addrs, _ := ifi.Addrs()
		for _, a := range addrs {
			p, err := netip.ParsePrefix(a.String())
			if err == nil && p.Addr().Is6() && p.Addr().IsLinkLocalUnicast() && ifi.Flags&net.FlagUp != 0 {
				return p.Addr().WithZone(ifi.Name)
			}
		}
	}
	t.Skip("no interface has a link-local address")
	return netip.Addr{}
}

// TestPacketZone answers datagrams of a link-local peer at the address that ReadFrom returns, which
// has the zone that messages between queue pairs do not carry.
func TestPacketZone(t *testing.T) {
	addr := linkLocal(t)
	d, err := soft.New(soft.Options{Host: t.Name(), Network: verbstest.NewNetwork(verbstest.Options{}), Addrs: []netip.Addr{addr}})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	transport := &cm.Transport{Host: d}
	defer transport.Close()
	open := func() *PacketConn {
		c, err := (&ListenConfig{Transport: transport}).ListenPacket(t.Context(), "rdma", netip.AddrPortFrom(addr, 0).String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		c.SetDeadline(time.Now().Add(20 * time.Second))
		return c.(*PacketConn)
	}
	a, b := open(), open()
	to := b.local
	buf := make([]byte, 100)
	knows := func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		p := a.peers[b.local]
		return p != nil && p.qpn != 0
	}
	// The first datagrams of a go by UDP, whose sockets know the zone: until the goroutine that
	// receives b's answer has run, which the others can outrun on a busy machine.
	for i, byRDMA := 0, 0; byRDMA < 2; i++ {
		if knows() {
			byRDMA++
		}
		for _, end := range []struct{ from, to *PacketConn }{{a, b}, {b, a}} {
			if _, err := end.from.WriteToAddrPort([]byte{byte(i)}, to); err != nil {
				t.Fatal(err)
			}
			n, from, err := end.to.ReadFromAddrPort(buf)
			if err != nil || !bytes.Equal(buf[:n], []byte{byte(i)}) || from != end.from.local {
				t.Fatalf("datagram %d: %x from %v, want %v: %v", i, buf[:n], from, end.from.local, err)
			}
			to = from
		}
	}
}
