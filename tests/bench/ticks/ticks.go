// Package ticks measures calls in user space, by the processor's counter.
package ticks

import (
	"fmt"
	"io"
	"runtime"
	"slices"
	"time"

	"github.com/goverbs/verbs/lab/tsc"
)

// Meter has the times of calls.
type Meter struct {
	Work    int       // calls, requests or completions of a figure
	all     []*series // in the order of the first use
	perTick float64   // ns
}

// series holds the times of one kind of call, a figure for each round.
type series struct {
	name  string
	batch int
	ticks []float64 // for each request
}

// Add adds a figure: the time since start, divided by the amount of work.
func (t *Meter) Add(name string, batch int, start uint64) {
	ticks := float64(tsc.Read()-start) / float64(t.Work)
	i := slices.IndexFunc(t.all, func(s *series) bool { return s.name == name && s.batch == batch })
	if i < 0 {
		i, t.all = len(t.all), append(t.all, &series{name, batch, make([]float64, 0, 4096)})
	}
	t.all[i].ticks = append(t.all[i].ticks, ticks)
}

// Measure runs rounds, and returns how many allocations each makes.
func (t *Meter) Measure(rounds int, round func(i int) error) (allocs uint64, err error) {
	var before, after runtime.MemStats
	for _, s := range t.all {
		s.ticks = s.ticks[:0]
	}
	start, ticks := time.Now(), tsc.Read()
	for i := range rounds {
		if i == 1 { // one-time allocations are done
			runtime.ReadMemStats(&before)
		}
		if err := round(i); err != nil {
			return 0, fmt.Errorf("round %d: %w", i, err)
		}
	}
	t.perTick = float64(time.Since(start).Nanoseconds()) / float64(tsc.Read()-ticks)
	runtime.ReadMemStats(&after)
	return (after.Mallocs - before.Mallocs) / uint64(rounds), nil
}

// Print prints the medians of so many series, in ns.
func (t *Meter) Print(out io.Writer, want int) error {
	if len(t.all) != want {
		return fmt.Errorf("%d figures, not %d", len(t.all), want)
	}
	for _, s := range t.all {
		slices.Sort(s.ticks)
		fmt.Fprintf(out, "%s_%d %.3f\n", s.name, s.batch, s.ticks[len(s.ticks)/2]*t.perTick)
	}
	return nil
}
