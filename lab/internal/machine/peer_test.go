//go:build linux

package machine

import (
	"strings"
	"testing"
)

// TestPrefixWriter writes lines that come in parts, and one that has no end.
func TestPrefixWriter(t *testing.T) {
	var out strings.Builder
	p := &prefixWriter{w: &out, prefix: "peer: "}
	for _, part := range []string{"on", "e\ntwo\nth", "ree\n"} {
		p.Write([]byte(part))
	}
	if out.String() != "peer: one\npeer: two\npeer: three\n" {
		t.Errorf("%q", out.String())
	}
	for range 1 << 10 {
		p.Write(make([]byte, 1<<10))
	}
	if len(p.line) > maxLine || out.Len() < 1<<20-maxLine {
		t.Errorf("%d bytes are kept, and %d written", len(p.line), out.Len())
	}
}
