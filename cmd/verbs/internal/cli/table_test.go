//go:build linux

package cli

import (
	"bytes"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
)

// TestWidth asks terminals, COLUMNS, and what is no terminal.
func TestWidth(t *testing.T) {
	_, terminal := labtest.Terminal(t, 61)
	for env, want := range map[string]int{"": 61, "70": 70, "0": 61, "-1": 61, "wide": 61} {
		t.Setenv("COLUMNS", env)
		if n := Width(terminal); n != want {
			t.Errorf("COLUMNS=%q: %d, not %d", env, n, want)
		}
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		if n, m := Width(w), Width(io.Discard); n != 0 || m != 0 {
			t.Errorf("a pipe has %d columns, and what is no file %d", n, m)
		}
		r.Close()
		w.Close()
	}
	t.Setenv("COLUMNS", "")
	if _, serial := labtest.Terminal(t, 0); Width(serial) != 80 {
		t.Errorf("a terminal without a size has %d columns", Width(serial))
	}
}

// TestTable prints a table where it fits, and where no line can hold a row.
func TestTable(t *testing.T) {
	for _, test := range []struct {
		width int
		want  string
	}{
		{0, `
DEVICE          STATE   ADDRESSES                                TEXT
mlx5_bond_0     ACTIVE  10.9.0.1,fd00:9::1,fe80::5054:ff:fe12:1  works: room for more
a\x1b[2J\nfake  -       -                                        -
`}, {60, `

DEVICE     mlx5_bond_0
STATE      ACTIVE
ADDRESSES  10.9.0.1,fd00:9::1,fe80::5054:ff:fe12:1
TEXT       works: room for more

DEVICE     a\x1b[2J\nfake
STATE      -
ADDRESSES  -
TEXT       -
`}, {40, `

DEVICE     mlx5_bond_0
STATE      ACTIVE
ADDRESSES  10.9.0.1,fd00:9::1,
           fe80::5054:ff:fe12:1
TEXT       works: room for more

DEVICE     a\x1b[2J\nfake
STATE      -
ADDRESSES  -
TEXT       -
`},
	} {
		var b bytes.Buffer
		table := NewTable(&b, "DEVICE", "STATE", "ADDRESSES", "TEXT")
		table.width = test.width
		table.Row("mlx5_bond_0", "ACTIVE", "10.9.0.1,fd00:9::1,fe80::5054:ff:fe12:1", "works: room for more")
		table.Row("a\x1b[2J\nfake", " ", "", "")
		if err := table.Flush(); err != nil || "\n"+b.String() != test.want {
			t.Errorf("%d columns: %v\n%s", test.width, err, b.String())
		}
	}
}

func TestWrap(t *testing.T) {
	for width, want := range map[int]string{
		0:  "flags:\t0x1 ONE TWO THREE",
		40: "flags:\t0x1 ONE TWO THREE",
		24: "flags:\t0x1 ONE\n\tTWO THREE",
		17: "flags:\t0x1\n\tONE TWO\n\tTHREE",
		16: "flags:\n\t0x1 ONE\n\tTWO\n\tTHREE",
	} {
		if got := Wrap("flags:\t", "0x1 ONE TWO THREE", width, "\t"); got != want {
			t.Errorf("%d: %q, not %q", width, got, want)
		}
	}
	if !Fits("1234\n12\n", 4) || Fits("1234\n12\n", 3) || !Fits("1234", 0) {
		t.Error("Fits does not look at the longest line")
	}
	if lines := fill(strings.Repeat("word ", 5), 9); len(lines) != 3 {
		t.Errorf("%q", lines)
	}
}
