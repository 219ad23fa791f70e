package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/goverbs/verbs/tests/bench/record"
)

// target is a minimum for the lower ends of the intervals of some lines.
type target struct {
	work   string
	groups []string
	lines  []string // of each group; all if empty
	device string   // any if empty
	least  float64
}

// targets are the targets of the library.
var targets = []target{
	{work: "post and poll in user space", groups: []string{"post and poll"}, least: 1},
	{work: "the same, without locks", groups: []string{"post and poll, single-threaded"}, least: 2},
	{work: "polled latency, median", groups: []string{"latency"}, least: 0.97},
	{
		work:   "polled latency, 99th and 99.9th percentile, also while Go collects garbage",
		groups: []string{"latency, 99th percentile", "latency, 99.9th percentile", "latency, garbage collection, 99th percentile", "latency, garbage collection, 99.9th percentile"},
		least:  0.9,
	},
	{work: "latency by events, median", groups: []string{"latency, events"}, least: 0.9},
	{work: "message rate and bandwidth", groups: []string{"message rate", "bandwidth"}, least: 0.97},
	{work: "echo over 1, 16, 256 and 4096 connections", groups: []string{"connections"}, least: 0.95},
	{work: "set-up to the first byte, rxe", groups: []string{"first byte"}, lines: []string{"connection set up and a byte there and back"}, device: "rxe0", least: 0.9},
	{work: "the same on siw", groups: []string{"first byte"}, lines: []string{"connection set up and a byte there and back"}, device: "siw0", least: 0.9},
	{work: "rsock beside rsockets", groups: []string{"rsock"}, least: 1},
	{work: "memory per connection, of 4096", groups: []string{"memory per connection"}, least: 1},
	{work: "`verbs perf` beside perftest", groups: []string{"perftest"}, least: 0.97},
}

// of returns the lines of the target.
func (t target) of(runs map[string]record.Run) []record.Line {
	var lines []record.Line
	for _, name := range t.groups {
		g, ok := record.Find(name)
		if !ok {
			continue
		}
		for _, l := range runs[g.Part].Of(g) {
			if (len(t.lines) == 0 || slices.Contains(t.lines, l.Name)) && (t.device == "" || t.device == l.Device) {
				lines = append(lines, l)
			}
		}
	}
	return lines
}

// reached writes the table of the targets.
func reached(b *strings.Builder, runs map[string]record.Run) {
	b.WriteString("## Targets\n\nOf each line the lower end of the interval is to be at least the target.\n\n" +
		"| work | target | lines | reached | least, and where |\n|---|---|---|---|---|\n")
	for _, t := range targets {
		lines := t.of(runs)
		n := 0
		var worst record.Line
		low := 0.0
		for _, l := range lines {
			r, v := l.Compare()
			if v == record.NotMeasured {
				continue
			}
			if r.Low >= t.least {
				n++
			}
			if worst.Name == "" || r.Low < low {
				worst, low = l, r.Low
			}
		}
		least := string(record.NotMeasured)
		if worst.Name != "" {
			least = fmt.Sprintf("%.2f, %s", low, strings.TrimSpace(driver(worst.Device)+" "+worst.Name))
		}
		fmt.Fprintf(b, "| %s | %v | %d | %d | %s |\n", t.work, t.least, len(lines), n, least)
	}
	b.WriteString("\n")
}
