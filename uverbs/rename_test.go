//go:build linux

package uverbs_test

import (
	"slices"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
)

// TestRename renames a device that is open: what sysfs knows of it stays.
func TestRename(t *testing.T) {
	labtest.RequireKernel(t)
	for _, device := range []string{labtest.RXE, labtest.SIW} {
		t.Run(device, func(t *testing.T) {
			ctx := labtest.OpenDevice(t, device)
			keys, _ := ctx.PKeys(1)
			index := labtest.Must(ctx.Device().Index())(t)
			on := ctx.Device().Interfaces()
			counters := len(labtest.Must(ctx.Counters(1))(t))
			labtest.Shell(t, "rdma dev set "+device+" name renamed0")
			t.Cleanup(func() { labtest.Shell(t, "rdma dev set renamed0 name "+device) })
			if got := labtest.Must(ctx.PKeys(1))(t); !slices.Equal(got, keys) {
				t.Errorf("P_Keys %x, were %x", got, keys)
			}
			if got := labtest.Must(ctx.Counters(1))(t); len(got) != counters || device == labtest.RXE && counters == 0 {
				t.Errorf("%d counters, were %d", len(got), counters)
			}
			if got := ctx.Device().Interfaces(); !slices.Equal(got, on) || len(on) == 0 {
				t.Errorf("interfaces %v, were %v", got, on)
			}
			if got := labtest.Must(ctx.Device().Index())(t); got != index {
				t.Errorf("index %d, was %d", got, index)
			}
		})
	}
	t.Run("names exchanged", func(t *testing.T) {
		ctx := labtest.OpenDevice(t, labtest.RXE)
		labtest.Shell(t, "rdma dev set "+labtest.RXE+" name renamed0 && rdma dev set "+labtest.SIW+" name "+labtest.RXE)
		t.Cleanup(func() {
			labtest.Shell(t, "rdma dev set "+labtest.RXE+" name "+labtest.SIW+" && rdma dev set renamed0 name "+labtest.RXE)
		})
		if keys, err := ctx.PKeys(1); err != nil || !slices.Contains(keys, 0xffff) {
			t.Errorf("P_Keys %x, %v", keys, err)
		}
		if on := ctx.Device().Interfaces(); !slices.Contains(on, labtest.LinkOf(labtest.RXE)) {
			t.Errorf("interfaces %v", on)
		}
	})
}
