//go:build linux

package cli

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

// TestDeviceAddr finds the address to use for a device.
func TestDeviceAddr(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		d := labtest.Must(uverbs.Find(device))(t)
		v6 := labtest.Addr6Of(device)
		for spec, want := range map[string]string{
			device: labtest.AddrOf(device), d.GUID.String(): labtest.AddrOf(device),
			labtest.AddrOf(device): labtest.AddrOf(device), v6: v6,
		} {
			if a, err := DeviceAddr(spec); err != nil || a != netip.MustParseAddr(want) {
				t.Errorf("%q: %v, %v, not %s", spec, a, err, want)
			}
		}
		if _, err := DeviceAddr("no"); !errors.Is(err, verbs.ErrNoDevice) {
			t.Error(err)
		}
	})
	first, devices := labtest.Must(DeviceAddr(""))(t), labtest.Must(uverbs.Devices())(t)
	if d := labtest.Must(uverbs.Find(first.String()))(t); d.Name != devices[0].Name {
		t.Errorf("the first device's address, %v, leads to %s", first, d.Name)
	}
}
