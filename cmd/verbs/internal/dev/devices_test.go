package dev

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/goverbs/verbs/rdmadev"
)

// TestDevicesErrors lists a device that cannot be read completely, and no devices: text and
// JSON agree, and the columns of the text contain no errors.
func TestDevicesErrors(t *testing.T) {
	partial := rdmadev.Device{Name: "mlx5_7", Errs: []error{errors.New("one"), errors.New("two")}}
	for _, test := range []struct {
		name string
		devs []rdmadev.Device
	}{
		{"a device that cannot be read as a whole", []rdmadev.Device{partial}},
		{"none", nil},
	} {
		var text, list bytes.Buffer
		err := new(Devices).print(&text, test.devs)
		jerr := (&Devices{JSON: true}).print(&list, test.devs)
		if err != nil || jerr != nil {
			t.Errorf("%s: %v, with --json %v", test.name, err, jerr)
		}
		var got []struct{ Device, Error string }
		if err := json.Unmarshal(list.Bytes(), &got); err != nil || len(got) != len(test.devs) {
			t.Errorf("%s: %q, %v", test.name, list.String(), err)
		}
		lines := strings.Split(strings.TrimSuffix(text.String(), "\n"), "\n")[2:]
		if len(lines) != len(test.devs) {
			t.Errorf("%s: %q", test.name, text.String())
		}
		for i, line := range lines {
			if fields := strings.Fields(line); fields[0] != got[i].Device || fields[2] != "-" || fields[3] != "-" || got[i].Error != "one; two" {
				t.Errorf("%s: %q and %+v", test.name, line, got[i])
			}
		}
	}
}

// TestDevicePlace checks that --json has the firmware and the place of a device in the machine, by
// the names of verbs info, and nothing of a software device.
func TestDevicePlace(t *testing.T) {
	for want, d := range map[string]rdmadev.Device{
		`"fw_ver":"22.1","pci_addr":"0000:3b:00.0","numa_node":0`: {Name: "mlx5_7", Firmware: "22.1", PCI: rdmadev.PCI{Addr: "0000:3b:00.0"}},
		`{"device":"rxe7","node_guid":"0000000000000000"}`:        {Name: "rxe7", NUMANode: -1},
	} {
		var list, line bytes.Buffer
		if err := (&Devices{JSON: true}).print(&list, []rdmadev.Device{d}); err != nil {
			t.Fatal(err)
		}
		if err := json.Compact(&line, list.Bytes()); err != nil || !strings.Contains(line.String(), want) {
			t.Errorf("%s, %v; want %s", &line, err, want)
		}
	}
}
