package main

import (
	"fmt"
	"html"
	"math"
	"strings"

	"github.com/goverbs/verbs/tests/bench/record"
)

// plot draws the ratio of each line as a mark on a log axis, with its interval: a row for
// each work, and a color for each driver.
func plot(all record.Results) []byte {
	const left, width, row, least, most = 400.0, 480.0, 18.0, 1 / 4.0, 4.0
	colors := map[string]string{"rxe0": "#0072b2", "siw0": "#d55e00"} // colour-blind readers can distinguish them
	x := func(ratio float64) float64 {
		return left + width*math.Log(min(max(ratio, least), most)/least)/math.Log(most/least)
	}
	var b strings.Builder
	y := 3 * row
	text := func(at float64, anchor, style, s string) {
		fmt.Fprintf(&b, `<text x="%.1f" y="%.1f" text-anchor="%s" %s>%s</text>`+"\n", at, y+4, anchor, style, html.EscapeString(s))
	}
	for _, g := range record.Groups {
		if g.Part != record.Lab && g.Part != record.Native {
			continue
		}
		text(10, "start", `font-weight="bold"`, g.Name)
		for _, w := range g.Works {
			y += row
			name := w.Name
			if w.Beside != "C" {
				name += ", beside " + w.Beside
			}
			text(left-10, "end", "", name)
			for i, d := range devices {
				l, _ := lineOf(all, g, w, d.of)
				r, _ := l.Compare()
				if r.Mean == 0 {
					continue
				}
				at := y + 6*(float64(i)-0.5)
				fmt.Fprintf(&b, `<path d="M%.1f %.1fH%.1f" stroke="%s" stroke-width="2"/><circle cx="%.1f" cy="%.1f" r="3.5" fill="%[4]s"/>`+"\n",
					x(r.Low), at, x(r.High), colors[d.of], x(r.Mean), at)
			}
		}
		y += 1.5 * row
	}
	marks, bottom := b.String(), y
	b.Reset()
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%.0f" height="%.0f" font-family="Arial,Helvetica,sans-serif" font-size="12">`+"\n", left+width+30, bottom+row)
	b.WriteString(`<rect width="100%" height="100%" fill="white"/>` + "\n")
	fmt.Fprintf(&b, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="#d9eee7"/>`+"\n", x(0.95), 2*row, x(1.05)-x(0.95), bottom-2*row)
	for _, v := range []float64{least, 0.5, 1, 2, most} {
		fmt.Fprintf(&b, `<path d="M%.1f %.1fV%.1f" stroke="#ccc"/>`+"\n", x(v), 2*row, bottom)
		y = bottom + row/2
		text(x(v), "middle", "", fmt.Sprint(v))
	}
	y = row
	text(left, "start", "", "ratio: Go is better to the right of 1")
	for i, d := range devices {
		text(left+width-60+50*float64(i), "start", `fill="`+colors[d.of]+`"`, "● "+d.title)
	}
	b.WriteString(marks + "</svg>\n")
	return []byte(b.String())
}
