//go:build linux

package info

import (
	"errors"
	"slices"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
)

// TestDevicesAt finds devices by name, GUID and address.
func TestDevicesAt(t *testing.T) {
	labtest.RequireKernel(t)
	all := labtest.Must(devicesAt(""))(t)
	if len(all) < 2 {
		t.Errorf("all devices: %+v", all)
	}
	for _, want := range all {
		specs := []string{want.Name, want.GUID.String()}
		if slices.Contains(labtest.Addressed(), want.Name) {
			specs = append(specs, labtest.AddrOf(want.Name))
		}
		for _, spec := range specs {
			got, err := devicesAt(spec)
			if err != nil || len(got) != 1 || got[0].Name != want.Name {
				t.Errorf("%q: %+v, %v, not %s", spec, got, err, want.Name)
			}
		}
	}
	if _, err := devicesAt("10.9.0.99"); !errors.Is(err, verbs.ErrNoDevice) {
		t.Error(err)
	}
}
