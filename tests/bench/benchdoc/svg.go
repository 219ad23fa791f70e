package main

import (
	"bytes"
	"image/color"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

const (
	width    = 24 * vg.Centimeter
	margin   = 0.25 * vg.Centimeter
	fontSize = 10
)

// Colours of the palette of Okabe and Ito, which colour-blind readers can distinguish.
var (
	blue       = color.RGBA{0x00, 0x72, 0xb2, 0xff}
	green      = color.RGBA{0x00, 0x9e, 0x73, 0xff}
	vermillion = color.RGBA{0xd5, 0x5e, 0x00, 0xff}
	grey       = color.RGBA{0x70, 0x70, 0x70, 0xff}
	pale       = color.RGBA{0xe0, 0xe0, 0xe0, 0xff}
)

func init() { plot.DefaultFont = font.Font{Typeface: "Liberation", Variant: "Sans"} }

// headHeight is the height of the title.
const headHeight = 1.1 * vg.Centimeter

// svg returns a white canvas with a title, and below it what drawOn draws.
func svg(title string, height vg.Length, drawOn func(draw.Canvas)) ([]byte, error) {
	canvas := vgsvg.New(width, height+headHeight)
	all := draw.New(canvas)
	box(all, color.White, all.Min.X, all.Max.X, all.Min.Y, all.Max.Y)
	all.FillText(words(color.Black, 12, text.XLeft), vg.Point{X: margin, Y: all.Max.Y - headHeight/2}, strings.ReplaceAll(title, "`", ""))
	drawOn(draw.Crop(all, margin, -margin, margin, -headHeight))
	var out bytes.Buffer
	if _, err := canvas.WriteTo(&out); err != nil {
		return nil, err
	}
	return bytes.ReplaceAll(out.Bytes(), []byte("Liberation Sans;"), []byte("Liberation Sans,Arial,Helvetica,sans-serif;")), nil
}

// words returns a style of text.
func words(c color.Color, size vg.Length, align text.XAlignment) draw.TextStyle {
	return draw.TextStyle{
		Color: c, Font: font.From(plot.DefaultFont, size), Handler: plot.DefaultTextHandler,
		XAlign: align, YAlign: -0.4, // the height of gonum's labels of ticks
	}
}

// line returns a style of lines.
func line(c color.Color, points float64) draw.LineStyle {
	return draw.LineStyle{Color: c, Width: vg.Points(points)}
}

// ticks returns the ticks between min and max of the first set that covers this range with
// at most n ticks, or else of the last set.
func ticks(sets [][]float64, n int, min, max float64) []float64 {
	var in []float64
	for _, set := range sets {
		in = slices.DeleteFunc(slices.Clone(set), func(v float64) bool { return v < min || v > max })
		if set[0] <= min && set[len(set)-1] >= max && len(in) <= n {
			break
		}
	}
	return in
}

// key is the meaning of a colour: of a mark, or of a line if the mark has no shape.
type key struct {
	name string
	mark
}

// mark is a colour and a shape.
type mark struct {
	color.Color
	shape draw.GlyphDrawer
}

func (m mark) glyph() draw.GlyphStyle {
	return draw.GlyphStyle{Color: m.Color, Radius: vg.Points(3.6), Shape: m.shape}
}

// legend draws keys at the right of the title above c.
func legend(c draw.Canvas, keys []key) {
	c.Max.Y += headHeight // no glyphs are drawn outside of a canvas
	style := words(color.Black, fontSize, text.XLeft)
	x, y := c.Max.X, c.Max.Y-headHeight/2
	for _, k := range slices.Backward(keys) {
		x -= style.Width(k.name)
		c.FillText(style, vg.Point{X: x, Y: y}, k.name)
		if k.shape == nil {
			c.StrokeLine2(line(k.Color, 2), x-vg.Points(18), y, x-vg.Points(4), y)
			x -= vg.Points(10)
		} else {
			c.DrawGlyph(k.glyph(), vg.Point{X: x - vg.Points(7), Y: y})
		}
		x -= vg.Points(20)
	}
}

// box fills a rectangle.
func box(c draw.Canvas, fill color.Color, left, right, bottom, top vg.Length) {
	c.FillPolygon(fill, []vg.Point{{X: left, Y: bottom}, {X: right, Y: bottom}, {X: right, Y: top}, {X: left, Y: top}})
}
