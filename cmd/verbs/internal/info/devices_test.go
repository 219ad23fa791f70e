package info

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"strings"
	"testing"

	"github.com/goverbs/verbs/uverbs"
)

// TestDevicesErrors lists a device that cannot be opened, and no devices: text and JSON
// agree, and the columns of the text contain no errors.
func TestDevicesErrors(t *testing.T) {
	missing := uverbs.Device{Name: "rxe7", Node: t.TempDir() + "/uverbs7", NodeType: "1: CA"}
	for _, test := range []struct {
		name string
		devs []uverbs.Device
		want error
	}{
		{"a device that cannot be opened", []uverbs.Device{missing}, fs.ErrNotExist},
		{"none", nil, nil},
	} {
		var text, list bytes.Buffer
		err := new(Devices).print(&text, test.devs)
		jerr := (&Devices{JSON: true}).print(&list, test.devs)
		if !errors.Is(err, test.want) || !errors.Is(jerr, test.want) {
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
			if fields := strings.Fields(line); fields[0] != got[i].Device || fields[3] != "unknown" || got[i].Error == "" {
				t.Errorf("%s: %q and %+v", test.name, line, got[i])
			}
		}
	}
}
