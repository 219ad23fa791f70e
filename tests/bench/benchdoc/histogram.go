package main

import (
	"fmt"
	"image/color"
	"slices"
	"strings"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/goverbs/verbs/tests/bench/record"
)

const (
	panelHeight = 4.2 * vg.Centimeter
	rarest      = 1e-5 // part of the operations
)

// histograms draws the distribution of the single operations of a group, with a panel for
// each line: the drivers are side by side.
func histograms(g record.Group, lines []record.Line) ([]byte, error) {
	lines = slices.DeleteFunc(slices.Clone(lines), func(l record.Line) bool { return l.Spread == nil })
	if len(lines) == 0 {
		return nil, nil
	}
	var names, devices []string
	lo, hi := lines[0].Spread.Ours.First, 0
	for _, l := range lines {
		if !slices.Contains(names, l.Name) {
			names = append(names, l.Name)
		}
		if !slices.Contains(devices, l.Device) {
			devices = append(devices, l.Device)
		}
		for _, h := range []record.Histogram{l.Spread.Ours, l.Spread.C} {
			lo, hi = min(lo, h.First), max(hi, h.First+len(h.Counts))
		}
	}
	return svg(g.Work+": part of the operations by their time", vg.Length(len(names))*panelHeight, func(c draw.Canvas) {
		legend(c, []key{{"Go", mark{Color: blue}}, {lines[0].Beside, mark{Color: vermillion}}})
		grid := draw.Tiles{Cols: len(devices), Rows: len(names), PadX: 4 * margin, PadY: margin}
		for _, l := range lines {
			tile := grid.At(c, slices.Index(devices, l.Device), slices.Index(names, l.Name))
			panel(l, record.Bound(lo), record.Bound(hi)).Draw(tile)
		}
	})
}

// panel returns the plot of one line.
func panel(l record.Line, lo, hi float64) *plot.Plot {
	p := plot.New()
	p.Title.Text = strings.TrimPrefix(driver(l.Device)+": "+l.Name, ": ")
	p.Title.TextStyle.Font.Size = fontSize
	p.Title.Padding = vg.Points(3)
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	p.X.Padding, p.Y.Padding = 0, 0
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = lo, hi, rarest, 1
	var times, parts plot.ConstantTicks
	for _, v := range ticks(decades, 8, lo, hi) {
		times = append(times, plot.Tick{Value: v, Label: time.Duration(v).String()})
	}
	for _, v := range []float64{1, 0.1, 0.01, 0.001, 0.0001} {
		parts = append(parts, plot.Tick{Value: v, Label: fmt.Sprintf("%g %%", v*100)})
	}
	p.X.Tick.Marker, p.Y.Tick.Marker = times, parts
	p.Add(steps{l.Spread.C, vermillion}, steps{l.Spread.Ours, blue})
	return p
}

// decades are sets of ticks in nanoseconds, the finest first.
var decades = func() [][]float64 {
	var fine, coarse []float64
	for v := 1.0; v <= 1e10; v *= 10 {
		fine, coarse = append(fine, v, 2*v, 5*v), append(coarse, v)
	}
	return [][]float64{fine, coarse}
}()

// steps is a histogram as parts of all operations.
type steps struct {
	record.Histogram
	color color.RGBA
}

// Plot draws the histogram.
func (s steps) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	all := 0
	for _, n := range s.Counts {
		all += n
	}
	outline := []vg.Point{{X: x(record.Bound(s.First)), Y: c.Min.Y}}
	for i, n := range s.Counts {
		top := y(max(float64(n)/float64(all), rarest))
		outline = append(outline, vg.Point{X: x(record.Bound(s.First + i)), Y: top}, vg.Point{X: x(record.Bound(s.First + i + 1)), Y: top})
	}
	outline = append(outline, vg.Point{X: outline[len(outline)-1].X, Y: c.Min.Y})
	light := s.color
	c.FillPolygon(color.NRGBA{light.R, light.G, light.B, 0x38}, outline)
	c.StrokeLines(line(s.color, 1.2), outline)
}
