package record

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Origin describes where and when lines were measured.
type Origin struct {
	Kernel  string `json:"kernel"`  // release of the kernel
	Machine string `json:"machine"` // model name of its processors
	CPUs    int    `json:"cpus"`
	Clock   string `json:"clock,omitempty"` // LAB_ACCEL: dilated, icount, or others with the machine's clock
	Date    string `json:"date"`            // of the day, UTC
}

// entry is a line with its origin, as appended.
type entry struct {
	Origin
	Line
}

const linesFile = "lines.json"

// Append appends a line to a file in dir. It returns an error if the line belongs to no group,
// or its figures are not pairs.
func Append(dir string, l Line) error {
	if !slices.ContainsFunc(Groups, func(g Group) bool { return g.Has(l) }) {
		return fmt.Errorf("%s: it belongs to no group", l.Key())
	}
	if err := l.check(); err != nil {
		return err
	}
	o, err := here()
	if err != nil {
		return err
	}
	text, err := json.Marshal(entry{o, l})
	if err != nil {
		return fmt.Errorf("%s: %w", l.Key(), err)
	}
	f, err := os.OpenFile(filepath.Join(dir, linesFile), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(append(text, '\n'))
	return errors.Join(err, f.Close())
}

// here returns the origin for this machine.
func here() (Origin, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return Origin{}, err
	}
	model, err := Processor()
	return Origin{
		Kernel:  unix.ByteSliceToString(u.Release[:]),
		Machine: model,
		CPUs:    runtime.NumCPU(),
		Clock:   os.Getenv("LAB_ACCEL"),
		Date:    time.Now().UTC().Format(time.DateOnly),
	}, err
}

// Processor returns the model name of the processors.
func Processor() (string, error) {
	text, err := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(text)) {
		if name, model, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(model), nil
		}
	}
	return "unknown", err
}

// Run holds the measurements of one part, from one run.
type Run struct {
	Origin
	Host  string `json:"host"`  // the processor of the machine on which the kernel runs
	RDMA  string `json:"rdma"`  // version of the C libraries
	Lines []Line `json:"lines"` // in the order of Groups
}

// Collect returns a run of the lines that were appended in dir. It returns an error if there are
// none, if they are of another part or of different kernels, or one is there twice.
func Collect(dir, part string) (Run, error) {
	var r Run
	text, err := os.ReadFile(filepath.Join(dir, linesFile))
	if err != nil {
		return r, err
	}
	known := map[string]bool{}
	for d := json.NewDecoder(bytes.NewReader(text)); ; {
		var e entry
		if err := d.Decode(&e); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return Run{}, fmt.Errorf("%s: %w", dir, err)
		}
		if len(r.Lines) == 0 {
			r.Origin = e.Origin
		}
		e.Date = r.Date // a run may go past midnight
		switch {
		case e.Origin != r.Origin:
			return Run{}, fmt.Errorf("%s: %s was measured on %v, others on %v", dir, e.Key(), e.Origin, r.Origin)
		case known[e.Key()]:
			return Run{}, fmt.Errorf("%s: %s: twice", dir, e.Key())
		case order(e.Group) < 0 || Groups[order(e.Group)].Part != part:
			return Run{}, fmt.Errorf("%s: no group of the part %s", e.Key(), part)
		}
		known[e.Key()] = true
		r.Lines = append(r.Lines, e.Line)
	}
	slices.SortStableFunc(r.Lines, func(a, b Line) int { return order(a.Group) - order(b.Group) })
	return r, nil
}

func order(group string) int {
	return slices.IndexFunc(Groups, func(g Group) bool { return g.Name == group })
}

// Find returns the line of a work on a device, or one without figures if it was not measured.
func (r Run) Find(g Group, w Work, device string) Line {
	l := Line{Group: g.Name, Device: device, Name: w.Name, Beside: w.Beside}
	if i := slices.IndexFunc(r.Lines, func(o Line) bool { return o.Key() == l.Key() }); i >= 0 {
		return r.Lines[i]
	}
	return l
}

// Results holds the runs by their parts.
type Results map[string]Run

// Read reads results from a file. If the file does not exist they are empty.
func Read(file string) (Results, error) {
	all := Results{}
	text, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return all, nil
	} else if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return all, nil
}

// Write writes results to a file for Read, with each Line on a line of its own.
func (all Results) Write(file string) error {
	text, err := json.Marshal(all)
	if err != nil {
		return err
	}
	for _, before := range []string{`{"group"`, `{"kernel"`} {
		text = bytes.ReplaceAll(text, []byte(before), []byte("\n"+before))
	}
	return os.WriteFile(file, append(text, '\n'), 0o644)
}
