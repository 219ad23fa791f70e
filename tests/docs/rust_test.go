package docs

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
)

var goName = regexp.MustCompile(`^(verbs|uverbs|cm|rconn)\.[A-Z]`)

// TestRust checks docs/rust-ibverbs.md: the tables contain each name of the crate, as its
// documentation lists them, once; and the names of this module in them exist.
func TestRust(t *testing.T) {
	known := exported(t, ".", "uverbs", "cm", "rconn")
	tests := map[string]map[string]bool{}
	rows := map[string]int{}
	page := string(labtest.Must(os.ReadFile("../../docs/rust-ibverbs.md"))(t))
	_, tables, _ := strings.Cut(page, "\n## Devices\n")
	tables, examples, ok := strings.Cut(tables, "\n## Examples\n")
	if !ok {
		t.Fatal("the page has no examples")
	}
	for line := range strings.Lines(tables) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "|---") || strings.HasPrefix(line, "| rust-ibverbs |") {
			continue
		}
		if len(cells) != 4 {
			t.Errorf("%d cells in %s", len(cells), line)
			continue
		}
		of := ""
		for _, name := range quotes(cells[0]) {
			if strings.HasPrefix(name, "::") {
				name = of + name
			} else if i := strings.LastIndex(name, "::"); i >= 0 {
				of = name[:i]
			}
			rows[name]++
		}
		names := 0
		for _, name := range quotes(cells[1] + cells[2]) {
			if goName.MatchString(name) {
				names++
				if !known[name] {
					t.Errorf("there is no %s: %s", name, line)
				}
			}
		}
		if names == 0 && !strings.HasPrefix(strings.TrimSpace(cells[1]), "none: ") {
			t.Errorf("no Go name, and no reason for having none: %s", line)
		}
		shown := quotes(cells[3])
		if len(shown) == 0 {
			t.Errorf("nothing shows it: %s", line)
		}
		for _, name := range shown {
			checkShown(t, name, tests)
		}
	}
	listed := map[string]bool{}
	for name := range strings.FieldsSeq(string(labtest.Must(os.ReadFile("testdata/rust-ibverbs.txt"))(t))) {
		listed[name] = true
		if rows[name] != 1 {
			t.Errorf("%s has %d rows", name, rows[name])
		}
	}
	if len(listed) < 350 {
		t.Errorf("only %d names are listed", len(listed))
	}
	for name := range rows {
		if !listed[name] {
			t.Errorf("rust-ibverbs has no %s", name)
		}
	}
	for _, name := range quotes(examples) {
		if strings.HasPrefix(name, "examples/") && !strings.HasSuffix(name, ".rs") {
			checkShown(t, name, tests)
		}
	}
}

func quotes(text string) (names []string) {
	for _, m := range quoted.FindAllStringSubmatch(text, -1) {
		names = append(names, m[1])
	}
	return names
}

// checkShown checks that a test, "uverbs.TestStates", or an example, "examples/hello",
// exists. tests caches the tests of packages that have been read.
func checkShown(t *testing.T, name string, tests map[string]map[string]bool) {
	t.Helper()
	if strings.HasPrefix(name, "examples/") {
		if _, err := os.Stat("../../" + name + "/main.go"); err != nil {
			t.Error(err)
		}
		return
	}
	i := strings.LastIndex(name, ".")
	if i < 0 {
		t.Errorf("%q is neither a test nor an example", name)
		return
	}
	dir, test := name[:i], name[i+1:]
	if tests[dir] == nil {
		tests[dir] = testsOf(t, dir)
	}
	if !tests[dir][test] {
		t.Errorf("there is no test %s", name)
	}
}
