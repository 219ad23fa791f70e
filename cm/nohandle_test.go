//go:build linux

package cm_test

import (
	"errors"
	"net/netip"
	"syscall"
	"testing"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/soft"
	"github.com/goverbs/verbs/verbstest"
)

// TestNoHandle runs a command about an ID that the connection manager does not know yet, while it
// has an ID with the handle 0.
func TestNoHandle(t *testing.T) {
	network := verbstest.NewNetwork(verbstest.Options{})
	device := labtest.Made(soft.New(soft.Options{Network: network, Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}))(t)
	transport := &cm.Transport{Host: device}
	l := labtest.Made((&cm.ListenConfig{Transport: transport}).Listen(t.Context(), "10.0.0.1:7471"))(t)
	id := labtest.Must(transport.AddID())(t)
	if r, err := id.Route(); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("an ID that does not exist has the route %+v, %v", r, err)
	}
	id.Forget()
	labtest.Check(t, l.Close(), transport.Close())
}
