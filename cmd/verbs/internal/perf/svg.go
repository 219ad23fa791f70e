package perf

import (
	"bytes"
	"fmt"
	"html"
	"math"
)

// chart is lines over two axes. It is drawn here, as SVG with the viewer's own
// fonts: the plotting libraries bring fonts, TeX and PDF, 7 MB of them.
type chart struct {
	title string
	x, y  axis
	lines []line
}

type axis struct {
	label    string
	from, to float64
	ticks    []tick
}

type tick struct {
	at    float64
	label string
}

type line struct {
	name   string // for the legend; none if empty
	points []point
}

type point struct{ x, y float64 }

// linearAxis begins at 0 and ends at or after top, in at most six round steps.
func linearAxis(label string, top float64) axis {
	if top <= 0 {
		top = 1
	}
	step := math.Pow(10, math.Floor(math.Log10(top/5)))
	for _, n := range []float64{2, 2.5, 2} { // 1, 2, 5, 10
		if step*5 < top {
			step *= n
		}
	}
	a := axis{label: label}
	for i := 0; a.to < top; i++ {
		a.to = float64(i) * step
		a.ticks = append(a.ticks, tick{a.to, fmt.Sprintf("%.9g", a.to)})
	}
	return a
}

var colors = []string{"#0072b2", "#d55e00", "#009e73"}

func (c chart) svg() []byte {
	const width, height = 760, 456
	const left, right, top, bottom = 80, 740, 40, 400 // the area within the axes
	var b bytes.Buffer
	x := func(v float64) float64 { return left + (v-c.x.from)/(c.x.to-c.x.from)*(right-left) }
	y := func(v float64) float64 { return bottom - (v-c.y.from)/(c.y.to-c.y.from)*(bottom-top) }
	text := func(x, y float64, anchor, more, s string) {
		fmt.Fprintf(&b, `<text x="%.1f" y="%.1f" text-anchor="%s"%s>%s</text>`+"\n", x, y, anchor, more, html.EscapeString(s))
	}
	stroke := func(x1, y1, x2, y2 float64, color string) {
		fmt.Fprintf(&b, `<path d="M%.1f %.1fL%.1f %.1f" stroke="%s"/>`+"\n", x1, y1, x2, y2, color)
	}

	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="13">`+"\n", width, height)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="white"/>`+"\n", width, height)
	const middle = (left + right) / 2
	text(middle, top-15, "middle", ` font-size="16"`, c.title)
	text(middle, height-12, "middle", "", c.x.label)
	text(20, (top+bottom)/2, "middle", fmt.Sprintf(` transform="rotate(-90 20 %d)"`, (top+bottom)/2), c.y.label)
	for _, t := range c.x.ticks {
		stroke(x(t.at), top, x(t.at), bottom, "#ddd")
		text(x(t.at), bottom+18, "middle", "", t.label)
	}
	for _, t := range c.y.ticks {
		stroke(left, y(t.at), right, y(t.at), "#ddd")
		text(left-8, y(t.at)+4, "end", "", t.label)
	}
	stroke(left, top, left, bottom, "black")
	stroke(left, bottom, right, bottom, "black")

	for i, l := range c.lines {
		color := colors[i%len(colors)]
		fmt.Fprintf(&b, `<polyline fill="none" stroke="%s" stroke-width="1.5" points="`, color)
		for _, p := range l.points {
			fmt.Fprintf(&b, "%.1f,%.1f ", x(p.x), y(p.y))
		}
		b.WriteString("\"/>\n")
		if len(l.points) < 100 {
			for _, p := range l.points {
				fmt.Fprintf(&b, `<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>`+"\n", x(p.x), y(p.y), color)
			}
		}
		if l.name != "" {
			at := top + 20 + 18*float64(i)
			stroke(left+12, at-4, left+36, at-4, color)
			text(left+42, at, "start", "", l.name)
		}
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}
