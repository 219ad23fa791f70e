// Command nicdoc writes the table of what package nic has found, in Markdown, from the output of
// go test -json of several runs:
//
//	nicdoc build/nic/*.json >build/nic.md
//
// A cell is the number of cases that have passed. make nic runs it.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"maps"
	"os"
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
	r, err := read(f)
	if err != nil {
		err = fmt.Errorf("%s: %w", name, err)
	}
	return r, err
}

// event is a line of go test -json.
type event struct{ Action, Test, Output string }

// run is a run of the tests.
type run struct {
	kernel, libmlx5, link string
	rows                  []string // in the order of their first test
	cells                 map[string]*cell
}

// cell counts the cases of a row.
type cell struct {
	passed, skipped int
	failed          []string
	reasons         []string // why cases were skipped
}

var (
	reHead   = regexp.MustCompile(`^nic: kernel (\S+), libmlx5 (\S+), (\S+)`)
	reReason = regexp.MustCompile(`^ +\w+\.go:\d+: (.*)`)
)

// row returns the row of a test: its first two parts.
func row(test string) string {
	parts := strings.SplitN(strings.TrimPrefix(test, "Test"), "/", 3)
	if len(parts) == 1 {
		return strings.ToLower(parts[0])
	}
	return strings.ToLower(parts[0]) + ": " + parts[1]
}

// read reads the events of a run.
func read(r io.Reader) (run, error) {
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
		switch e.Action {
		case "run":
			tests = append(tests, e.Test)
			if i := strings.LastIndex(e.Test, "/"); i >= 0 {
				parent[e.Test[:i]] = true
			}
		case "output":
			if m := reReason.FindStringSubmatch(e.Output); m != nil {
				said[e.Test] = m[1]
			}
		case "pass", "skip", "fail":
			result[e.Test] = e.Action
		}
	}
	if all.kernel == "" {
		return all, fmt.Errorf("no test was run")
	}
	for _, t := range tests {
		// A parent fails by itself if the log is not clean when it ends.
		own := result[t] == "fail" && !slices.ContainsFunc(tests, func(c string) bool { return strings.HasPrefix(c, t+"/") && result[c] == "fail" })
		if parent[t] && !own {
			continue
		}
		key := row(t)
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
			c.failed = append(c.failed, t)
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
	head("libmlx5", func(r run) string { return r.libmlx5 })
	head("link", func(r run) string { return r.link })
	for _, name := range rows {
		head(name, func(r run) string { return r.cells[name].String() })
	}
	reasons := map[string]int{}
	for _, r := range runs {
		for _, name := range r.rows {
			for _, f := range r.cells[name].failed {
				fmt.Fprintf(w, "\nFailed on %s, libmlx5 %s, %s: %s\n", r.kernel, r.libmlx5, r.link, f)
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
