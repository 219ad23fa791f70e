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
