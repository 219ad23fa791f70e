package lifetime

import (
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rmsg"
	"github.com/goverbs/verbs/uverbs"
)

// TestSameGUID connects where two devices on one network interface have the same
// GUID. The connection manager uses the older one, and the other is listed first.
func TestSameGUID(t *testing.T) {
	labtest.RequireGuest(t, "removes the machine's devices")
	for _, test := range []struct{ own, kind, netdev, used, usedKind string }{
		{labtest.RXE, "rxe", "v0", "siw9", "siw"},
		{labtest.SIW, "siw", "d0", "rxe9", "rxe"},
	} {
		t.Run(test.used, func(t *testing.T) {
			addDevice(t, test.used, test.usedKind, test.netdev)
			t.Cleanup(func() { // after everything else is closed
				if err := netlink.RdmaLinkDel(test.used); err != nil {
					t.Error(err)
				}
			})
			labtest.Check(t, netlink.RdmaLinkDel(test.own))
			addDevice(t, test.own, test.kind, test.netdev)
			own, used := deviceNamed(t, test.own), deviceNamed(t, test.used)
			if own.GUID != used.GUID {
				t.Fatalf("GUIDs %v and %v", own.GUID, used.GUID)
			}
			if p, err := cm.Lookup(within(t), labtest.AddrOf(test.own)); err != nil || p.Device.Name != test.used {
				t.Errorf("looked up %q, %v", p.Device.Name, err)
			}
			if addrs, err := cm.DeviceAddrs(own); err == nil {
				t.Errorf("%s has addresses: %v", own.Name, addrs)
			}

			a, b := endpoints(t, test.own, cm.Options{})
			for _, e := range []*cm.Endpoint{a, b} {
				if got := e.PD.Context().Device().Name; got != test.used {
					t.Errorf("cm uses %s", got)
				}
				labtest.Close(t, e)
			}
			x, y := conns(t, test.own)
			labtest.Close(t, x)
			labtest.Close(t, y)
			c, s := streams(t, test.own)
			go c.Write([]byte("x"))
			if n, err := s.Read(make([]byte, 2)); n != 1 || err != nil {
				t.Errorf("rsock: %d, %v", n, err)
			}
			c.Close()
			s.Close()
			l := newLoop(t, rmsg.Options{})
			defer l.end(t)
			sockets(t, test.own, l)
		})
	}
}

// addDevice creates a device and waits until its GID table has entries.
func addDevice(t *testing.T, name, kind, netdev string) {
	t.Helper()
	labtest.Check(t, netlink.RdmaLinkAdd(name, kind, netdev))
	labtest.Until(t, name, func() bool {
		ctx, err := uverbs.Open(name)
		if err != nil {
			return false
		}
		defer ctx.Close()
		table, _ := ctx.GIDTable()
		return len(table) > 0
	})
}

func deviceNamed(t *testing.T, name string) uverbs.Device {
	t.Helper()
	for _, d := range labtest.Must(uverbs.Devices())(t) {
		if d.Name == name {
			return d
		}
	}
	t.Fatal("no device ", name)
	return uverbs.Device{}
}
