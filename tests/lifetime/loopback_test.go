package lifetime

import (
	"errors"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
)

// TestLoopback uses loopback addresses, which no device serves, with both devices
// and with siw alone.
func TestLoopback(t *testing.T) {
	labtest.RequireGuest(t, "removes the machine's devices")
	refused(t, "rxe0 on v0 (10.9.0.1")
	labtest.Check(t, netlink.RdmaLinkDel(labtest.RXE))
	defer addDevice(t, labtest.RXE, "rxe", "v0")
	refused(t, "siw0 on d0 (10.9.1.1")
}

// refused uses loopback addresses, which must fail and name a device.
func refused(t *testing.T, device string) {
	for _, host := range []string{"127.0.0.1", "localhost", "[::1]"} {
		_, lookup := cm.Lookup(within(t), host)
		_, dial := cm.Dial(within(t), host+":7471")
		_, listen := cm.Listen(within(t), host+":7471")
		for what, err := range map[string]error{"lookup": lookup, "dial": dial, "listen": listen} {
			if !errors.Is(err, verbs.ErrNoRoute) || !strings.Contains(err.Error(), "use an address of a device; devices: "+device) {
				t.Errorf("%s of %s: %v", what, host, err)
			}
		}
	}
}
