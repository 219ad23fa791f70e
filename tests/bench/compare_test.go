package bench

import (
	"flag"
	"os"
	"testing"

	"github.com/goverbs/verbs/tests/bench/record"
)

// sample is what one side measured, a figure for each repetition.
type sample = record.Sample

// better is which figures are.
type better bool

const (
	lower  better = false
	higher better = true
)

var counted = flag.Bool("counted", false, "the clock counts instructions, as with LAB_ACCEL=icount")

// comparison is one line of the results.
type comparison struct {
	group      string // one of record.Groups
	device     string // none: the work has nothing to do with one
	name, unit string
	better     better
	target     float64 // least ratio that meets it: the group's, if zero
	beside     string  // whose figures c has: C's, if empty
	ours, c    sample
}

// report logs the line: minimum, median and maximum of both sides. With a
// folder in BENCH_RECORDS it is also kept there.
func (c comparison) report(t testing.TB) {
	t.Helper()
	if *counted {
		c.group += ", " + record.Counted
	}
	group, ok := record.Find(c.group)
	if !ok {
		t.Fatalf("%s: there is no group %q", c.name, c.group)
	}
	if group.Unit != "" && group.Unit != c.unit {
		t.Fatalf("%s: %s, the group wants %s", c.name, c.unit, group.Unit)
	}
	line := record.Line{
		Group: c.group, Device: c.device, Name: c.name, Unit: c.unit, Higher: bool(c.better),
		Beside: c.beside, Target: c.target, Slack: group.Slack, Ours: c.ours, C: c.c,
	}
	if line.Beside == "" {
		line.Beside = "C"
	}
	if line.Target == 0 {
		line.Target = group.Target
	}
	t.Log(line)
	if dir := os.Getenv("BENCH_RECORDS"); dir != "" {
		if !group.Has(line) {
			t.Errorf("%s: it is not among the lines of the group %q", c.name, c.group)
		}
		if err := record.Append(dir, line); err != nil {
			t.Error(err)
		}
	}
}
