package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
)

var testName = regexp.MustCompile("`([a-z/]+)\\.((?:Test|Fuzz|Example)\\w*)`")

// testsOf returns the tests of a package, by its folder; verbs is the module's root.
func testsOf(t *testing.T, dir string) map[string]bool {
	t.Helper()
	if dir == "verbs" {
		dir = "."
	}
	tests, _ := labtest.Declarations(t, filepath.Join("../..", dir))
	return tests
}

// TestClaims checks that each row of a table with a column for tests names tests, and that
// all tests that a page names exist.
func TestClaims(t *testing.T) {
	known := map[string]map[string]bool{}
	for _, page := range []string{"security.md", "reliability.md", "kernels.md"} {
		text := labtest.Must(os.ReadFile("../../docs/" + page))(t)
		column, claims := -1, 0
		for n, line := range strings.Split(string(text), "\n") {
			if !strings.HasPrefix(line, "|") {
				column = -1
			}
			for _, m := range testName.FindAllStringSubmatch(line, -1) {
				if known[m[1]] == nil {
					known[m[1]] = testsOf(t, m[1])
				}
				if !known[m[1]][m[2]] {
					t.Errorf("%s:%d: there is no %s in %s", page, n+1, m[2], m[1])
				}
			}
			cells := strings.Split(strings.Trim(line, "| "), "|")
			last := strings.TrimSpace(cells[len(cells)-1])
			switch {
			case last == "test":
				column = len(cells) - 1
			case column < 0 || strings.HasPrefix(last, "---"):
			case len(cells) <= column || !testName.MatchString(cells[column]):
				t.Errorf("%s:%d: %q has no test", page, n+1, line)
			default:
				claims++
			}
		}
		if claims == 0 {
			t.Errorf("%s claims nothing", page)
		}
	}
}
