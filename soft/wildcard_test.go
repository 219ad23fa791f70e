package soft_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/rsock"
	"github.com/goverbs/verbs/soft"
)

// TestWildcard listens on the wildcards of families of which the device has no address, and has
// one: where nobody could connect, listening fails, and rsock falls back to TCP.
func TestWildcard(t *testing.T) {
	for addr, works := range map[string]map[string]bool{
		"10.9.0.1": {"0.0.0.0:0": true, "[::]:0": true},
		"fd00::1":  {"0.0.0.0:0": false, "[::]:0": true},
	} {
		d := newDevice(t, soft.Options{Addrs: []netip.Addr{netip.MustParseAddr(addr)}})
		transport := &cm.Transport{Host: d}
		defer transport.Close()
		for wildcard, want := range works {
			l, err := (&cm.ListenConfig{Transport: transport}).Listen(t.Context(), wildcard)
			if err == nil {
				l.Close()
			}
			if (err == nil) != want || err != nil && (!errors.Is(err, verbs.ErrNoRDMA) || !strings.Contains(err.Error(), "no device has an IPv4 address")) {
				t.Errorf("a device with %s listens on %s: %v", addr, wildcard, err)
			}
			lc := rsock.ListenConfig{Transport: transport, Fallback: rsock.FallbackMissing}
			rl, err := lc.Listen(t.Context(), "rdma", wildcard)
			if err != nil {
				t.Errorf("rsock: %v", err)
				continue
			}
			if got := rl.(*rsock.Listener).RDMA(); got != want {
				t.Errorf("a device with %s: rsock listens on %s by RDMA: %v", addr, wildcard, got)
			}
			rl.Close()
		}
		has6 := strings.Contains(addr, ":")
		l, err := (&cm.ListenConfig{Transport: transport, IPv6Only: true}).Listen(t.Context(), "[::]:0")
		if err == nil {
			l.Close()
		}
		if (err == nil) != has6 || err != nil && !strings.Contains(err.Error(), "no device has an IPv6 address") {
			t.Errorf("a device with %s listens on [::] of IPv6 only: %v", addr, err)
		}
		if err := d.Close(); err != nil { // before the next: wildcards look at all devices in user space
			t.Error(err)
		}
	}
}
