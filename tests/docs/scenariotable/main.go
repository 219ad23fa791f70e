// Command scenariotable writes docs/scenarios.md, and the table of features in
// docs/kernels.md, from the results that runs of tests/scenarios wrote to the files named
// by SCENARIO_TABLE and FEATURE_TABLE; make tables runs all of it.
package main

import (
	"errors"
	"fmt"
	"log"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/goverbs/verbs/tests/docs/part"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) != 5 {
		log.Fatal("usage: scenariotable scenarios docs/scenarios.md features docs/kernels.md")
	}
	err := run(os.Args[1], os.Args[2], func(_, table string) (string, error) { return head + table, nil })
	if err == nil {
		err = run(os.Args[3], os.Args[4], insert)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// run makes a table of the results and writes the page that compose returns for it.
func run(results, page string, compose func(page, table string) (string, error)) error {
	text, err := os.ReadFile(results)
	if err != nil {
		return err
	}
	table, err := markdown(string(text))
	if err != nil {
		return err
	}
	old, err := os.ReadFile(page)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	composed, err := compose(string(old), table)
	if err != nil {
		return err
	}
	return os.WriteFile(page, []byte(composed), 0o644)
}

// insert replaces the table of features in a page. It lists those that any kernel and driver
// has: yes where they exist, nothing where they do not.
func insert(page, table string) (string, error) {
	var b strings.Builder
	for i, line := range strings.SplitAfter(table, "\n") {
		cells := strings.Split(line, "|")
		granted := i < 2 // the table's head
		for j := 2; j < len(cells)-1 && i >= 2; j++ {
			if strings.TrimSpace(cells[j]) == "ok" {
				cells[j], granted = " yes ", true
			} else {
				cells[j] = " "
			}
		}
		if granted {
			b.WriteString(strings.Join(cells, "|"))
		}
	}
	return part.Replace(page, "make tables", b.String())
}

const head = `# Scenarios

` + "`tests/scenarios`" + ` runs the scenarios of rdma-core's own tests on every kernel and driver.
` + "`make tables`" + ` runs them and writes this page; the names are those of rdma-core's tests.

| result | meaning |
|---|---|
| ok | it works |
| EOPNOTSUPP, EPROTONOSUPPORT, EINVAL | the kernel refuses with this errno; the error matches ` + "`errors.ErrUnsupported`" + ` |
| refused | the library refuses before it asks the kernel; the error matches ` + "`errors.ErrUnsupported`" + ` |

`

// The kernels and drivers for which results are required.
var (
	kernels = []string{"6.1", "6.12", "7.3"}
	drivers = []string{"rxe", "siw"}
)

// markdown returns a table of results, which are lines of name, kernel, device and result.
func markdown(results string) (string, error) {
	var columns []string
	for _, k := range kernels {
		for _, d := range drivers {
			columns = append(columns, k+" "+d)
		}
	}
	cells := map[string]map[string]string{}
	for line := range strings.Lines(results) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(f) != 4 {
			return "", fmt.Errorf("%q is no name, kernel, device and result", line)
		}
		name, column, result := f[0], version(f[1])+" "+strings.TrimRight(f[2], "0123456789"), f[3]
		if !slices.Contains(columns, column) {
			return "", fmt.Errorf("%s: kernel %s, device %s: no such column", name, f[1], f[2])
		}
		if result == "failed" {
			return "", fmt.Errorf("%s failed on %s", name, column)
		}
		if cells[name] == nil {
			cells[name] = map[string]string{}
		}
		if old := cells[name][column]; old != "" && old != result {
			return "", fmt.Errorf("%s on %s: %s and %s", name, column, old, result)
		}
		cells[name][column] = result
	}
	if len(cells) == 0 {
		return "", errors.New("no results")
	}
	var b strings.Builder
	fmt.Fprintf(&b, "| name | %s |\n|%s\n", strings.Join(columns, " | "), strings.Repeat("---|", len(columns)+1))
	for _, name := range slices.Sorted(maps.Keys(cells)) {
		b.WriteString("| " + name + " |")
		for _, c := range columns {
			result := cells[name][c]
			if result == "" {
				return "", fmt.Errorf("%s was not run on %s", name, c)
			}
			if result == "ENOTSUP" { // the same number; the kernel uses this name
				result = "EOPNOTSUPP"
			}
			b.WriteString(" " + result + " |")
		}
		b.WriteString("\n")
	}
	return b.String(), nil
}

// version returns the 6.12 of 6.12.117+deb13-amd64.
func version(release string) string {
	major, rest, _ := strings.Cut(release, ".")
	minor := rest[:len(rest)-len(strings.TrimLeft(rest, "0123456789"))]
	return major + "." + minor
}
