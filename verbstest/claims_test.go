package verbstest_test

import (
	"errors"
	"io"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/rsock"
	"github.com/goverbs/verbs/soft"
	"github.com/goverbs/verbs/verbstest"
)

// mtuNetwork is a network whose ports have an MTU of their own.
type mtuNetwork struct {
	*verbstest.Network
	mtu int
}

type mtuPort struct {
	soft.Port
	mtu int
}

func (n mtuNetwork) Open(addr netip.AddrPort) (soft.Port, error) {
	p, err := n.Network.Open(addr)
	return mtuPort{p, n.mtu}, err
}

func (p mtuPort) MTU() int { return p.mtu }

// Send drops what is too long, as a network does.
func (p mtuPort) Send(pkts []soft.Packet) error {
	return p.Port.Send(slices.DeleteFunc(slices.Clone(pkts), func(k soft.Packet) bool { return len(k.Data) > p.mtu }))
}

// TestSmallerMTU connects a host to one whose interface has a smaller MTU: the path gets that one.
func TestSmallerMTU(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := verbstest.NewNetwork(verbstest.Options{})
		client := verbstest.NewHost(t, network, "10.0.0.1") // 4096
		d, err := soft.New(soft.Options{Network: mtuNetwork{network, 600}, Host: "small", Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.2")}})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		server := &cm.Transport{Host: d}
		defer server.Close()
		l, err := (&rsock.ListenConfig{Transport: server}).Listen(t.Context(), "rdma", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		go func() {
			c, err := l.Accept()
			if err == nil {
				io.Copy(c, c)
				c.Close()
			}
		}()
		c, err := (&rsock.Dialer{Transport: client}).Dial("rdma", addr)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			c.Write(make([]byte, 100_000))
			c.(*rsock.Conn).CloseWrite()
		}()
		if got, err := io.ReadAll(c); err != nil || len(got) != 100_000 {
			t.Errorf("%d bytes came back: %v", len(got), err)
		}
		c.Close()
	})
}

// TestPeerACKTimeout dials and accepts with a peer that asks for an ACK timeout of hours: the
// connection notices within a minute that it is gone.
func TestPeerACKTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := verbstest.NewNetwork(verbstest.Options{})
		client, server := verbstest.NewHost(t, network, "10.0.0.1"), verbstest.NewHost(t, network, "10.0.0.2")
		l, err := (&rsock.ListenConfig{Transport: server}).Listen(t.Context(), "rdma", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		ended := make(chan error, 1)
		begin := time.Now()
		go func() {
			c, err := l.Accept()
			if err != nil {
				ended <- err
				return
			}
			_, err = c.Read(make([]byte, 1))
			ended <- err
			c.Close()
		}()
		// The client has an ACK timeout of 2.4 hours, as the peer's request says, and lets the
		// program's own choice be.
		loop, err := client.NewChannel()
		if err != nil {
			t.Fatal(err)
		}
		defer loop.Close()
		id, err := loop.NewID(cm.PortSpaceTCP)
		if err != nil {
			t.Fatal(err)
		}
		if err := id.SetAckTimeout(31); err != nil {
			t.Fatal(err)
		}
		if err := id.ResolveAddr(netip.AddrPort{}, netip.MustParseAddrPort(addr), time.Second); err != nil {
			t.Fatal(err)
		}
		hello := []byte{1, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1}
		var e *cm.Endpoint
		for e == nil || e.Err() == nil {
			ev, err := loop.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			switch ev.Type {
			case cm.AddrResolved:
				err = ev.ID.ResolveRoute(time.Second)
			case cm.RouteResolved:
				_, err = loop.Connect(ev, cm.Options{PrivateData: hello})
			case cm.Established:
				e = ev.Endpoint
			default:
				t.Fatal(ev.Type, ev.Err())
			}
			if err != nil {
				t.Fatal(err)
			}
			if e != nil {
				break
			}
		}
		defer e.Close()
		if attr, err := e.QP.Query(); err != nil || attr.Timeout != 31 {
			t.Errorf("the program's own ACK timeout: %d, %v", attr.Timeout, err)
		}
		network.Remove(netip.MustParseAddr("10.0.0.1"))
		if err := <-ended; !errors.Is(err, syscall.ETIMEDOUT) && !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("read from a dead peer: %v", err)
		}
		if took := time.Since(begin); took > time.Minute {
			t.Errorf("noticed after %v", took)
		}
	})
}
