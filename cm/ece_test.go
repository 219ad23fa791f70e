//go:build linux

package cm_test

import (
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
)

// TestExtensions: connections agree to the extensions that both adapters have. Other devices have
// none.
func TestExtensions(t *testing.T) {
	labtest.RequireBoth(t)
	labtest.Each(t, func(t *testing.T, device string) {
		client, server := labtest.Connect(labtest.Within(t, time.Minute), t, labtest.AddrOf(device)+":0", cm.Options{}, cm.Options{})
		defer client.Close()
		defer server.Close()
		want := verbs.ECE{}
		if client.PD.Context().Driver() == "mlx5" {
			want = verbs.ECE{VendorID: 0x15b3, Options: 0x10000005}
		}
		for name, e := range map[string]*cm.Endpoint{"client": client, "server": server} {
			if got := e.QP.ECE(); got != want {
				t.Errorf("the %s has %+v, not %+v", name, got, want)
			}
		}
	})
}
