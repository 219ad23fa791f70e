//go:build linux

package cm_test

import (
	"errors"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

// TestCloseAgain closes an endpoint while the program still has a region in its
// PD: that fails, and succeeds when the region is closed.
func TestCloseAgain(t *testing.T) {
	labtest.RequireBoth(t)
	labtest.Each(t, func(t *testing.T, device string) {
		before := labtest.Inventory(t)
		client, server := labtest.Connect(t.Context(), t, labtest.AddrOf(device)+":0", cm.Options{}, cm.Options{})
		mr := labtest.Must(client.PD.AllocMR(4096, verbs.AccessLocalWrite, uverbs.MROptions{}))(t)
		for range 2 {
			if err := client.Close(); !errors.Is(err, verbs.ErrInUse) {
				t.Errorf("close with a region: %v", err)
			}
		}
		if err := server.Close(); err != nil {
			t.Error(err)
		}
		if err := mr.Close(); err != nil {
			t.Error(err)
		}
		for range 2 {
			if err := client.Close(); err != nil {
				t.Errorf("close without the region: %v", err)
			}
		}
		labtest.CheckLeaks(t, before)
	})
}
