//go:build linux

package cm_test

import (
	"errors"
	"net/netip"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rdmadev"
	"github.com/goverbs/verbs/soft"
	"github.com/goverbs/verbs/verbstest"
)

// TestRefusedDestruction checks that Close reports that an ID cannot be destroyed, and ends the
// connection if it is called again; and that the transport, to which Close has left an ID, destroys
// it when the connection manager no longer refuses.
func TestRefusedDestruction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := verbstest.NewNetwork(verbstest.Options{})
		device := labtest.Made(soft.New(soft.Options{Network: network, Host: "client", Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}))(t)
		client, server := &cm.Transport{Host: device}, verbstest.NewHost(t, network, "10.0.0.2")
		l := labtest.Made((&cm.ListenConfig{Transport: server}).Listen(t.Context(), "10.0.0.2:7471"))(t)
		connect := func() (c, s *cm.Endpoint) {
			return labtest.DialAccept(t, func() (*cm.Endpoint, error) {
				return (&cm.Dialer{Transport: client}).Dial(t.Context(), "10.0.0.2:7471")
			}, func() (*cm.Endpoint, error) {
				return labtest.Must(l.Accept(t.Context()))(t).Accept(t.Context(), cm.Options{})
			})
		}
		other, others := connect() // keeps the client's connection manager open

		c, s := connect()
		restore := c.ID().Refuse()
		if err := c.Close(); !errors.Is(err, syscall.ENOENT) && !errors.Is(err, syscall.EINVAL) {
			t.Errorf("close of an ID that cannot be destroyed: %v", err)
		}
		synctest.Wait()
		if s.Err() != nil {
			t.Errorf("the peer has learned of an end: %v", s.Err())
		}
		restore()
		labtest.Check(t, c.Close())
		<-s.Done()
		labtest.Check(t, s.Close())

		c, s = connect()
		network.SetLinks(verbstest.Link{Loss: 1})
		labtest.Check(t, c.Close())
		ids := func() int { return len(labtest.Must(labtest.Must(rdmadev.Find(device.Name()))(t).CMIDs())(t)) }
		if ids() != 2 || client.Stats().Leaving != 1 {
			t.Errorf("%d IDs after Close; %+v", ids(), client.Stats())
		}
		restore = c.ID().Refuse()
		time.Sleep(75 * time.Second) // it gives the peer up after 70 s
		if ids() != 2 {
			t.Errorf("%d IDs after a destruction that was refused", ids())
		}
		restore()
		time.Sleep(75 * time.Second)
		if ids() != 1 {
			t.Errorf("%d IDs after another one", ids())
		}
		network.SetLinks(verbstest.Link{})
		labtest.Check(t, s.Close(), other.Close(), others.Close(), l.Close(), client.Close())
	})
}
