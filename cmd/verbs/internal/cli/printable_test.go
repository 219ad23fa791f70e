package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"testing"
)

func TestPrintable(t *testing.T) {
	for text, want := range map[string]string{
		"":                      "",
		"rdma 推理 é":             "rdma 推理 é",
		`a\b`:                   `a\b`, // what rping sends
		"\x1b]0;title\a":        `\x1b]0;title\a`,
		"two\nlines\tand\rmore": `two\nlines\tand\rmore`,
		"caf\xe9":               `caf\xe9`,
		"\u009b31m":             `\u009b31m`, // CSI in one character
		"\u202eevil":            `\u202eevil`,
		"\U000e0001":            `\U000e0001`,
		"it's":                  "it's",
		"'\x00":                 `'\x00`,
		"\ufffd":                "\ufffd",
	} {
		if got := Printable(text); got != want {
			t.Errorf("%q: %s, not %s", text, got, want)
		}
	}
}

// TestWarn keeps the lines of joined errors.
func TestWarn(t *testing.T) {
	var b bytes.Buffer
	Warn(&b, errors.Join(errors.New("one \x1b[2J"), errors.New("two")))
	if want := "verbs: one \\x1b[2J\ntwo\n"; b.String() != want {
		t.Errorf("%q, not %q", b.String(), want)
	}
}

// TestWriteJSON writes strings that a terminal would obey: they are escaped, and mean the same.
func TestWriteJSON(t *testing.T) {
	for _, text := range []string{"\x1b[2J\u009b2J", "\u202e \U000e0001 é推", "\x7f"} {
		for _, write := range []func(*bytes.Buffer, any) error{
			func(b *bytes.Buffer, v any) error { return WriteJSON(b, v) },
			func(b *bytes.Buffer, v any) error { return WriteJSONLine(b, v) },
		} {
			var b bytes.Buffer
			var got []string
			if err := errors.Join(write(&b, []string{text}), json.Unmarshal(b.Bytes(), &got)); err != nil || got[0] != text {
				t.Errorf("%q: %q, %v", text, got, err)
			}
			for line := range bytes.Lines(b.Bytes()) {
				if line = bytes.TrimSuffix(line, []byte("\n")); Printable(string(line)) != string(line) {
					t.Errorf("%q: %q", text, line)
				}
			}
		}
	}
}
