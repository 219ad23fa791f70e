package main

import (
	"errors"
	"os"

	gplot "gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/goverbs/verbs/tests/soak/samples"
)

// curve is a value of each sample.
type curve struct {
	name string
	of   func(*samples.Sample) float64
}

// both returns the curves of both processes.
func both(name string, of func(samples.Process) int) (all []curve) {
	for _, who := range []string{"client", "server"} {
		all = append(all, curve{name + " of the " + who, func(s *samples.Sample) float64 { return float64(of(s.Processes[who])) }})
	}
	return all
}

func kernel(names ...string) (all []curve) {
	for _, n := range names {
		all = append(all, curve{n, func(s *samples.Sample) float64 { return float64(s.Kernel[n]) }})
	}
	return all
}

// objects returns the kinds of objects that a run has.
func objects(run *samples.Run) []string {
	kinds := []string{"qp", "cq", "mr", "pd", "cm_id"}
	if _, ok := run.Samples[0].Kernel["soft qp"]; ok {
		kinds = append(kinds, "soft qp", "soft cq", "soft mr")
	}
	return kinds
}

func scaled(all []curve, by float64) []curve {
	for i, c := range all {
		all[i].of = func(s *samples.Sample) float64 { return c.of(s) * by }
	}
	return all
}

// rates returns what the layers transferred between a sample and the one before
// it, in MiB/s. Churn transfers nothing.
func rates(run *samples.Run) (lines []any) {
	for _, name := range run.Start.Layers {
		var points plotter.XYs
		for i := 1; i < len(run.Samples); i++ {
			a, b := &run.Samples[i-1], &run.Samples[i]
			if b.At > a.At {
				points = append(points, plotter.XY{X: b.At / 60, Y: mib(b.Layers[name].Bytes-a.Layers[name].Bytes) / (b.At - a.At)})
			}
		}
		lines = append(lines, name, points)
	}
	return lines
}

// over returns curves over time.
func over(run *samples.Run, curves []curve) (lines []any) {
	for _, c := range curves {
		var points plotter.XYs
		for i := range run.Samples {
			points = append(points, plotter.XY{X: run.Samples[i].At / 60, Y: c.of(&run.Samples[i])})
		}
		lines = append(lines, c.name, points)
	}
	return lines
}

func panel(title, unit string, lines []any) (*gplot.Plot, error) {
	p := gplot.New()
	p.Title.Text, p.Y.Label.Text, p.X.Label.Text = title, unit, "minutes"
	p.Y.Min = 0
	p.Legend.Top, p.Legend.Left = true, true
	p.Add(plotter.NewGrid())
	err := plotutil.AddLines(p, lines...)
	p.Y.Max *= 1.6 // for the legend
	return p, err
}

// plot draws the course of a run, in panels one above the other.
func plot(file string, run *samples.Run) error {
	memory := append(both("RSS", func(p samples.Process) int { return p.RSS }), both("pinned", func(p samples.Process) int { return p.Pinned })...)
	memory = append(memory, both("Go heap", func(p samples.Process) int { return p.Heap })...)
	memory = append(memory, kernel("SUnreclaim")...)
	numbers := append(both("files", func(p samples.Process) int { return p.Files }), both("goroutines", func(p samples.Process) int { return p.Goroutines })...)
	numbers = append(numbers, both("threads", func(p samples.Process) int { return p.Threads })...)
	var panels [][]*gplot.Plot
	for _, it := range []struct {
		title, unit string
		lines       []any
	}{
		{"payload", "MiB/s", rates(run)},
		{"memory", "MiB", over(run, scaled(memory, 1.0/1024))},
		{"processes", "", over(run, numbers)},
		{"objects of the device", "", over(run, kernel(objects(run)...))},
	} {
		p, err := panel(it.title, it.unit, it.lines)
		if err != nil {
			return err
		}
		panels = append(panels, []*gplot.Plot{p})
	}
	width, height := 24*vg.Centimeter, vg.Length(len(panels))*8*vg.Centimeter
	canvas := vgsvg.New(width, height)
	tiles := draw.Tiles{Rows: len(panels), Cols: 1, PadY: vg.Centimeter / 2, PadTop: vg.Centimeter / 4, PadRight: vg.Centimeter / 2}
	for i, row := range gplot.Align(panels, tiles, draw.New(canvas)) {
		panels[i][0].Draw(row[0])
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	_, err = canvas.WriteTo(f)
	return errors.Join(err, f.Close())
}
