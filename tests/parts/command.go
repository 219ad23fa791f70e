package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"syscall"
)

// The variables by which a part tells command where the go command is, the PATH without command, and the file to
// which it adds its count.
const (
	goVariable    = "PARTS_GO"
	pathVariable  = "PARTS_PATH"
	countVariable = "PARTS_COUNT"
)

// count is what a go test has done.
type count struct {
	Passed  int            `json:"passed"`
	Failed  []string       `json:"failed,omitempty"`
	Skipped map[string]int `json:"skipped,omitempty"` // by reason
}

func (c *count) add(o count) {
	c.Passed += o.Passed
	c.Failed = append(c.Failed, o.Failed...)
	for reason, n := range o.Skipped {
		if c.Skipped == nil {
			c.Skipped = map[string]int{}
		}
		c.Skipped[reason] += n
	}
}

// command is the go command that make finds during a part. It runs go test with -json, counts, and prints what go test
// prints without; other commands become the go command. It is in the PATH, as rdmalab test runs go too, but not in
// that of what it runs: tests that run go get the real one.
func command(args []string) (int, error) {
	real, file := os.Getenv(goVariable), os.Getenv(countVariable)
	os.Setenv("PATH", os.Getenv(pathVariable))
	for _, v := range []string{goVariable, pathVariable, countVariable} {
		os.Unsetenv(v)
	}
	// With -json, packages that are listed at the same time are mixed.
	if len(args) == 0 || args[0] != "test" || slices.Contains(args, "-c") || slices.Contains(args, "-list") {
		return 1, syscall.Exec(real, append([]string{"go"}, args...), os.Environ())
	}
	p := newPrinter(os.Stdout, args)
	if !p.raw {
		args = slices.Insert(slices.Clone(args), 1, "-json")
	}
	cmd := exec.Command(real, args...)
	cmd.Stdin, cmd.Stderr = os.Stdin, os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return 1, err
	}
	p.copy(out)
	cmd.Wait()
	line, err := json.Marshal(p.count)
	if err != nil {
		return 1, err
	}
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_APPEND, 0)
	if err == nil {
		_, err = f.Write(append(line, '\n'))
		f.Close()
	}
	return cmd.ProcessState.ExitCode(), err
}

// newPrinter returns a printer for the arguments of go test: they may ask for JSON, and for what is printed while
// tests run.
func newPrinter(to io.Writer, args []string) *printer {
	p := &printer{to: to}
	for _, a := range args {
		name, _, _ := strings.Cut(strings.TrimLeft(a, "-"), "=")
		switch {
		case !strings.HasPrefix(a, "-"):
		case name == "args":
			return p
		case name == "json":
			p.raw = true
		case name == "fuzz":
			p.verbose, p.fuzzing = true, true
		case name == "v":
			p.verbose = true
		}
	}
	return p
}

// event is a line of go test -json.
type event struct{ Action, Package, Test, Output string }

// printer prints events as go test does without -json, and counts tests, with those within tests.
type printer struct {
	to           io.Writer
	raw, verbose bool
	fuzzing      bool // fuzz.sh knows which failures are none
	count        count
	output       map[event]string // of a package and a test
}

var place = regexp.MustCompile(`^\s*\S+\.go:\d+: `)

func (p *printer) copy(from io.Reader) {
	p.output = map[event]string{}
	for r := bufio.NewReader(from); ; {
		line, err := r.ReadBytes('\n')
		if len(line) > 0 {
			p.line(line)
		}
		if err != nil {
			return
		}
	}
}

func (p *printer) line(line []byte) {
	var e event
	if p.raw {
		p.to.Write(line)
	}
	if json.Unmarshal(line, &e) != nil {
		if !p.raw {
			p.to.Write(line)
		}
		return
	}
	id := event{Package: e.Package, Test: e.Test}
	switch e.Action {
	case "build-output":
		p.print(e.Output)
	case "output":
		p.output[id] += e.Output
		if p.verbose || e.Test == "" && (strings.HasPrefix(e.Output, "ok ") || strings.HasPrefix(e.Output, "?")) {
			p.print(e.Output)
		}
	case "pass", "fail", "skip":
		if e.Action == "fail" && e.Test == "" {
			p.unfinished(e.Package)
		}
		p.end(e.Action, id)
		delete(p.output, id)
	}
}

// unfinished ends the tests of a package that ran when it failed, as by its timeout.
func (p *printer) unfinished(pkg string) {
	for _, id := range slices.SortedFunc(maps.Keys(p.output), func(a, b event) int { return strings.Compare(a.Test, b.Test) }) {
		if id.Package == pkg && id.Test != "" {
			p.end("fail", id)
			delete(p.output, id)
		}
	}
}

func (p *printer) print(text string) {
	if !p.raw {
		io.WriteString(p.to, text)
	}
}

// end counts a test or a package that has ended, of which only failures count.
func (p *printer) end(action string, id event) {
	switch {
	case action == "fail":
		if !p.verbose {
			p.print(p.output[id])
		}
		if !p.fuzzing {
			p.count.Failed = append(p.count.Failed, strings.TrimSpace(id.Package+" "+id.Test))
		}
	case id.Test == "":
	case action == "pass":
		p.count.Passed++
	case action == "skip":
		reason := "without a reason"
		for line := range strings.Lines(p.output[id]) {
			if at := place.FindString(line); at != "" {
				reason = strings.TrimSpace(line[len(at):])
			}
		}
		p.count.add(count{Skipped: map[string]int{reason: 1}})
	}
}

// readCounts returns the sum of the counts in a file.
func readCounts(file string) (sum count, err error) {
	text, err := os.ReadFile(file)
	for line := range bytes.Lines(text) {
		var c count
		if err := json.Unmarshal(line, &c); err != nil {
			return sum, fmt.Errorf("%s: %w", file, err)
		}
		sum.add(c)
	}
	return sum, err
}

// reasons returns reasons for skipping tests, the most frequent first.
func (c count) reasons() []string {
	list := slices.Sorted(maps.Keys(c.Skipped))
	slices.SortStableFunc(list, func(a, b string) int { return c.Skipped[b] - c.Skipped[a] })
	return list
}
