//go:build linux

package uverbs_test

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

// TestFindDevice finds each device by its GUID, interface and addresses.
func TestFindDevice(t *testing.T) {
	labtest.RequireBoth(t)
	labtest.Each(t, func(t *testing.T, device string) {
		want := labtest.Must(uverbs.Find(device))(t)
		if want.Name != device {
			t.Fatalf("found %s", want.Name)
		}
		specs := []string{want.GUID.String()}
		addressed := slices.Contains(labtest.Addressed(), device)
		if addressed {
			specs = append(specs, labtest.AddrOf(device))
		}
		for _, ifi := range labtest.Must(net.Interfaces())(t) {
			var own []string
			for _, a := range labtest.Must(ifi.Addrs())(t) {
				own = append(own, netip.MustParsePrefix(a.String()).Addr().String())
			}
			if addressed && slices.Contains(own, labtest.AddrOf(device)) {
				specs = append(append(specs, ifi.Name), own...)
			}
		}
		if len(specs) < 5 && addressed && !labtest.Soft { // GUID, IPv4, interface, IPv4 and IPv6
			t.Errorf("only %q", specs)
		}
		for _, spec := range specs {
			c, err := uverbs.Open(spec)
			if err != nil {
				t.Errorf("%q: %v", spec, err)
				continue
			}
			if got := c.Device().Name; got != device {
				t.Errorf("%q: %s", spec, got)
			}
			c.Close()
		}
	})
	for _, spec := range []string{"no", "10.9.0.99", "0000:0000:0000:0099"} {
		if _, err := uverbs.Open(spec); !errors.Is(err, verbs.ErrNoDevice) {
			t.Errorf("%q: %v", spec, err)
		}
	}
}
