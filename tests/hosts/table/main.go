// Command table writes the part of docs/reliability.md about two hosts, from the rows that
// tests/hosts wrote to the file named by HOSTS_TABLE; make hosts runs both.
package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/goverbs/verbs/tests/docs/part"
)

func main() { part.Main("make hosts", markdown) }

// cell holds the results of one fault on a driver and a pair of kernels: for each result
// the layers that had it, and their times.
type cell struct {
	results []string
	layers  map[string][]string
}

func (c *cell) add(result, layer, took string) {
	if c.layers == nil {
		c.layers = map[string][]string{}
	}
	if c.layers[result] == nil {
		c.results = append(c.results, result)
	}
	c.layers[result] = append(c.layers[result], layer+" "+took)
}

func (c *cell) String() string {
	var parts []string
	for _, r := range c.results {
		parts = append(parts, r+": "+strings.Join(c.layers[r], ", "))
	}
	return strings.Join(parts, "; ")
}

// markdown returns a table for each test from its rows of test, what was done, layer,
// driver, kernels, result and seconds. It has a line for each thing that was done, and a
// column for each driver and pair of kernels.
func markdown(rows string) (string, error) {
	var tests, columns []string
	what := map[string][]string{} // by test
	cells := map[[3]string]*cell{}
	for line := range strings.Lines(rows) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(f) != 7 {
			return "", fmt.Errorf("%q is no row", line)
		}
		kernels := strings.Fields(f[4])
		if len(kernels) != 2 {
			return "", fmt.Errorf("%q has no two kernels", line)
		}
		test, did, column := f[0], f[1], f[3]+", "+version(kernels[0])+" and "+version(kernels[1])
		if !slices.Contains(tests, test) {
			tests = append(tests, test)
		}
		if !slices.Contains(columns, column) {
			columns = append(columns, column)
		}
		if !slices.Contains(what[test], did) {
			what[test] = append(what[test], did)
		}
		at := [3]string{test, did, column}
		if cells[at] == nil {
			cells[at] = &cell{}
		}
		cells[at].add(f[5], f[2], f[6])
	}
	if len(tests) == 0 {
		return "", errors.New("no rows")
	}
	slices.Sort(columns)
	var b strings.Builder
	for _, test := range tests {
		fmt.Fprintf(&b, "\n**%s**: results, and the seconds until then\n\n| | %s |\n|%s\n", test, strings.Join(columns, " | "), strings.Repeat("---|", len(columns)+1))
		for _, did := range what[test] {
			b.WriteString("| " + did + " |")
			for _, c := range columns {
				if cell := cells[[3]string{test, did, c}]; cell != nil {
					b.WriteString(" " + cell.String())
				}
				b.WriteString(" |")
			}
			b.WriteString("\n")
		}
	}
	return b.String()[1:] + "\n", nil
}

// version returns the 6.12 of 6.12.117+deb13-amd64.
func version(release string) string {
	f := strings.SplitN(release, ".", 3)
	return strings.Join(f[:min(2, len(f))], ".")
}
