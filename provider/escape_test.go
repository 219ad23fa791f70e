package provider

import (
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// keeps finds what the compiler says of the parameters that are on the caller's stack.
var keeps = regexp.MustCompile(`(?m)^.*(?:leaking param(?: content)?: (?:wrs?|wcs?)\b|parameter (?:wrs?|wcs?) leaks).*$`)

// TestNoEscape checks, as a driver's author can, that the compiler finds nothing that the built-in
// drivers keep of the requests and completions in their parameters.
func TestNoEscape(t *testing.T) {
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("needs the go command")
	}
	drivers := []string{"./rxe", "./siw", "./mlx5", "./erdma"}
	all, err := exec.Command("go", append([]string{"build", "-gcflags=-m"}, drivers...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, all)
	}
	for _, driver := range drivers {
		var out string
		for line := range strings.Lines(string(all)) { // "rxe/driver.go:12:3: ..."
			if strings.HasPrefix(line, driver[2:]+"/") {
				out += line
			}
		}
		if found := keeps.FindAllString(out, -1); len(found) > 0 {
			slices.Sort(found)
			t.Errorf("%s keeps its arguments:\n%s", driver, strings.Join(slices.Compact(found), "\n"))
		}
		if n := strings.Count(out, ": wrs does not escape"); n < 2 || !strings.Contains(out, ": wcs does not escape") {
			t.Errorf("%s: the compiler says nothing of Post and Take:\n%s", driver, out)
		}
	}
}
