package verbstest_test

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rconn"
	"github.com/goverbs/verbs/rmsg"
	"github.com/goverbs/verbs/rsock"
	"github.com/goverbs/verbs/soft"
	"github.com/goverbs/verbs/verbstest"
)

// resolver returns a resolver for which every name has these IPv4 addresses.
func resolver(t *testing.T, addrs ...string) *net.Resolver {
	pc := labtest.Must(net.ListenPacket("udp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { pc.Close() })
	go func() {
		var b [512]byte
		for {
			n, from, err := pc.ReadFrom(b[:])
			if err != nil {
				return
			}
			end := 12 // of the header; then come the labels of the name, a type and a class
			for b[end] != 0 && end < n {
				end += 1 + int(b[end])
			}
			end += 5
			answer := append([]byte{b[0], b[1], 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0}, b[12:end]...)
			if binary.BigEndian.Uint16(b[end-4:]) == 1 { // A
				answer[7] = byte(len(addrs))
				for _, a := range addrs {
					answer = append(answer, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4) // the name of offset 12
					answer = append(answer, netip.MustParseAddr(a).AsSlice()...)
				}
			}
			pc.WriteTo(answer, from)
		}
	}()
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", pc.LocalAddr().String())
	}}
}

// TestNameOnTwoDevices dials a name whose first address nobody listens at, and whose second one another
// device leads to: the connection carries data.
func TestNameOnTwoDevices(t *testing.T) {
	network := verbstest.NewNetwork(verbstest.Options{})
	device := func(host, addr string) *soft.Device {
		return labtest.Made(soft.New(soft.Options{Network: network, Host: host, Addrs: []netip.Addr{netip.MustParseAddr(addr)}}))(t)
	}
	first := device("client", "10.0.0.1")
	device("client", "10.9.0.1")
	device("other", "10.0.0.2")
	client, server := &cm.Transport{Host: first}, &cm.Transport{Host: device("server", "10.9.0.2")}
	for _, transport := range []*cm.Transport{client, server} {
		labtest.Close(t, transport)
		t.Cleanup(func() { // rsock closes in the background
			labtest.Until(t, "connections to end", func() bool {
				s := transport.Stats()
				return s.IDs+s.Endpoints == 0
			})
		})
	}
	names := resolver(t, "10.0.0.2", "10.9.0.2")
	ctx := labtest.Within(t, 30*time.Second)

	t.Run("rsock", func(t *testing.T) {
		l := labtest.Must((&rsock.ListenConfig{Transport: server}).Listen(ctx, "rdma", "10.9.0.2:1"))(t)
		defer l.Close()
		c := labtest.Must((&rsock.Dialer{Transport: client, Resolver: names}).DialContext(ctx, "rdma", "server.test:1"))(t)
		defer c.Close()
		s := labtest.Must(l.Accept())(t)
		defer s.Close()
		labtest.Must(c.Write([]byte("x")))(t)
		labtest.Must(s.Read(make([]byte, 1)))(t)
	})
	t.Run("rconn", func(t *testing.T) {
		l := labtest.Must((&rconn.ListenConfig{Transport: server}).Listen(ctx, "10.9.0.2:2"))(t)
		defer l.Close()
		accepted := make(chan *rconn.Conn, 1)
		go func() { accepted <- labtest.Must(labtest.Must(l.Accept(ctx))(t).Accept(ctx, rconn.Options{}))(t) }()
		setups := 0
		window := func(c *rconn.Conn) error { // which must not outlive the first address
			setups++
			_, err := c.AllocWindow()
			return err
		}
		c := labtest.Must((&rconn.Dialer{Transport: client, Resolver: names, Options: rconn.Options{Setup: window}}).Dial(ctx, "server.test:2"))(t)
		labtest.Check(t, c.Close(), (<-accepted).Close())
		if setups != 2 {
			t.Errorf("Setup was called %d times", setups)
		}
	})
	t.Run("rmsg", func(t *testing.T) {
		l := labtest.Must((&rmsg.ListenConfig{Options: rmsg.Options{Transport: server}}).Listen(ctx, "10.9.0.2:3"))(t)
		defer l.Close()
		accepted := make(chan *rmsg.Conn, 1)
		go func() { accepted <- labtest.Must(l.Accept(ctx))(t) }()
		c := labtest.Must((&rmsg.Dialer{Resolver: names, Options: rmsg.Options{Transport: client}}).Dial(ctx, "server.test:3"))(t)
		s := <-accepted
		labtest.Check(t, c.Send(ctx, []byte("x")))
		labtest.Must(s.Recv(ctx))(t).Free()
		labtest.Check(t, c.Shutdown(ctx))
		<-s.Done()
	})
	t.Run("rconn, refused", func(t *testing.T) {
		window := func(c *rconn.Conn) error {
			_, err := c.AllocWindow()
			return err
		}
		if _, err := (&rconn.Dialer{Transport: client, Options: rconn.Options{Setup: window}}).Dial(ctx, "10.0.0.2:9"); err == nil {
			t.Error("nobody listens there")
		}
		if n := first.Resources()["mw"]; n != 0 {
			t.Errorf("%d windows are left", n)
		}
	})
}
