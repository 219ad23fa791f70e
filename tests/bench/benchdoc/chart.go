package main

import (
	"bytes"
	"fmt"
	"image/color"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/goverbs/verbs/tests/bench/record"
)

var (
	oursColor   = color.RGBA{0x00, 0x7d, 0x9c, 0xff}
	cColor      = color.RGBA{0xb8, 0xb8, 0xb8, 0xff}
	targetColor = color.RGBA{0xc0, 0x39, 0x2b, 0xff}
	noiseColor  = color.RGBA{0x80, 0x80, 0x80, 0xff}
)

const (
	width       = 18 * vg.Centimeter
	legendWidth = 3 * vg.Centimeter
	rowHeight   = 0.85 * vg.Centimeter
	thickness   = 0.28 * vg.Centimeter // of a bar
)

// bars are the lines of a group: for each Go's bar above C's, as long as the
// median, with a whisker from the worst repetition to the best. What is too
// noisy for a ratio has words in their place.
type bars struct {
	lines    []record.Line
	absolute bool // figures as they are: not as parts of C's median
}

// ends are where a bar's whisker begins, the bar ends and the whisker ends.
func (b bars) ends(l record.Line, s record.Sample) (lo, mid, hi float64) {
	of := func(v float64) float64 {
		switch {
		case b.absolute:
			return v
		case l.Higher:
			return v / l.C.Median()
		}
		return l.C.Median() / v
	}
	lo, hi = of(s.Min()), of(s.Max())
	return min(lo, hi), of(s.Median()), max(lo, hi)
}

func told(l record.Line) bool {
	_, v := l.Ratio()
	return v == ""
}

// DataRange is that of the axes.
func (b bars) DataRange() (xmin, xmax, ymin, ymax float64) {
	for _, l := range b.lines {
		if told(l) {
			for _, s := range []record.Sample{l.Ours, l.C} {
				_, _, hi := b.ends(l, s)
				xmax = max(xmax, hi)
			}
			if !b.absolute {
				xmax = max(xmax, l.Target)
			}
		}
	}
	return 0, xmax * 1.03, -0.5, float64(len(b.lines)) - 0.5
}

// y is where a line is: the first is at the top.
func (b bars) y(i int) float64 { return float64(len(b.lines) - 1 - i) }

// Plot draws them.
func (b bars) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	thin := draw.LineStyle{Color: color.Black, Width: vg.Points(0.75)}
	dashed := draw.LineStyle{Color: targetColor, Width: vg.Points(1.5), Dashes: []vg.Length{vg.Points(4), vg.Points(2)}}
	words := p.Y.Tick.Label
	words.Color, words.XAlign, words.YAlign = noiseColor, text.XLeft, text.YCenter
	for i, l := range b.lines {
		at := y(b.y(i))
		if !told(l) {
			_, v := l.Ratio()
			c.FillText(words, vg.Point{X: x(0) + vg.Points(6), Y: at}, string(v))
			continue
		}
		for side, s := range []record.Sample{l.Ours, l.C} {
			top := at + thickness - vg.Length(side)*thickness
			lo, mid, hi := b.ends(l, s)
			c.FillPolygon([]color.Color{oursColor, cColor}[side], []vg.Point{
				{X: x(0), Y: top}, {X: x(mid), Y: top}, {X: x(mid), Y: top - thickness}, {X: x(0), Y: top - thickness},
			})
			middle := top - thickness/2
			c.StrokeLine2(thin, x(lo), middle, x(hi), middle)
			for _, end := range []float64{lo, hi} {
				c.StrokeLine2(thin, x(end), middle-thickness/4, x(end), middle+thickness/4)
			}
		}
		if !b.absolute && l.Target != 0 {
			c.StrokeLine2(dashed, x(l.Target), at-thickness*1.3, x(l.Target), at+thickness*1.3)
		}
	}
}

// swatch is a bar in the legend.
type swatch struct{ color.Color }

// Thumbnail draws it.
func (s swatch) Thumbnail(c *draw.Canvas) {
	c.FillPolygon(s.Color, []vg.Point{c.Min, {X: c.Max.X, Y: c.Min.Y}, c.Max, {X: c.Min.X, Y: c.Max.Y}})
}

// chart draws a group, if there is something to draw of it.
func chart(g record.Group, lines []record.Line) ([]byte, error) {
	b := bars{absolute: g.Slack != 0}
	draws := false
	for _, l := range lines {
		if len(l.Ours) != 0 && len(l.C) != 0 {
			b.lines = append(b.lines, l)
			draws = draws || told(l)
		}
	}
	if !draws {
		return nil, nil
	}
	plot.DefaultFont = font.Font{Typeface: "Liberation", Variant: "Sans"}
	p := plot.New()
	beside := b.lines[0].Beside
	p.Title.Text = strings.ReplaceAll(g.Work, "`", "")
	p.Title.Padding = vg.Points(6)
	p.X.Label.Text = fmt.Sprintf("times as good as the median of %s (more is better)", beside)
	if b.absolute {
		p.X.Label.Text = g.Unit + " (less is better)"
	}
	var ticks plot.ConstantTicks
	for i, l := range b.lines {
		ticks = append(ticks, plot.Tick{Value: b.y(i), Label: strings.TrimSuffix(l.Name+", "+driver(l.Device), ", ")})
	}
	p.Y.Tick.Marker = ticks
	p.Y.Tick.LineStyle.Width = 0
	p.Add(grid{}, b)
	legend := plot.NewLegend()
	legend.Top, legend.Padding, legend.ThumbnailWidth = true, vg.Points(3), vg.Points(14)
	legend.Add("Go", swatch{oursColor})
	legend.Add(beside, swatch{cColor})
	if !b.absolute && g.Target != 0 {
		legend.Add("target", swatch{targetColor})
	}
	return svg(p, legend, vg.Length(len(b.lines))*rowHeight+3*vg.Centimeter)
}

// grid is vertical lines where X's ticks are.
type grid struct{}

// Plot draws it.
func (grid) Plot(c draw.Canvas, p *plot.Plot) {
	x, _ := p.Transforms(&c)
	for _, t := range p.X.Tick.Marker.Ticks(p.X.Min, p.X.Max) {
		if !t.IsMinor() {
			c.StrokeLine2(draw.LineStyle{Color: color.RGBA{0xe0, 0xe0, 0xe0, 0xff}, Width: vg.Points(0.5)}, x(t.Value), c.Min.Y, x(t.Value), c.Max.Y)
		}
	}
}

// svg is the plot and beside it the legend.
func svg(p *plot.Plot, legend plot.Legend, height vg.Length) ([]byte, error) {
	canvas := vgsvg.New(width, height)
	all := draw.New(canvas)
	all.FillPolygon(color.White, []vg.Point{all.Min, {X: all.Max.X, Y: all.Min.Y}, all.Max, {X: all.Min.X, Y: all.Max.Y}})
	legend.Draw(draw.Crop(all, 0, -vg.Points(6), 0, -1.2*vg.Centimeter))
	p.Draw(draw.Crop(all, vg.Points(6), -legendWidth, vg.Points(6), -vg.Points(6)))
	var out bytes.Buffer
	if _, err := canvas.WriteTo(&out); err != nil {
		return nil, err
	}
	return bytes.ReplaceAll(out.Bytes(), []byte("Liberation Sans;"), []byte("Liberation Sans,Arial,Helvetica,sans-serif;")), nil
}

// driver is the device without its number.
func driver(device string) string { return strings.TrimRight(device, "0123456789") }
