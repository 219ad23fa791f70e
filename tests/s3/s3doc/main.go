// Command s3doc writes a table of the programs of others that have judged objects by RDMA, in Markdown,
// from the output of go test -json of several runs:
//
//	s3doc build/judges/*.json >build/s3.md
//
// Tests name rows and cases by their attributes, as package s3test sets them. Its status is 1 if a test has
// failed, or a file has none.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"path"
	"slices"
	"strings"
)

func main() {
	log.SetFlags(0)
	t := newTable()
	for _, name := range os.Args[1:] {
		f, err := os.Open(name)
		if err == nil {
			err = t.read(f)
			f.Close()
		}
		if err != nil { // the table has the others
			t.failed = append(t.failed, fmt.Sprintf("%s: %v", name, err))
		}
	}
	fmt.Print(t)
	for _, f := range t.failed {
		log.Print("failed: ", f)
	}
	if len(t.failed) > 0 {
		os.Exit(1)
	}
}

// row has what a judge has said on one device.
type row struct {
	judge, way, device string
	passed, failed     []string // cases
	skipped            string   // why
	broken             bool     // it has failed, perhaps outside of its cases
}

type table struct {
	rows   []*row
	failed []string // tests
}

func newTable() *table { return &table{} }

// read adds a run.
func (t *table) read(r io.Reader) error {
	rows, cases, said := map[string]*row{}, map[string]string{}, map[string]string{} // by test
	none := true
	for d := json.NewDecoder(r); ; {
		var e struct{ Action, Package, Test, Key, Value, Output string }
		if err := d.Decode(&e); err == io.EOF {
			break
		} else if err != nil {
			return err
		}
		test := path.Join(e.Package, e.Test)
		switch e.Action {
		case "attr":
			if e.Key == "case" {
				cases[test] = e.Value
				break
			}
			if rows[test] == nil {
				rows[test] = &row{}
				t.rows = append(t.rows, rows[test])
			}
			switch to := rows[test]; e.Key {
			case "judge":
				to.judge = e.Value
			case "way":
				to.way = e.Value
			case "device":
				to.device = e.Value
			}
		case "output":
			if _, line, ok := strings.Cut(e.Output, ".go:"); ok {
				_, said[test], _ = strings.Cut(strings.TrimSpace(line), ": ")
			}
		case "pass", "fail", "skip":
			none = none && e.Test == ""
			of := rows[path.Dir(test)]
			switch name := cases[test]; {
			case name == "" || of == nil:
				of = rows[test]
				if of != nil && e.Action == "skip" {
					of.skipped = said[test]
				}
				if of != nil && e.Action == "fail" {
					of.broken = true
				}
			case e.Action == "pass":
				of.passed = append(of.passed, name)
			case e.Action == "fail":
				of.failed = append(of.failed, name)
			}
			if e.Action == "fail" {
				t.failed = append(t.failed, test)
			}
		}
	}
	if none {
		return errors.New("no test was run")
	}
	return nil
}

func (r *row) result() string {
	switch {
	case len(r.failed) > 0:
		return "**failed: " + strings.Join(r.failed, ", ") + "**"
	case r.broken:
		return "**failed**"
	case r.skipped != "":
		return "not run: " + r.skipped
	case len(r.passed) == 0:
		return "**not run**"
	}
	return "passed"
}

// String returns the table.
func (t *table) String() string {
	var b strings.Builder
	b.WriteString("| judge | way | device | cases | result |\n|---|---|---|---|---|\n")
	for _, r := range t.rows {
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", r.judge, r.way, r.device, strings.Join(slices.Concat(r.passed, r.failed), ", "), r.result())
	}
	return b.String()
}
