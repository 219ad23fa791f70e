package record

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
)

// Run holds all measurements of one part, from one run.
type Run struct {
	Origin
	Host  string `json:"host"`  // the processor of the machine on which the kernel runs
	RDMA  string `json:"rdma"`  // version of the C libraries
	Lines []Line `json:"lines"` // in the order of Groups
}

// Collect returns a run of the lines that were appended in dir. It returns an error if lines
// are of another part, of different kernels, or of the same name. Without lines the run is
// empty.
func Collect(dir, part string) (Run, error) {
	var r Run
	text, err := os.ReadFile(filepath.Join(dir, linesFile))
	if errors.Is(err, os.ErrNotExist) {
		return r, nil
	} else if err != nil {
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
		if e.Origin != r.Origin {
			return Run{}, fmt.Errorf("%s: %s was measured on %v, others on %v", dir, e.Name, e.Origin, r.Origin)
		}
		if known[e.Key()] {
			return Run{}, fmt.Errorf("%s: %s: twice", dir, e.Key())
		}
		known[e.Key()] = true
		r.Lines = append(r.Lines, e.Line)
	}
	slices.SortStableFunc(r.Lines, func(a, b Line) int { return order(a.Group) - order(b.Group) })
	return r, r.check(part)
}

// check returns an error if a line does not belong to the part.
func (r Run) check(part string) error {
	for _, l := range r.Lines {
		if g, ok := Find(l.Group); !ok || g.Part != part {
			return fmt.Errorf("%s: no group of the part %s", l.Key(), part)
		}
	}
	return nil
}

func order(group string) int {
	return slices.IndexFunc(Groups, func(g Group) bool { return g.Name == group })
}

// Key returns a string that identifies the line.
func (l Line) Key() string { return l.Group + "/" + l.Device + "/" + l.Name }

// Read reads a run from a file. If the file does not exist the run is empty.
func Read(file, part string) (Run, error) {
	var r Run
	text, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return r, nil
	} else if err != nil {
		return r, err
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return Run{}, fmt.Errorf("%s: %w", file, err)
	}
	return r, r.check(part)
}

// Text returns the run as text for Read, with each Line on a line of its own.
func (r Run) Text() ([]byte, error) {
	lines := r.Lines
	r.Lines = []Line{}
	head, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	text := bytes.TrimSuffix(head, []byte("]}"))
	for i, l := range lines {
		line, err := json.Marshal(l)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", l.Key(), err)
		}
		if i > 0 {
			text = append(text, ',')
		}
		text = append(append(text, '\n'), line...)
	}
	return append(text, "\n]}\n"...), nil
}

// Of returns the lines of a group, in the order of the group, without figures if not
// measured, and then lines with its name that do not belong to it.
func (r Run) Of(g Group) []Line {
	lines := g.Expected()
	for _, l := range r.Lines {
		if l.Group != g.Name {
			continue
		}
		if i := slices.IndexFunc(lines, func(o Line) bool { return o.Key() == l.Key() }); i >= 0 {
			lines[i] = l
		} else {
			lines = append(lines, l)
		}
	}
	return lines
}
