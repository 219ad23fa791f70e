// Package scenarios repeats the scenarios of rdma-core's own tests (tests/test_*.py there) on every
// device of the lab: those between two QPs are in package internal/scenario, with their names there,
// and those of one process here, of which kernels must refuse what they lack.
package scenarios

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/endpoint"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

// test is one of rdma-core's tests that needs no connection.
type test struct {
	name string // "file/test"
	// works reports whether it must work; if not, run must be refused.
	works func(e *env) bool
	run   func(e *env) error
}

// The following functions report where scenarios work. with is for features that only some
// kernels have: it probes the device.
func everywhere(*env) bool { return true }
func nowhere(*env) bool    { return false }
func with(f uverbs.Feature) func(*env) bool {
	return func(e *env) bool { return e.has(f) }
}

var tests = [][]test{addr, cq, device, mr, pd, qp, qpEx, missing}

// TestObjects runs what needs no connection.
func TestObjects(t *testing.T) {
	labtest.RequireBoth(t)
	labtest.Each(t, func(t *testing.T, dev string) {
		for _, group := range tests {
			for _, s := range group {
				t.Run(s.name, func(t *testing.T) { s.test(newEnv(t, dev)) })
			}
		}
	})
}

// TestFeatures compares what a device supports with the table of docs/kernels.md. Kernels must
// refuse what it leaves empty.
func TestFeatures(t *testing.T) {
	labtest.RequireKernel(t)
	yes, columns := featureTable(t)
	major, rest, _ := strings.Cut(os.Getenv("VERBS_LAB"), ".")
	minor, _, _ := strings.Cut(rest, ".")
	labtest.Each(t, func(t *testing.T, dev string) {
		ctx := labtest.OpenDevice(t, dev)
		column := major + "." + minor + " " + ctx.Driver()
		if !slices.Contains(columns, column) {
			t.Skipf("docs/kernels.md has no column %s, only %q", column, columns)
		}
		for _, f := range uverbs.Features() {
			switch err := ctx.Probe(f); {
			case yes[column+" "+string(f)] && err != nil:
				t.Errorf("%s: %v", f, err)
			case !yes[column+" "+string(f)] && !errors.Is(err, errors.ErrUnsupported):
				t.Errorf("%s: %v, want a refusal that matches errors.ErrUnsupported", f, err)
			}
		}
	})
}

// featureTable reads the table of features in docs/kernels.md: which cells are "yes", by column and
// feature, and the columns. The heading "6.18, 7.3 rxe" stands for two columns.
func featureTable(t *testing.T) (yes map[string]bool, columns []string) {
	t.Helper()
	yes = map[string]bool{}
	var headings [][]string
	_, text, _ := strings.Cut(string(labtest.Must(os.ReadFile("../../docs/kernels.md"))(t)), "\n| name |")
	for i, line := range strings.Split(text, "\n") {
		cells := strings.Split(strings.Trim(line, "| "), "|")
		for j := range cells {
			cells[j] = strings.TrimSpace(cells[j])
		}
		switch {
		case i == 0:
			for _, cell := range cells {
				space := strings.LastIndexByte(cell, ' ')
				var names []string
				for kernel := range strings.SplitSeq(cell[:max(space, 0)], ", ") {
					names = append(names, kernel+cell[max(space, 0):])
				}
				headings, columns = append(headings, names), append(columns, names...)
			}
		case line == "":
			return yes, columns
		case i > 1 && !slices.Contains(uverbs.Features(), uverbs.Feature(cells[0])):
			t.Errorf("docs/kernels.md: no feature %q", cells[0])
		case i > 1:
			for j, cell := range cells[1:] {
				for _, column := range headings[j] {
					yes[column+" "+cells[0]] = cell == "yes"
				}
			}
		}
	}
	t.Fatal("docs/kernels.md has no table of features")
	return nil, nil
}

func (s test) test(e *env) {
	works := s.works(e)
	switch err := s.run(e); {
	case works && err != nil:
		e.t.Error(err)
	case !works && !errors.Is(err, errors.ErrUnsupported):
		e.t.Errorf("%v, want a refusal that matches errors.ErrUnsupported", err)
	}
}

// env is the environment of a scenario.
type env struct {
	t    *testing.T
	dev  string
	ctx  *uverbs.Context
	attr *verbs.DeviceAttr
}

func newEnv(t *testing.T, dev string) *env {
	e := &env{t: t, dev: dev, ctx: labtest.OpenDevice(t, dev)}
	e.attr = labtest.Must(e.ctx.QueryDevice())(t)
	return e
}

func (e *env) has(f uverbs.Feature) bool { return e.ctx.Probe(f) == nil }

func (e *env) pd() *uverbs.PD {
	e.t.Helper()
	pd := labtest.Made(e.ctx.AllocPD())(e.t)
	return pd
}

// access returns all access rights that the device supports for regions.
func (e *env) access() verbs.Access {
	return endpoint.RemoteAccess(e.ctx)
}

// refused returns an error unless err matches one of want.
func refused(err error, want ...error) error {
	for _, w := range want {
		if errors.Is(err, w) {
			return nil
		}
	}
	return fmt.Errorf("%v, want %v", err, want)
}

// probe returns the scenario of a feature that the kernel refuses.
func probe(f uverbs.Feature) func(*env) error {
	return func(e *env) error { return e.ctx.Probe(f) }
}
