package bench

import (
	"cmp"
	"flag"
	"os"
	"testing"

	"github.com/goverbs/verbs/tests/bench/record"
)

// sample holds the figures of one side, one for each repetition.
type sample = record.Sample

// better reports whether higher or lower figures are better.
type better bool

const (
	lower  better = false
	higher better = true
)

var counted = flag.Bool("counted", false, "the clock counts instructions, as with LAB_ACCEL=icount")

// comparison is one line of the results.
type comparison struct {
	group      string // one of record.Groups
	device     string // empty if the work needs no device
	name, unit string
	better     better
	beside     string // the owner of the figures c; C if empty
	ours, c    sample
	spread     *record.Spread
}

// report logs the line, and appends it to the records in the folder BENCH_RECORDS, if set.
func (c comparison) report(t testing.TB) {
	t.Helper()
	if *counted {
		c.group += ", " + record.Counted
	}
	group, ok := record.Find(c.group)
	if !ok {
		t.Fatalf("%s: there is no group %q", c.name, c.group)
	}
	line := record.Line{
		Group: c.group, Device: c.device, Name: c.name, Unit: c.unit, Higher: bool(c.better),
		Beside: cmp.Or(c.beside, "C"), Ours: c.ours, C: c.c, Spread: c.spread,
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

// latencies reports the latencies of single operations, which both sides print as "took",
// in nanoseconds: the median and the 99th and 99.9th percentile of each pair.
func (c comparison) latencies(t testing.TB, ours, theirs results) {
	t.Helper()
	c.unit, c.better = "µs", lower
	group := c.group
	for _, p := range []struct {
		group string
		q     float64
	}{{"", 0.5}, {", 99th percentile", 0.99}, {", 99.9th percentile", 0.999}} {
		at := func(r result) float64 { return r["took"].Quantile(p.q) / 1e3 }
		c.group, c.ours, c.c = group+p.group, ours.each(at), theirs.each(at)
		if p.q == 0.5 {
			c.spread = &record.Spread{Ours: record.NewHistogram(ours.all("took")), C: record.NewHistogram(theirs.all("took"))}
		} else {
			c.spread = nil
		}
		c.report(t)
	}
}
