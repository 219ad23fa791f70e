package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/goverbs/verbs/tests/bench/record"
)

// column has the lines of a device.
type column struct{ title, of string }

// devices are the columns of the page; works that need no device are in the first. Adapters have a
// table of their own.
var (
	devices  = []column{{"rxe", "rxe0"}, {"siw", "siw0"}}
	adapters = []column{{"mlx5", "mlx5"}, {"mlx5, SingleThreaded", "mlx5-single"}}
	erdmas   = []column{{"erdma", "erdma"}, {"erdma, SingleThreaded", "erdma-single"}}
)

// lineOf returns the line of a work in the column of a device. There is none if the work is not
// for that device.
func lineOf(all record.Results, g record.Group, w record.Work, device string) (record.Line, bool) {
	for _, d := range w.Devices {
		if d == device || d == "" && device == "rxe0" {
			return all[g.Part].Find(g, w, d), true
		}
	}
	return record.Line{}, false
}

// tables returns the tables of the page: the lines, and where they were measured.
func tables(all record.Results) string {
	var b strings.Builder
	table(&b, all, devices, record.Lab, record.Native)
	b.WriteString("\n")
	table(&b, all, adapters, record.Adapter)
	b.WriteString("\n")
	table(&b, all, erdmas, record.Second)
	origins(&b, all)
	return b.String()
}

// table writes the lines of parts.
func table(b *strings.Builder, all record.Results, columns []column, parts ...string) {
	b.WriteString("| | beside |")
	for _, d := range columns {
		fmt.Fprintf(b, " %s: Go | other | ratio |", d.title)
	}
	b.WriteString("\n|---|---|" + strings.Repeat("--:|--:|---|", len(columns)) + "\n")
	for _, g := range record.Groups {
		if !slices.Contains(parts, g.Part) {
			continue
		}
		fmt.Fprintf(b, "| **%s** |%s\n", g.Name, strings.Repeat(" |", 1+3*len(columns)))
		for _, w := range g.Works {
			fmt.Fprintf(b, "| %s | %s |", w.Name, w.Beside)
			for _, d := range columns {
				if l, ok := lineOf(all, g, w, d.of); ok {
					fmt.Fprintf(b, " %s | %s | %s |", figure(l, l.Ours), figure(l, l.C), judgement(l))
				} else {
					b.WriteString(" | | |")
				}
			}
			b.WriteString("\n")
		}
	}
}

// figure returns the median of one side's figures, with its unit.
func figure(l record.Line, s record.Sample) string {
	if len(s) == 0 {
		return ""
	}
	return record.Figure(s.Median()) + " " + l.Unit
}

// judgement returns the ratio and the verdict of a line.
func judgement(l record.Line) string {
	r, v := l.Compare()
	if r.Mean == 0 {
		return string(v)
	}
	return fmt.Sprintf("%v %s", r, v)
}

// clocks are the clocks in record.Origin that are not the machine's.
var clocks = map[string]string{"dilated": "dilated", "icount": "counts instructions"}

// origins writes where and when each part was measured.
func origins(b *strings.Builder, all record.Results) {
	b.WriteString("\n| | kernel | its processors | the machine's | clock | C libraries | day |\n|---|---|---|---|---|---|---|\n")
	for _, part := range []struct{ name, target string }{
		{record.Lab, "make bench"}, {record.Native, "make bench-native"}, {record.Adapter, "make bench-mlx5"}, {record.Second, "make bench-erdma"}, {record.Counted, "make bench-quick"},
	} {
		r := all[part.name]
		if len(r.Lines) == 0 {
			fmt.Fprintf(b, "| `%s` | %s | | | | | |\n", part.target, record.NotMeasured)
			continue
		}
		clock := cmp.Or(clocks[r.Clock], "the machine's")
		if part.name == record.Lab && r.Clock != "dilated" {
			clock = "**not dilated**"
		}
		fmt.Fprintf(b, "| `%s` | %s | %d × %s | %s | %s | rdma-core %s | %s |\n", part.target, r.Kernel, r.CPUs, r.Machine, r.Host, clock, r.RDMA, r.Date)
	}
}
