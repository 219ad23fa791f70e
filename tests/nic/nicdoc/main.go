// Command nicdoc writes a table of tests that have run on an emulated ConnectX, in Markdown, from
// the output of go test -json of several runs:
//
//	nicdoc build/nic/*.json >build/nic.md
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
	"path"
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
	runs, rows, failed []string
	cases              map[[3]string]int // by run, row and action: pass, skip or fail
	skipped            map[string]int    // cases, by row and reason
}

func newTable() *table { return &table{cases: map[[3]string]int{}, skipped: map[string]int{}} }

// read adds a run. It is called what package nic says about it, or name.
func (t *table) read(r io.Reader, name string) error {
	said := map[string]string{}
	cases := map[string]string{} // of tests and packages that have some: "fail" if one has failed
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
		test := path.Join(row, e.Test)
		if row == "tests/nic" && e.Test != "" {
			parts := strings.SplitN(e.Test, "/", 3)
			row = path.Join(parts[:min(2, len(parts))]...)
		}
		if _, line, ok := strings.Cut(e.Output, ".go:"); ok {
			_, said[test], _ = strings.Cut(strings.TrimSpace(line), ": ")
		}
		if e.Action != "pass" && e.Action != "skip" && e.Action != "fail" {
			continue
		}
		if above := path.Dir(test); e.Test != "" && cases[above] != "fail" {
			cases[above] = e.Action
		}
		// A test with cases, or a package, counts itself only if it fails by ending early, or by
		// leaving an unclean log.
		if (cases[test] != "" || e.Test == "") && (e.Action != "fail" || cases[test] == "fail") {
			continue
		}
		t.add(name, row, e.Action)
		switch e.Action {
		case "skip":
			t.skipped[row+": "+said[test]]++
		case "fail":
			t.failed = append(t.failed, name+": "+test)
		}
	}
	if !slices.Contains(t.runs, name) {
		return errors.New("no test was run")
	}
	return nil
}

func (t *table) add(run, row, action string) {
	if !slices.Contains(t.runs, run) {
		t.runs = append(t.runs, run)
	}
	if !slices.Contains(t.rows, row) {
		t.rows = append(t.rows, row)
	}
	t.cases[[3]string{run, row, action}]++
}

func (t *table) cell(run, row string) string {
	of := func(action string) int { return t.cases[[3]string{run, row, action}] }
	switch passed, skipped, failed := of("pass"), of("skip"), of("fail"); {
	case failed > 0:
		return fmt.Sprintf("**%d of %d fail**", failed, failed+passed)
	case skipped > 0:
		return fmt.Sprintf("%d (%d)", passed, skipped)
	case passed > 0:
		return fmt.Sprint(passed)
	}
	return ""
}

// String returns the table, what has failed, and why cases were skipped.
func (t *table) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "| | %s |\n|---%s|\n", strings.Join(t.runs, " | "), strings.Repeat("|---", len(t.runs)))
	for _, row := range t.rows {
		fmt.Fprintf(&b, "| %s |", row)
		for _, run := range t.runs {
			fmt.Fprintf(&b, " %s |", t.cell(run, row))
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
