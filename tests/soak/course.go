package soak

import (
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// course is the course of a run, and decides whether it was good.
type course struct {
	layers   []string      // names
	duration time.Duration // requested
	stall    time.Duration // how long a layer may make no progress
	last     sample
	points   []point // of all samples
	took     time.Duration
	failures []string // of the load
	leaks    []string // objects left after all was closed
}

// sample is the state at a point in time.
type sample struct {
	at        float64 // seconds since the start
	layers    map[string]work
	processes map[string]process
	kernel    map[string]int // objects of the device, and KiB of memory
}

// work counts a layer's work since the start.
type work struct {
	Rounds, Bytes uint64
	Connections   uint64  // that have ended without an error
	Rest          float64 // longest time without any progress, in seconds
}

// process holds the resources of a process.
type process struct {
	RSS, Heap, Pinned                int // KiB; Heap is what the last collection left
	Files, Maps, Goroutines, Threads int
}

func (p process) unpinned() float64 { return float64(p.RSS - p.Pinned) }

// point is what is kept of a sample: the process that takes thousands of them is itself watched.
type point struct {
	at     float64
	rounds float64   // of all layers
	values []float64 // of watched
}

// add adds a sample.
func (c *course) add(s sample) {
	p := point{at: s.at, values: make([]float64, len(watched))}
	for _, l := range s.layers {
		p.rounds += float64(l.Rounds)
	}
	for i, w := range watched {
		p.values[i] = w.of(&s)
	}
	c.last, c.points = s, append(c.points, p)
}

// table returns tables of what the layers did, and of the course of what is watched.
func (c *course) table() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "layer\tconnections\trounds\tMiB\tlongest rest\t")
	for _, name := range c.layers {
		l := c.last.layers[name]
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%.1f s\t\n", name, l.Connections, l.Rounds, l.Bytes>>20, l.Rest)
	}
	w.Flush()
	fmt.Fprintln(w, "\tmiddle third\tlast\tan hour\tmay be\t")
	for _, t := range c.trends() {
		fmt.Fprintf(w, "%s\t%.0f\t%.0f\t%+.0f\t%.0f\t\n", t.name, t.middle, t.last, t.perHour, t.bound)
	}
	w.Flush()
	return b.String()
}

// series is a value that must not grow while the load stays the same.
type series struct {
	name  string
	unit  string
	slack float64 // how much it may grow in any case
	of    func(*sample) float64
}

// watched are the series that are checked. The memory of processes and of the kernel varies
// with the data that the current connections transfer; the numbers of files and other objects, and
// pinned memory, which RSS counts as well, vary with the number of connections.
var watched = []series{
	{"RSS of the client that is not pinned", "KiB", 3 << 10, func(s *sample) float64 { return s.processes["client"].unpinned() }},
	{"RSS of the server that is not pinned", "KiB", 3 << 10, func(s *sample) float64 { return s.processes["server"].unpinned() }},
	{"heap of the client", "KiB", 3 << 10, func(s *sample) float64 { return float64(s.processes["client"].Heap) }},
	{"heap of the server", "KiB", 3 << 10, func(s *sample) float64 { return float64(s.processes["server"].Heap) }},
	{"pinned memory of the client", "KiB", 3 << 10, func(s *sample) float64 { return float64(s.processes["client"].Pinned) }},
	{"pinned memory of the server", "KiB", 3 << 10, func(s *sample) float64 { return float64(s.processes["server"].Pinned) }},
	{"unreclaimable slab memory", "KiB", 2 << 10, func(s *sample) float64 { return float64(s.kernel["SUnreclaim"]) }},
	{"files of the client", "", 10, func(s *sample) float64 { return float64(s.processes["client"].Files) }},
	{"files of the server", "", 10, func(s *sample) float64 { return float64(s.processes["server"].Files) }},
	{"maps of the client", "", 30, func(s *sample) float64 { return float64(s.processes["client"].Maps) }},
	{"maps of the server", "", 30, func(s *sample) float64 { return float64(s.processes["server"].Maps) }},
	{"goroutines of the client", "", 10, func(s *sample) float64 { return float64(s.processes["client"].Goroutines) }},
	{"goroutines of the server", "", 10, func(s *sample) float64 { return float64(s.processes["server"].Goroutines) }},
	{"threads of the client", "", 5, func(s *sample) float64 { return float64(s.processes["client"].Threads) }},
	{"threads of the server", "", 5, func(s *sample) float64 { return float64(s.processes["server"].Threads) }},
	{"QPs", "", 10, func(s *sample) float64 { return float64(s.kernel["qp"]) }},
	{"CQs", "", 10, func(s *sample) float64 { return float64(s.kernel["cq"]) }},
	{"MRs", "", 20, func(s *sample) float64 { return float64(s.kernel["mr"]) }},
	{"PDs", "", 10, func(s *sample) float64 { return float64(s.kernel["pd"]) }},
	{"QPs in user space", "", 10, func(s *sample) float64 { return float64(s.kernel["soft qp"]) }},
	{"CQs in user space", "", 10, func(s *sample) float64 { return float64(s.kernel["soft cq"]) }},
	{"MRs in user space", "", 20, func(s *sample) float64 { return float64(s.kernel["soft mr"]) }},
	{"address handles in user space", "", 20, func(s *sample) float64 { return float64(s.kernel["soft ah"]) }},
	{"CM IDs", "", 20, func(s *sample) float64 { return float64(s.kernel["cm_id"]) }},
}

// trend describes the course of a series in the last two thirds of a run: in the first third
// heaps and pools reach their size.
type trend struct {
	name         string
	middle, last float64 // levels of the thirds
	perHour      float64 // slope of the line that fits best
	bound        float64 // the largest last allowed
}

// grows reports whether the trend is that of a leak: the level of the last third exceeds
// that of the middle third by more than a twentieth and the slack; or the line that fits
// both rises during them by more than twice as much, which finds a leak that large swings
// hide.
func (t trend) grows(hours float64) bool {
	return t.last > t.bound || t.perHour*hours > 2*(t.bound-t.middle)
}

// enough is the number of samples that trends require.
const enough = 60

// trends returns the trends of all series, or nothing if the run was short. If the run became
// faster, as the machine had less other work, there may be more connections at a time, and more
// objects: those whose end was lost stay for a minute.
func (c *course) trends() (all []trend) {
	n := len(c.points)
	if n < enough {
		return nil
	}
	middle, last := c.points[n/3:2*n/3], c.points[2*n/3:]
	faster := 1.0
	if before := rate(middle); before > 0 {
		faster = max(1, rate(last)/before)
	}
	for i, s := range watched {
		t := trend{name: s.name, middle: level(middle, i), last: level(last, i)}
		factor := 1.05
		if s.unit == "" { // a number of objects
			factor *= faster
		}
		t.bound = t.middle*factor + s.slack
		t.perHour = slope(c.points[n/3:], i) * 3600
		all = append(all, t)
	}
	return all
}

// rate returns the rounds per second.
func rate(points []point) float64 {
	first, last := points[0], points[len(points)-1]
	return (last.rounds - first.rounds) / (last.at - first.at)
}

// level returns the median of a series, which is the i-th watched, or the lower quartile of a number of
// objects: where connections last longer, as the machine is busy, there are more at a time, but what
// has leaked is always there.
func level(points []point, i int) float64 {
	var values []float64
	for _, p := range points {
		values = append(values, p.values[i])
	}
	slices.Sort(values)
	if watched[i].unit == "" {
		return values[len(values)/4]
	}
	return values[len(values)/2]
}

// slope returns the slope of the least-squares line, per second.
func slope(points []point, i int) float64 {
	var x, y, xx, xy float64
	n := float64(len(points))
	for _, p := range points {
		at, v := p.at-points[0].at, p.values[i]
		x, y, xx, xy = x+at, y+v, xx+at*at, xy+at*v
	}
	if d := n*xx - x*x; d > 0 {
		return (n*xy - x*y) / d
	}
	return 0
}

// verdict returns the reasons why the run failed, or nothing if it passed.
func (c *course) verdict() (reasons []string) {
	reasons = append(reasons, c.failures...)
	for _, l := range c.leaks {
		reasons = append(reasons, "left after everything was closed: "+l)
	}
	if c.took < c.duration {
		reasons = append(reasons, fmt.Sprintf("it ended after %v of %v", c.took, c.duration))
	}
	for _, name := range c.layers {
		last := c.last.layers[name]
		if last.Rounds == 0 || last.Connections == 0 {
			reasons = append(reasons, fmt.Sprintf("layer %s did nothing: %d rounds, %d connections that ended well", name, last.Rounds, last.Connections))
		}
		if last.Rest > c.stall.Seconds() {
			reasons = append(reasons, fmt.Sprintf("layer %s made no progress for %.1f s", name, last.Rest))
		}
	}
	if n := len(c.points); n >= enough {
		hours := (c.points[n-1].at - c.points[n/3].at) / 3600
		for _, t := range c.trends() {
			if t.grows(hours) {
				reasons = append(reasons, fmt.Sprintf("%s: %.0f in the middle third, %.0f in the last, %+.0f an hour (may be %.0f)", t.name, t.middle, t.last, t.perHour, t.bound))
			}
		}
	}
	return reasons
}
