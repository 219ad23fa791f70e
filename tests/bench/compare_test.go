package bench

import (
	"fmt"
	"slices"
	"testing"
)

// sample is what one side measured, a figure for each repetition.
type sample []float64

func (s sample) sorted() sample { return slices.Sorted(slices.Values(s)) }
func (s sample) min() float64   { return slices.Min(s) }
func (s sample) max() float64   { return slices.Max(s) }

func (s sample) median() float64 {
	sorted := s.sorted()
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// steady says whether the figures lie within half their median.
func (s sample) steady() bool { return s.max()-s.min() <= s.median()/2 }

func (s sample) String() string {
	return fmt.Sprintf("%.4g / %.4g / %.4g", s.min(), s.median(), s.max())
}

// better is which figures are.
type better bool

const (
	lower  better = false
	higher better = true
)

// comparison is one line of the results.
type comparison struct {
	name, unit string
	better     better
	ours, c    sample
}

// ratio is how much better the median is than C's, and whether it may be told.
func (c comparison) ratio() (float64, bool) {
	r := c.c.median() / c.ours.median()
	if c.better == higher {
		r = 1 / r
	}
	return r, c.ours.steady() && c.c.steady()
}

// report logs the line: minimum, median and maximum of both sides.
func (c comparison) report(t testing.TB) {
	t.Helper()
	told := "too noisy for a ratio"
	if r, ok := c.ratio(); len(c.ours) < 9 {
		told = "too few for a ratio"
	} else if ok {
		told = fmt.Sprintf("ratio %.2f", r)
	}
	t.Logf("%-40s Go %-26v C %-26v %s, %s", c.name, c.ours, c.c, c.unit, told)
}
