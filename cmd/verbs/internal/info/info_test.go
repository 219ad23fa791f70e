//go:build linux

package info

import (
	"errors"
	"slices"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rdmadev"
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

// TestPCI shows where a physical and a virtual function are.
func TestPCI(t *testing.T) {
	for want, d := range map[string]rdmadev.Device{
		"": {NUMANode: -1},
		"pci_addr: 0000:3b:00.0, pci_virtfns: 2 of at most 8, numa_node: 1, ": {
			NUMANode: 1, PCI: rdmadev.PCI{Addr: "0000:3b:00.0", VirtFns: []string{"0000:3b:00.1", "0000:3b:00.2"}, MaxVirtFns: 8}},
		"pci_addr: 0000:3b:00.1, pci_physfn: 0000:3b:00.0, of which this is a virtual function, numa_node: -1, ": {
			NUMANode: -1, PCI: rdmadev.PCI{Addr: "0000:3b:00.1", PhysFn: "0000:3b:00.0"}},
	} {
		var f fields
		f.pci(d)
		got := ""
		for _, m := range f {
			got += m.name + ": " + m.text + ", "
		}
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
