package perf

import (
	"fmt"
	"path/filepath"
	"slices"

	gplot "gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
)

// plottable refuses a file before anything is measured.
func plottable(file string) error {
	if file == "" || slices.Contains([]string{".svg", ".png", ".pdf"}, filepath.Ext(file)) {
		return nil
	}
	return fmt.Errorf("plot %s: it must be .svg, .png or .pdf", file)
}

// plot draws bandwidth or latency by size; of one size, how latency is
// distributed.
func plot(file string, results []*result) error {
	p := gplot.New()
	p.Title.Text = fmt.Sprintf("%s %s on %s", results[0].Op, results[0].Mode, results[0].Device)
	p.Y.Min = 0
	p.Legend.Top, p.Legend.Left = true, true
	p.Add(plotter.NewGrid())
	var lines []any // names and points, as plotutil takes them
	switch {
	case results[0].Mode == modeBW:
		p.Y.Label.Text = "MiB/s"
		lines = []any{bySize(results, func(r *result) float64 { return r.Bandwidth.Mebi })}
	case len(results) > 1:
		p.Y.Label.Text = "µs"
		lines = []any{
			"p50", bySize(results, func(r *result) float64 { return r.Latency.P50 }),
			"p99", bySize(results, func(r *result) float64 { return r.Latency.P99 }),
			"p99.9", bySize(results, func(r *result) float64 { return r.Latency.P999 }),
		}
	default:
		p.Y.Label.Text = "µs"
		p.X.Label.Text = "percentile"
		return save(p, file, distribution(results[0]))
	}
	p.X.Label.Text = "bytes"
	if len(results) > 1 { // a logarithmic axis needs a range
		p.X.Scale = gplot.LogScale{}
		p.X.Tick.Marker = gplot.ConstantTicks(ticks(results))
	}
	return save(p, file, lines...)
}

func save(p *gplot.Plot, file string, lines ...any) error {
	for _, l := range lines {
		if points, ok := l.(plotter.XYs); ok && len(points) == 0 {
			return fmt.Errorf("plot %s: nothing arrived", file)
		}
	}
	if err := plotutil.AddLinePoints(p, lines...); err != nil {
		return err
	}
	return p.Save(20*vg.Centimeter, 12*vg.Centimeter, file)
}

func bySize(results []*result, y func(*result) float64) (points plotter.XYs) {
	for _, r := range results {
		if r.Mode == modeBW || r.Latency != nil { // else all was lost
			points = append(points, plotter.XY{X: float64(r.Size), Y: y(r)})
		}
	}
	return points
}

// ticks are at every fourth size.
func ticks(results []*result) (all []gplot.Tick) {
	for i, r := range results {
		t := gplot.Tick{Value: float64(r.Size)}
		if i%4 == 0 {
			t.Label = sizeText(r.Size)
		}
		all = append(all, t)
	}
	return all
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
func distribution(r *result) (points plotter.XYs) {
	for percent := 0.0; percent <= 99.9; percent += 0.1 {
		points = append(points, plotter.XY{X: percent, Y: float64(r.hist.Quantile(percent/100)) / 1e3})
	}
	return points
}
