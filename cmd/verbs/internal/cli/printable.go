package cli

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Printable returns s with escapes, as in Go's strings, for invalid UTF-8 and for control
// characters, which move a terminal's cursor or change its settings. It is for names of processes,
// which any user chooses, names of devices and interfaces, and text from peers.
func Printable(s string) string {
	s = strconv.Quote(s)
	return unescape.Replace(s[1 : len(s)-1])
}

// unescape restores the printable characters that strconv.Quote escapes.
var unescape = strings.NewReplacer(`\\`, `\`, `\"`, `"`)

// Warn prints an error in the form of the command's own, with its lines. They must not be a peer's.
func Warn(w io.Writer, err error) {
	lines := strings.Split(err.Error(), "\n")
	for i := range lines {
		lines[i] = Printable(lines[i])
	}
	fmt.Fprintln(w, "verbs:", strings.Join(lines, "\n"))
}

// printableJSON escapes the characters of JSON that encoding/json leaves and a terminal obeys, such
// as U+009B. Only strings have any.
func printableJSON(b []byte) []byte {
	var out []byte
	for len(b) > 0 {
		r, size := utf8.DecodeRune(b)
		switch {
		case r == '\n' || strconv.IsPrint(r):
			out = append(out, b[:size]...)
		case r > 0xffff:
			out = fmt.Appendf(out, `\u%04x\u%04x`, 0xd800+(r-0x10000)>>10, 0xdc00+(r-0x10000)&0x3ff)
		default:
			out = fmt.Appendf(out, `\u%04x`, r)
		}
		b = b[size:]
	}
	return out
}
