// Command nicdoc writes the table of what package nic has found, or of packages that have run with
// an adapter, in Markdown, from the output of go test -json of several runs:
//
//	nicdoc build/nic/*.json >build/nic.md
//	nicdoc build/adapter-table/*.json >build/adapter-table.md
//
// A row is a package, or of package nic the first two parts of a test's name. A cell is the number
// of cases that have passed, and in brackets of those that were skipped. make nic and make
// adapter-table run it.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	log.SetFlags(0)
	t := newTable()
	status := 0
	for _, name := range os.Args[1:] {
		f, err := os.Open(name)
		if err == nil {
			err = t.read(f, strings.TrimSuffix(filepath.Base(name), ".json"))
			f.Close()
		}
		if err != nil { // the table has the others
			log.Printf("%s: %v", name, err)
			status = 1
		}
	}
	fmt.Print(t)
	os.Exit(status)
}

// table has a column for each run.
type table struct {
	runs, rows []string
	cells      map[[2]string]*cell // by run and row
	failed     []string
	skipped    map[string]int // cases, by row and reason
}

type cell struct{ passed, skipped, failed int }

func newTable() *table { return &table{cells: map[[2]string]*cell{}, skipped: map[string]int{}} }

// read adds a run. It is called what package nic says about it, or name.
func (t *table) read(r io.Reader, name string) error {
	said := map[string]string{}
	below := map[string]string{} // of tests and packages that have cases; "fail" if one has failed
	for d := json.NewDecoder(r); ; {
		var e struct{ Action, Package, Test, Output string }
		if err := d.Decode(&e); err == io.EOF {
			break
		} else if err != nil {
			return err
		}
		if title, ok := strings.CutPrefix(e.Output, "nic: "); ok {
			name = strings.TrimSpace(title)
		}
		row := strings.TrimPrefix(e.Package, "github.com/goverbs/verbs/")
		test, above := row+" "+e.Test, row+" "
		if i := strings.LastIndex(e.Test, "/"); i >= 0 {
			above += e.Test[:i]
		}
		if parts := strings.Split(e.Test, "/"); row == "tests/nic" && e.Test != "" {
			row = strings.Join(parts[:min(2, len(parts))], "/")
		}
		if _, line, ok := strings.Cut(e.Output, ".go:"); ok {
			_, said[test], _ = strings.Cut(strings.TrimSpace(line), ": ")
		}
		if e.Action != "pass" && e.Action != "skip" && e.Action != "fail" {
			continue
		}
		inside := below[test]
		if e.Test != "" && below[above] != "fail" {
			below[above] = e.Action
		}
		// A test or a package fails by itself if it ends early, or leaves an unclean log.
		if inside != "" || e.Test == "" {
			if e.Action != "fail" || inside == "fail" {
				continue
			}
		}
		c := t.cell(name, row)
		switch e.Action {
		case "pass":
			c.passed++
		case "skip":
			c.skipped++
			t.skipped[row+": "+said[test]]++
		case "fail":
			c.failed++
			t.failed = append(t.failed, name+": "+strings.TrimSpace(test))
		}
	}
	if !slices.Contains(t.runs, name) {
		return errors.New("no test was run")
	}
	return nil
}

func (t *table) cell(run, row string) *cell {
	if !slices.Contains(t.runs, run) {
		t.runs = append(t.runs, run)
	}
	if !slices.Contains(t.rows, row) {
		t.rows = append(t.rows, row)
	}
	c := t.cells[[2]string{run, row}]
	if c == nil {
		c = new(cell)
		t.cells[[2]string{run, row}] = c
	}
	return c
}

func (c *cell) String() string {
	switch {
	case c == nil:
		return ""
	case c.failed > 0:
		return fmt.Sprintf("**%d of %d fail**", c.failed, c.failed+c.passed)
	case c.skipped > 0:
		return fmt.Sprintf("%d (%d)", c.passed, c.skipped)
	}
	return fmt.Sprint(c.passed)
}

// String returns the table, what has failed, and why cases were skipped.
func (t *table) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "| | %s |\n|---%s|\n", strings.Join(t.runs, " | "), strings.Repeat("|---", len(t.runs)))
	for _, row := range t.rows {
		fmt.Fprintf(&b, "| %s |", row)
		for _, run := range t.runs {
			fmt.Fprintf(&b, " %v |", t.cells[[2]string{run, row}])
		}
		b.WriteByte('\n')
	}
	for _, f := range t.failed {
		fmt.Fprintf(&b, "\nFailed on %s\n", f)
	}
	for i, reason := range slices.Sorted(maps.Keys(t.skipped)) {
		if i == 0 {
			b.WriteString("\nSkipped, in all runs together:\n\n")
		}
		fmt.Fprintf(&b, "- %d of %s\n", t.skipped[reason], reason)
	}
	return b.String()
}
