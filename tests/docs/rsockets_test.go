package docs

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// rsocketName matches rsocket's functions, which librdmacm exports among others.
var rsocketName = regexp.MustCompile(`^r[a-ce-z][a-z0-9_]+$`)

// TestRsockets compares the table of rsocket's functions with the installed librdmacm and our
// packages.
func TestRsockets(t *testing.T) {
	known := exported(t, "rsock", "rconn")
	var listed []string
	for _, row := range table(t, "../../docs/cm.md", "rsocket", "ours") {
		listed = append(listed, row[0])
		names := function{ours: row[1]}.names()
		for _, name := range names {
			if !known[name] {
				t.Errorf("%s: there is no exported %s", row[0], name)
			}
		}
		if len(names) == 0 && !strings.HasPrefix(row[1], "needs no call: ") && !strings.HasPrefix(row[1], "not provided") {
			t.Errorf("%s: %q is no Go name, and not a reason for having none", row[0], row[1])
		}
	}
	if !slices.IsSorted(listed) {
		t.Error("the table is not sorted")
	}
	p := page{library: "librdmacm", versions: "RDMACM_", prefix: "r"}
	file, _ := p.installed(t)
	for name := range p.linkable(t, file) {
		if rsocketName.MatchString(name) && !slices.Contains(listed, name) {
			t.Errorf("%s is not in the table", name)
		}
	}
}
