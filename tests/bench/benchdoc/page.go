package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/goverbs/verbs/tests/bench/record"
)

// page is docs/benchmarks.md.
func page(runs map[string]record.Run, plots map[string]string, notes string) []byte {
	var b strings.Builder
	b.WriteString(introduction)
	b.WriteString("## Where it was measured\n\n")
	origins(&b, runs)
	b.WriteString(reading)
	b.WriteString("## Targets\n\n")
	targets(&b, runs)
	b.WriteString("## Figures\n\nMinimum / median / maximum of each side.\n\n")
	for _, g := range record.Groups {
		lines := runs[g.Part].Of(g)
		if !slices.ContainsFunc(lines, func(l record.Line) bool { return len(l.Ours) != 0 }) {
			continue
		}
		group(&b, g, lines, plots[g.Name])
	}
	b.WriteString(notes)
	return []byte(b.String())
}

const introduction = `# Benchmarks

The library beside C programs that do the same work on rdma-core, in the same
boot, in turns. ` + "`make bench`" + ` measures what programs see of both software RDMA
drivers, in QEMU; ` + "`make bench-native`" + ` measures what posting and polling cost in
user space alone, on User-mode Linux, where code runs at the processor's own
speed; ` + "`make bench-counted`" + ` measures some of the first again by a clock that counts
instructions. Each writes this page, from the figures in
` + "[docs/benchmarks](benchmarks)" + `; ` + "`tests/bench`" + ` has the programs.

`

const reading = `
How to read it: a ratio is of the medians, and more than 1 where Go is better,
whatever the unit. A target of 0.9 × C's time wants a ratio of 1 / 0.9. Either
side does every work nine times at least; else it is "too few". Where one side's
figures lie further apart than half their median, no ratio is told: the line is
"too noisy". Lines without figures are "not measured".

QEMU translates the code it runs, if it may not use the processor itself, and
kernel and programs share its few processors: figures of the lab say how the two
sides compare, not how fast a network can be. How long it takes for an instruction
depends on how often it has run before, and on what else the machine does: it may
be a nanosecond or a microsecond. Where it says "counted", each takes one, whatever
processor it is of; they take turns. That is no processor that exists, either: there
are no caches, and who waits in a loop keeps others waiting. But it is all the work
that a program does and causes, kernel included, and it repeats to a percent.

`

// origins tells of each part where and when.
func origins(b *strings.Builder, runs map[string]record.Run) {
	b.WriteString("| | kernel | its processors | the machine's | C libraries | day |\n|---|---|---|---|---|---|\n")
	for _, part := range []struct{ name, target string }{{record.Lab, "make bench"}, {record.Native, "make bench-native"}, {record.Counted, "make bench-counted"}} {
		r := runs[part.name]
		if len(r.Lines) == 0 {
			fmt.Fprintf(b, "| `%s` | %s | | | | |\n", part.target, record.NotMeasured)
			continue
		}
		fmt.Fprintf(b, "| `%s` | %s | %d × %s | %s | rdma-core %s | %s |\n", part.target, r.Kernel, r.CPUs, r.Machine, r.Host, r.RDMA, r.Date)
	}
}

// targets is the table of them.
func targets(b *strings.Builder, runs map[string]record.Run) {
	b.WriteString("| work | target | rxe | siw | verdict |\n|---|---|---|---|---|\n")
	for _, g := range record.Groups {
		lines := runs[g.Part].Of(g)
		fmt.Fprintf(b, "| %s | %s | %s | %s | %s |\n", g.Work, g.Wanted, cell(lines, "rxe"), cell(lines, "siw"), verdict(lines))
	}
	b.WriteString("\n")
}

// cell is the ratios of a group on a driver, from the least to the greatest.
// Lines that have nothing to do with a device count for both.
func cell(lines []record.Line, on string) string {
	var ratios []float64
	var plain []string
	for _, l := range lines {
		if d := driver(l.Device); d != on && d != "" {
			continue
		}
		r, v := l.Ratio()
		switch {
		case len(l.Ours) == 0:
		case len(l.C) == 0:
			plain = append(plain, record.Figure(l.Ours.Max()))
		case v == "" && l.Slack != 0:
			plain = append(plain, fmt.Sprintf("%+.2f %s", l.Ours.Median()-l.C.Median(), l.Unit))
		case v == "":
			ratios = append(ratios, r)
		}
	}
	if len(ratios) > 0 {
		least, most := fmt.Sprintf("%.2f", slices.Min(ratios)), fmt.Sprintf("%.2f", slices.Max(ratios))
		if least != most {
			least += " to " + most
		}
		plain = append(plain, least)
	}
	return strings.Join(plain, ", ")
}

// verdict is that of a whole group: one word if its lines agree, else how many
// came to what.
func verdict(lines []record.Line) string {
	count := map[record.Verdict]int{}
	for _, l := range lines {
		count[l.Verdict()]++
	}
	var told []string
	for _, v := range []record.Verdict{record.Missed, record.TooNoisy, record.TooFew, record.NotMeasured, record.NoTarget, record.Met} {
		switch n := count[v]; {
		case n == 0:
		case n == len(lines):
			return string(v)
		default:
			told = append(told, fmt.Sprintf("%s: %d of %d", v, n, len(lines)))
		}
	}
	if told == nil {
		return string(record.NotMeasured)
	}
	return strings.Join(told, ", ")
}

// group is a section: the plot and all figures.
func group(b *strings.Builder, g record.Group, lines []record.Line, plot string) {
	fmt.Fprintf(b, "### %s\n\n", g.Work)
	fmt.Fprintf(b, "Target: %s.\n\n", g.Wanted)
	if plot != "" {
		fmt.Fprintf(b, "![%s, Go beside %s](%s)\n\n", g.Work, lines[0].Beside, plot)
	}
	b.WriteString("| driver | work | unit | Go | beside | its figures | ratio | verdict |\n|---|---|---|---|---|---|---|---|\n")
	for _, l := range lines {
		v := string(l.Verdict())
		if l.Target != g.Target && l.Target != 0 {
			v += fmt.Sprintf(" (of %.2f)", l.Target)
		}
		ratio := ""
		if r, untold := l.Ratio(); untold == "" {
			ratio = fmt.Sprintf("%.2f", r)
		}
		fmt.Fprintf(b, "| %s | %s | %s | %v | %s | %v | %s | %s |\n", driver(l.Device), l.Name, l.Unit, l.Ours, l.Beside, l.C, ratio, v)
	}
	b.WriteString("\n")
}
