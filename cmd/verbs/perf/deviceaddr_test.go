package perf

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

// TestDeviceAddr finds the address to use for what -d says.
func TestDeviceAddr(t *testing.T) {
	if a, err := deviceAddr(""); a.IsValid() || err != nil {
		t.Errorf("no device: %v, %v", a, err)
	}
	labtest.Each(t, func(t *testing.T, device string) {
		d := labtest.Must(uverbs.Find(device))(t)
		v6 := map[string]string{labtest.RXE: "fd00:9::1", labtest.SIW: "fd00:9:1::1"}[device]
		for spec, want := range map[string]string{
			device: labtest.AddrOf(device), d.GUID.String(): labtest.AddrOf(device),
			labtest.AddrOf(device): labtest.AddrOf(device), v6: v6,
		} {
			if a, err := deviceAddr(spec); err != nil || a != netip.MustParseAddr(want) {
				t.Errorf("%q: %v, %v, not %s", spec, a, err, want)
			}
		}
		if _, err := deviceAddr("no"); !errors.Is(err, verbs.ErrNoDevice) {
			t.Error(err)
		}
	})
}
