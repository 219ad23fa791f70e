package samples

import (
	"fmt"
	"maps"
	"slices"
)

// series is a value that must not grow while the load stays the same.
type series struct {
	name  string
	unit  string
	slack float64 // how much it may grow in any case
	of    func(*Sample) float64
}

// watched are the series that are checked. The memory of processes and of the kernel varies
// with the data that the current connections transfer; the numbers of files and other objects
// vary with the number of connections.
var watched = []series{
	{"RSS of the client", "KiB", 3 << 10, func(s *Sample) float64 { return float64(s.Processes["client"].RSS) }},
	{"RSS of the server", "KiB", 3 << 10, func(s *Sample) float64 { return float64(s.Processes["server"].RSS) }},
	{"pinned memory of the client", "KiB", 3 << 10, func(s *Sample) float64 { return float64(s.Processes["client"].Pinned) }},
	{"pinned memory of the server", "KiB", 3 << 10, func(s *Sample) float64 { return float64(s.Processes["server"].Pinned) }},
	{"unreclaimable slab memory", "KiB", 2 << 10, func(s *Sample) float64 { return float64(s.Kernel["SUnreclaim"]) }},
	{"files of the client", "", 10, func(s *Sample) float64 { return float64(s.Processes["client"].Files) }},
	{"files of the server", "", 10, func(s *Sample) float64 { return float64(s.Processes["server"].Files) }},
	{"maps of the client", "", 30, func(s *Sample) float64 { return float64(s.Processes["client"].Maps) }},
	{"maps of the server", "", 30, func(s *Sample) float64 { return float64(s.Processes["server"].Maps) }},
	{"goroutines of the client", "", 10, func(s *Sample) float64 { return float64(s.Processes["client"].Goroutines) }},
	{"goroutines of the server", "", 10, func(s *Sample) float64 { return float64(s.Processes["server"].Goroutines) }},
	{"threads of the client", "", 5, func(s *Sample) float64 { return float64(s.Processes["client"].Threads) }},
	{"threads of the server", "", 5, func(s *Sample) float64 { return float64(s.Processes["server"].Threads) }},
	{"QPs", "", 10, func(s *Sample) float64 { return float64(s.Kernel["qp"]) }},
	{"CQs", "", 10, func(s *Sample) float64 { return float64(s.Kernel["cq"]) }},
	{"MRs", "", 20, func(s *Sample) float64 { return float64(s.Kernel["mr"]) }},
	{"PDs", "", 10, func(s *Sample) float64 { return float64(s.Kernel["pd"]) }},
	{"QPs in user space", "", 10, func(s *Sample) float64 { return float64(s.Kernel["soft qp"]) }},
	{"CQs in user space", "", 10, func(s *Sample) float64 { return float64(s.Kernel["soft cq"]) }},
	{"MRs in user space", "", 20, func(s *Sample) float64 { return float64(s.Kernel["soft mr"]) }},
	{"address handles in user space", "", 20, func(s *Sample) float64 { return float64(s.Kernel["soft ah"]) }},
	{"CM IDs", "", 20, func(s *Sample) float64 { return float64(s.Kernel["cm_id"]) }},
}

// Trend describes the course of a series in the last two thirds of a run: in the first third
// heaps and pools reach their size.
type Trend struct {
	Name, Unit   string
	Middle, Last float64 // medians of the thirds
	PerHour      float64 // slope of the line that fits best
	Bound        float64 // the largest Last allowed
}

// Grows reports whether the trend is that of a leak: the median of the last third exceeds
// that of the middle third by more than a twentieth and the slack; or the line that fits
// both rises during them by more than twice as much, which finds a leak that large swings
// hide.
func (t Trend) Grows(hours float64) bool {
	return t.Last > t.Bound || t.PerHour*hours > 2*(t.Bound-t.Middle)
}

// enough is the number of samples that trends require.
const enough = 60

// Trends returns the trends of all series, or nothing if the run was short. If the run became
// faster, as the machine had less other work, there may be more connections at a time, and more
// objects: those whose end was lost stay for a minute.
func (r *Run) Trends() (all []Trend) {
	n := len(r.Samples)
	if n < enough {
		return nil
	}
	middle, last := r.Samples[n/3:2*n/3], r.Samples[2*n/3:]
	faster := 1.0
	if before := rate(middle); before > 0 {
		faster = max(1, rate(last)/before)
	}
	for _, s := range watched {
		t := Trend{Name: s.name, Unit: s.unit, Middle: median(middle, s.of), Last: median(last, s.of)}
		factor := 1.05
		if s.unit == "" { // a number of objects
			factor *= faster
		}
		t.Bound = t.Middle*factor + s.slack
		t.PerHour = slope(r.Samples[n/3:], s.of) * 3600
		if t.Last > 0 || t.PerHour != 0 { // the run has any
			all = append(all, t)
		}
	}
	return all
}

// rate returns the rounds per second.
func rate(samples []Sample) float64 {
	first, last := samples[0], samples[len(samples)-1]
	rounds := 0.0
	for name, l := range last.Layers {
		rounds += float64(l.Rounds - first.Layers[name].Rounds)
	}
	return rounds / (last.At - first.At)
}

func median(samples []Sample, of func(*Sample) float64) float64 {
	var values []float64
	for i := range samples {
		values = append(values, of(&samples[i]))
	}
	slices.Sort(values)
	return values[len(values)/2]
}

// slope returns the slope of the least-squares line, per second.
func slope(samples []Sample, of func(*Sample) float64) float64 {
	var x, y, xx, xy float64
	n := float64(len(samples))
	for i := range samples {
		at, v := samples[i].At-samples[0].At, of(&samples[i])
		x, y, xx, xy = x+at, y+v, xx+at*at, xy+at*v
	}
	if d := n*xx - x*x; d > 0 {
		return (n*xy - x*y) / d
	}
	return 0
}

// Verdict returns the reasons why the run failed, or nothing if it passed.
func (r *Run) Verdict() (reasons []string) {
	if r.End == nil {
		reasons = append(reasons, "the run was cut off: it has no end")
	} else {
		reasons = append(reasons, r.End.Failures...)
		for _, l := range r.End.Leaks {
			reasons = append(reasons, "left after everything was closed: "+l)
		}
		if r.End.At < r.Start.Duration.Seconds() {
			reasons = append(reasons, fmt.Sprintf("it ended after %v of %v", r.Took(), r.Start.Duration))
		}
	}
	for _, name := range r.Start.Layers {
		last := Layer{}
		if s := r.Last(); s != nil {
			last = s.Layers[name]
		}
		if last.Rounds == 0 || last.Connections == 0 {
			reasons = append(reasons, fmt.Sprintf("layer %s did nothing: %d rounds, %d connections that ended well", name, last.Rounds, last.Connections))
		}
		if last.Rest > r.Start.Stall.Seconds() {
			reasons = append(reasons, fmt.Sprintf("layer %s made no progress for %.1f s", name, last.Rest))
		}
	}
	if n := len(r.Samples); n >= enough {
		hours := (r.Samples[n-1].At - r.Samples[n/3].At) / 3600
		for _, t := range r.Trends() {
			if t.Grows(hours) {
				reasons = append(reasons, fmt.Sprintf("%s: %.0f in the middle third, %.0f in the last, %+.0f an hour (may be %.0f)", t.Name, t.Middle, t.Last, t.PerHour, t.Bound))
			}
		}
	}
	return reasons
}

// Names returns the sorted keys of a map.
func Names[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
