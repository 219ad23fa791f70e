//go:build linux

package cm_test

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

// TestRemovedDevice removes the device of an ID. The ID says so, and the addresses of other devices
// can be found, which asks for the devices of all addresses, also while some are removed.
func TestRemovedDevice(t *testing.T) {
	labtest.RequireKernel(t)
	labtest.Shell(t, `ip link add going type dummy
		ip addr add 10.9.8.1/24 dev going
		ip link set going up`)
	t.Cleanup(func() { labtest.Shell(t, "ip link delete going") })
	other := labtest.Must(uverbs.Find(labtest.RXE))(t)
	ctx, stop := context.WithCancel(t.Context())
	found := make(chan error, 1)
	go func() {
		var err error
		for ctx.Err() == nil && err == nil {
			_, err = cm.DeviceAddrs(other)
		}
		found <- err
	}()
	for _, kind := range []string{"rxe", "siw"} {
		t.Run(kind, func(t *testing.T) {
			for range labtest.Rounds(5, 1) {
				labtest.Shell(t, "rdma link add going type "+kind+" netdev going")
				ch := labtest.Made(new(cm.Transport).NewChannel())(t)
				id := labtest.Made(ch.NewID(cm.PortSpaceTCP))(t)
				labtest.Check(t, id.Bind(netip.MustParseAddrPort("10.9.8.1:0")))
				labtest.Shell(t, "rdma link delete going")
				e := labtest.Must(ch.Next(labtest.Within(t, 10*time.Second)))(t)
				if e.Type != cm.DeviceRemoval || !errors.Is(e.Err(), verbs.ErrDeviceRemoved) {
					t.Fatalf("event %v: %v", e.Type, e.Err())
				}
				if r, err := id.Route(); !errors.Is(err, verbs.ErrDeviceRemoved) {
					t.Errorf("route %+v, %v", r, err)
				}
				labtest.Check(t, id.Close(), ch.Close())
			}
		})
	}
	stop()
	labtest.Check(t, <-found)
}
