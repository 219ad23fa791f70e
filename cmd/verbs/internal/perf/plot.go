package perf

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
)

// plottable refuses a file before anything is measured.
func plottable(file string) error {
	if file == "" || filepath.Ext(file) == ".svg" {
		return nil
	}
	return fmt.Errorf("plot %s: it must be .svg", file)
}

// plot draws bandwidth or latency by size; of one size, how latency is
// distributed.
func plot(file string, results []*result) error {
	c := chart{title: fmt.Sprintf("%s %s on %s", results[0].Op, results[0].Mode, results[0].Device)}
	switch {
	case results[0].Mode == modeBW:
		c.y.label = "MiB/s"
		c.lines = []line{bySize("", results, func(r *result) float64 { return r.Bandwidth.Mebi })}
		c.x = sizeAxis(results)
	case len(results) > 1:
		c.y.label = "µs"
		c.lines = []line{
			bySize("p50", results, func(r *result) float64 { return r.Latency.P50 }),
			bySize("p99", results, func(r *result) float64 { return r.Latency.P99 }),
			bySize("p99.9", results, func(r *result) float64 { return r.Latency.P999 }),
		}
		c.x = sizeAxis(results)
	default:
		c.y.label = "µs"
		c.lines = []line{distribution(results[0])}
		c.x = linearAxis("percentile", 100)
	}
	var top float64
	for _, l := range c.lines {
		if len(l.points) == 0 {
			return fmt.Errorf("plot %s: nothing arrived", file)
		}
		for _, p := range l.points {
			top = max(top, p.y)
		}
	}
	c.y = linearAxis(c.y.label, top)
	return os.WriteFile(file, c.svg(), 0o644)
}

func bySize(name string, results []*result, y func(*result) float64) line {
	l := line{name: name}
	for _, r := range results {
		if r.Mode == modeBW || r.Latency != nil { // else all was lost
			l.points = append(l.points, point{sizeAt(r.Size), y(r)})
		}
	}
	return l
}

// sizeAt is where a size is on its axis, which is logarithmic.
func sizeAt(n int) float64 { return math.Log2(float64(max(n, 1))) }

// sizeAxis names every fourth size.
func sizeAxis(results []*result) axis {
	a := axis{label: "bytes", from: sizeAt(results[0].Size), to: sizeAt(results[len(results)-1].Size)}
	if a.from == a.to {
		a.from, a.to = a.from-1, a.to+1
	}
	for i := 0; i < len(results); i += 4 {
		a.ticks = append(a.ticks, tick{sizeAt(results[i].Size), sizeText(results[i].Size)})
	}
	return a
}

func sizeText(n int) string {
	switch {
	case n >= 1<<20 && n%(1<<20) == 0:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 1<<10 && n%(1<<10) == 0:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprint(n)
}

// distribution is latency by percentile.
func distribution(r *result) (l line) {
	for percent := 0.0; percent <= 99.9; percent += 0.1 {
		l.points = append(l.points, point{percent, float64(r.hist.Quantile(percent/100)) / 1e3})
	}
	return l
}
