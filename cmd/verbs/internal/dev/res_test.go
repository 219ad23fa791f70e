package dev

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/goverbs/verbs/cmd/verbs/internal/cli"
	"github.com/goverbs/verbs/rdmadev"
)

// TestResourceNames lists a resource of a process whose name would clear the screen and fake a row:
// any user can give a process such a name.
func TestResourceNames(t *testing.T) {
	const name = "\x1b[2J\u009b2J\nmlx5_0  1"
	rows := []resource{{"rxe0", rdmadev.Owner{PID: 7, Comm: name}, []any{1}}}
	var text, list bytes.Buffer
	if err := new(Res).list(&text, []string{"PD"}, rows); err != nil {
		t.Fatal(err)
	}
	if want := "DEVICE  PD  PID  OWNER\nrxe0    1   7    \\x1b[2J\\u009b2J\\nmlx5_0  1\n"; text.String() != want {
		t.Errorf("%q, not %q", text.String(), want)
	}
	if err := (&Res{JSON: true}).list(&list, []string{"PD"}, rows); err != nil {
		t.Fatal(err)
	}
	var got []struct{ Comm string }
	if err := json.Unmarshal(list.Bytes(), &got); err != nil || got[0].Comm != name || strings.ReplaceAll(cli.Printable(list.String()), `\n`, "\n") != strings.ReplaceAll(list.String(), `\n`, "\n") {
		t.Errorf("%v, %q", err, list.String())
	}
}

// TestDeviceNames lists a device whose name would do so.
func TestDeviceNames(t *testing.T) {
	var text bytes.Buffer
	if err := new(Devices).print(&text, []rdmadev.Device{{Name: "rxe\x1b[2J\nfake"}}); err != nil {
		t.Fatal(err)
	}
	if lines := strings.Split(text.String(), "\n"); len(lines) != 4 || !strings.HasPrefix(lines[2], `    rxe\x1b[2J\nfake`) {
		t.Errorf("%q", text.String())
	}
}
