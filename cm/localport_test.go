//go:build linux

package cm_test

import (
	"errors"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/soft"
)

// TestLocalPortInUse dials twice from one port, at a loopback address that a device has: the port
// is the cause, and RDMA is not missing.
func TestLocalPortInUse(t *testing.T) {
	addr := netip.MustParseAddr("127.0.0.76")
	d := labtest.Made(soft.New(soft.Options{Host: t.Name(), Addrs: []netip.Addr{addr}, Port: 14796}))(t)
	tr := labtest.Made(&cm.Transport{Host: d}, nil)(t)
	ctx := labtest.Within(t, 20*time.Second)
	l := labtest.Made((&cm.ListenConfig{Transport: tr}).Listen(ctx, addr.String()+":0"))(t)
	dialer := cm.Dialer{Transport: tr, LocalAddr: netip.AddrPortFrom(addr, 45003)}
	dial := func() (*cm.Endpoint, error) { return dialer.Dial(ctx, l.Addr().String()) }
	client, server := labtest.DialAccept(t, dial, func() (*cm.Endpoint, error) { return labtest.Must(l.Accept(ctx))(t).Accept(ctx, cm.Options{}) })
	if _, err := dial(); !errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, verbs.ErrNoRDMA) {
		t.Errorf("from a port in use: %v", err)
	}
	labtest.Check(t, client.Close(), server.Close())
}
