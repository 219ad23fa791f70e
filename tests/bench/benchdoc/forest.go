package main

import (
	"fmt"
	"image/color"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/goverbs/verbs/tests/bench/record"
)

// marks are the marks of verdicts.
var marks = map[record.Verdict]mark{
	record.Ahead:     {blue, draw.CircleGlyph{}},
	record.Level:     {green, draw.BoxGlyph{}},
	record.Undecided: {grey, draw.RingGlyph{}},
	record.Behind:    {vermillion, draw.PyramidGlyph{}},
}

// verdicts are the verdicts of comparisons, the best first.
var verdicts = []record.Verdict{record.Ahead, record.Level, record.Undecided, record.Behind}

// forest draws the ratio of each line of a group as a mark on a log axis, with its
// interval, and next to it the figures of both sides.
type forest struct {
	lines    []record.Line // that are compared
	min, max float64       // of the axis
}

const (
	rowHeight    = 0.62 * vg.Centimeter
	figuresWidth = 9.4 * vg.Centimeter
	oursAt       = 2.7 * vg.Centimeter // right of the axis: where a column ends
	theirsAt     = 5.2 * vg.Centimeter
	ratioAt      = 5.8 * vg.Centimeter // where it begins
)

// newForest draws a group, if it has compared lines.
func newForest(g record.Group, lines []record.Line) ([]byte, error) {
	f := forest{min: 0.8, max: 1.25}
	for _, l := range lines {
		if r, _ := l.Compare(); r.Mean > 0 {
			f.lines = append(f.lines, l)
			f.min, f.max = min(f.min, r.Low), max(f.max, r.High)
		}
	}
	if f.lines == nil {
		return nil, nil
	}
	f.min, f.max = f.min/1.05, f.max*1.05
	p := plot.New()
	p.X.Label.Text = "ratio, log scale: Go is better to the right of 1"
	p.X.Label.TextStyle.Font.Size = fontSize
	p.X.Scale = plot.LogScale{}
	p.X.Padding, p.Y.Padding = 0, 0
	var marker plot.ConstantTicks
	for _, v := range ticks(ratios, 9, f.min, f.max) {
		marker = append(marker, plot.Tick{Value: v, Label: fmt.Sprint(v)})
	}
	p.X.Tick.Marker = marker
	var names plot.ConstantTicks
	for i, l := range f.lines {
		names = append(names, plot.Tick{Value: f.y(i), Label: strings.TrimPrefix(driver(l.Device)+": "+l.Name, ": ")})
	}
	p.Y.Tick.Marker = names
	p.Y.Tick.LineStyle.Width, p.Y.LineStyle.Width = 0, 0
	p.Add(f)
	return svg(g.Work, vg.Length(len(f.lines)+1)*rowHeight+1.4*vg.Centimeter, func(c draw.Canvas) {
		var keys []key
		for _, v := range verdicts {
			keys = append(keys, key{string(v), marks[v]})
		}
		legend(c, keys)
		p.Draw(draw.Crop(c, 0, -figuresWidth, 0, -rowHeight))
	})
}

// ratios are sets of ticks, the finest first.
var ratios = [][]float64{
	{0.75, 0.8, 0.85, 0.9, 0.95, 1, 1.05, 1.1, 1.15, 1.2, 1.25, 1.3, 1.35},
	{0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 1.75, 2, 2.5},
	{0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 7},
	{0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50},
	{0.001, 0.01, 0.1, 1, 10, 100, 1000},
}

// DataRange returns the ranges of the axes.
func (f forest) DataRange() (xmin, xmax, ymin, ymax float64) {
	return f.min, f.max, -0.5, float64(len(f.lines)) - 0.5
}

// y returns the position of a line: the first is at the top.
func (f forest) y(i int) float64 { return float64(len(f.lines) - 1 - i) }

// Plot draws the lines.
func (f forest) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	for i := range f.lines { // stripes connect marks and figures
		if i%2 == 1 {
			box(c, color.RGBA{0xf6, 0xf6, 0xf6, 0xff}, c.Min.X, c.Max.X+figuresWidth, y(f.y(i)-0.5), y(f.y(i)+0.5))
		}
	}
	box(c, color.RGBA{0xd9, 0xee, 0xe7, 0xff}, x(0.95), x(1.05), c.Min.Y, c.Max.Y)
	for _, t := range p.X.Tick.Marker.Ticks(f.min, f.max) {
		c.StrokeLine2(line(pale, 0.5), x(t.Value), c.Min.Y, x(t.Value), c.Max.Y)
	}
	c.StrokeLine2(line(color.Black, 0.75), x(1), c.Min.Y, x(1), c.Max.Y)

	right, left := words(color.Black, fontSize, text.XRight), words(color.Black, fontSize, text.XLeft)
	head := c.Max.Y + rowHeight*0.6
	c.FillText(right, vg.Point{X: c.Max.X + oursAt, Y: head}, "Go")
	c.FillText(right, vg.Point{X: c.Max.X + theirsAt, Y: head}, f.lines[0].Beside)
	c.FillText(left, vg.Point{X: c.Max.X + ratioAt, Y: head}, "ratio, 95 %")
	for i, l := range f.lines {
		r, v := l.Compare()
		at := y(f.y(i))
		c.StrokeLine2(line(marks[v].Color, 1.5), x(r.Low), at, x(r.High), at)
		c.DrawGlyph(marks[v].glyph(), vg.Point{X: x(r.Mean), Y: at})
		c.FillText(right, vg.Point{X: c.Max.X + oursAt, Y: at}, figure(l, l.Ours))
		c.FillText(right, vg.Point{X: c.Max.X + theirsAt, Y: at}, figure(l, l.C))
		c.FillText(left, vg.Point{X: c.Max.X + ratioAt, Y: at}, r.String())
	}
}

// figure returns the median of one side's figures, with its unit.
func figure(l record.Line, s record.Sample) string {
	if len(s) == 0 {
		return ""
	}
	return record.Figure(s.Median()) + " " + l.Unit
}

// driver returns the name of a device without its number.
func driver(device string) string { return strings.TrimRight(device, "0123456789") }
