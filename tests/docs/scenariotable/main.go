// Command scenariotable writes docs/scenarios.md from what runs of
// tests/scenarios wrote to the file named by SCENARIO_TABLE; make tables runs
// both.
package main

import (
	"errors"
	"fmt"
	"log"
	"maps"
	"os"
	"slices"
	"strings"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) != 3 {
		log.Fatal("usage: scenariotable results page")
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		log.Fatal(err)
	}
}

func run(results, page string) error {
	text, err := os.ReadFile(results)
	if err != nil {
		return err
	}
	table, err := markdown(string(text))
	if err != nil {
		return err
	}
	return os.WriteFile(page, []byte(head+table), 0o644)
}

const head = `# Scenarios

What rdma-core's own tests go through, done by ` + "`tests/scenarios`" + ` on every kernel
and driver. ` + "`make tables`" + ` runs them all and writes this page; the names are
those of rdma-core's tests.

| | |
|---|---|
| ok | it works |
| EOPNOTSUPP, EPROTONOSUPPORT, EINVAL | the kernel refuses, with this errno and an error that matches ` + "`errors.ErrUnsupported`" + ` |
| refused | there is no such thing to ask the kernel for: also ` + "`errors.ErrUnsupported`" + ` |

`

// What there must be a result of.
var (
	kernels = []string{"6.1", "6.12", "7.2"}
	drivers = []string{"rxe", "siw"}
)

// markdown makes the table of lines of name, kernel, device and result.
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
			if result == "ENOTSUP" { // the same number; the kernel knows it by this name
				result = "EOPNOTSUPP"
			}
			b.WriteString(" " + result + " |")
		}
		b.WriteString("\n")
	}
	return b.String(), nil
}

// version is the 6.12 of 6.12.117+deb13-amd64.
func version(release string) string {
	major, rest, _ := strings.Cut(release, ".")
	minor := rest[:len(rest)-len(strings.TrimLeft(rest, "0123456789"))]
	return major + "." + minor
}
