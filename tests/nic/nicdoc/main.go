// Command nicdoc writes the table of what package nic has found, or of packages that have run with an adapter, in
// Markdown, from the output of go test -json of several runs:
//
//	nicdoc build/nic/*.json >build/nic.md
//	nicdoc build/adapter-table/*.json >build/adapter-table.md
//
// A cell is the number of cases that have passed and, of packages, in brackets of those that were skipped. A run of
// packages has its kernel and its adapter in its name: 6.12-connectx-ib.json. make nic and make adapter-table run it.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

func main() {
	log.SetFlags(0)
	var runs []run
	status := 0
	for _, name := range os.Args[1:] {
		r, err := readFile(name)
		if err != nil { // the table has the others
			log.Print(err)
			status = 1
			continue
		}
		runs = append(runs, r)
	}
	if len(os.Args) == 1 {
		log.Fatal("usage: nicdoc FILE ...")
	}
	w := bufio.NewWriter(os.Stdout)
	write(w, runs)
	if err := w.Flush(); err != nil {
		log.Fatal(err)
	}
	os.Exit(status)
}

func readFile(name string) (run, error) {
	f, err := os.Open(name)
	if err != nil {
		return run{}, err
	}
	defer f.Close()
	r, err := read(f, name)
	if err != nil {
		err = fmt.Errorf("%s: %w", name, err)
	}
	return r, err
}

// event is a line of go test -json.
type event struct{ Action, Package, Test, Output string }

// run is a run of the tests.
type run struct {
	kernel, link string
	libmlx5      string   // empty in a run of packages
	rows         []string // in the order of their first test
	cells        map[string]*cell
}

// cell counts the cases of a row.
type cell struct {
	passed, skipped int
	failed          []string
	reasons         []string // why cases were skipped
}

var (
	reHead   = regexp.MustCompile(`^nic: kernel (\S+), libmlx5 (\S+), (\S+)`)
	reName   = regexp.MustCompile(`^(\d+\.\d+)-(connectx\S*)\.json$`)
	reReason = regexp.MustCompile(`^ +\w+\.go:\d+: (.*)`)
)

const module = "github.com/goverbs/verbs/"

// row returns the row of a test: its package, or the first two parts of its name.
func (r run) row(test string) string {
	pkg, test, _ := strings.Cut(test, " ")
	if r.libmlx5 == "" {
		return strings.TrimPrefix(pkg, module)
	}
	parts := strings.SplitN(strings.TrimPrefix(test, "Test"), "/", 3)
	if len(parts) == 1 {
		return strings.ToLower(parts[0])
	}
	return strings.ToLower(parts[0]) + ": " + parts[1]
}

// read reads the events of a run, from a file of that name.
func read(r io.Reader, name string) (run, error) {
	all := run{cells: map[string]*cell{}}
	var tests []string
	result, said := map[string]string{}, map[string]string{}
	parent := map[string]bool{}
	for d := json.NewDecoder(r); ; {
		var e event
		if err := d.Decode(&e); err == io.EOF {
			break
		} else if err != nil {
			return all, err
		}
		if m := reHead.FindStringSubmatch(e.Output); m != nil {
			all.kernel, all.libmlx5, all.link = m[1], m[2], m[3]
		}
		test := strings.TrimSuffix(e.Package+" "+e.Test, " ")
		switch e.Action {
		case "start": // a package fails by itself if it ends early
			tests = append(tests, test)
			parent[test] = true
		case "run":
			tests = append(tests, test)
			if i := strings.LastIndex(e.Test, "/"); i >= 0 {
				parent[e.Package+" "+e.Test[:i]] = true
			}
		case "output":
			if m := reReason.FindStringSubmatch(e.Output); m != nil {
				said[test] = m[1]
			}
		case "pass", "skip", "fail":
			result[test] = e.Action
		}
	}
	if m := reName.FindStringSubmatch(filepath.Base(name)); m != nil && all.kernel == "" && len(tests) > 0 {
		all.kernel, all.link = m[1], "RoCE"
		if strings.HasSuffix(m[2], "-ib") {
			all.link = "InfiniBand"
		}
	}
	if all.kernel == "" {
		return all, fmt.Errorf("no test was run")
	}
	for _, t := range tests {
		// A parent fails by itself if the log is not clean when it ends.
		own := result[t] == "fail" && !slices.ContainsFunc(tests, func(c string) bool {
			return (strings.HasPrefix(c, t+"/") || strings.HasPrefix(c, t+" ")) && result[c] == "fail"
		})
		if parent[t] && !own {
			continue
		}
		key := all.row(t)
		c := all.cells[key]
		if c == nil {
			c = &cell{}
			all.cells[key] = c
			all.rows = append(all.rows, key)
		}
		switch result[t] {
		case "pass":
			c.passed++
		case "skip":
			c.skipped++
			c.reasons = append(c.reasons, said[t])
		default: // also one that has not ended
			c.failed = append(c.failed, strings.TrimPrefix(strings.TrimSpace(t), module))
		}
	}
	return all, nil
}

func (c *cell) String() string {
	switch {
	case c == nil:
		return ""
	case len(c.failed) > 0:
		return fmt.Sprintf("**%d of %d fail**", len(c.failed), len(c.failed)+c.passed)
	case c.passed == 0:
		return "–"
	}
	return fmt.Sprint(c.passed)
}

// name names the software of a run.
func (r run) name() string {
	if r.libmlx5 == "" {
		return r.kernel
	}
	return r.kernel + ", libmlx5 " + r.libmlx5
}

// write writes the table of all runs, what has failed, and why cases were skipped.
func write(w io.Writer, runs []run) {
	var rows []string
	for _, r := range runs {
		for _, name := range r.rows {
			if !slices.Contains(rows, name) {
				rows = append(rows, name)
			}
		}
	}
	head := func(name string, of func(r run) string) {
		fmt.Fprintf(w, "| %s |", name)
		for _, r := range runs {
			fmt.Fprintf(w, " %s |", of(r))
		}
		fmt.Fprintln(w)
	}
	head("kernel", func(r run) string { return r.kernel })
	head("---", func(run) string { return "---" })
	if slices.ContainsFunc(runs, func(r run) bool { return r.libmlx5 != "" }) {
		head("libmlx5", func(r run) string { return r.libmlx5 })
	}
	head("link", func(r run) string { return r.link })
	for _, name := range rows {
		head(name, func(r run) string {
			c := r.cells[name]
			if r.libmlx5 == "" && c != nil && c.skipped > 0 {
				return fmt.Sprintf("%v (%d)", c, c.skipped)
			}
			return c.String()
		})
	}
	reasons := map[string]int{}
	for _, r := range runs {
		for _, name := range r.rows {
			for _, f := range r.cells[name].failed {
				fmt.Fprintf(w, "\nFailed on %s, %s: %s\n", r.name(), r.link, f)
			}
			for _, reason := range r.cells[name].reasons {
				reasons[name+": "+reason]++
			}
		}
	}
	if len(reasons) > 0 {
		fmt.Fprintf(w, "\nSkipped, in all runs together:\n\n")
	}
	for _, reason := range slices.Sorted(maps.Keys(reasons)) {
		fmt.Fprintf(w, "- %d of %s\n", reasons[reason], reason)
	}
}
