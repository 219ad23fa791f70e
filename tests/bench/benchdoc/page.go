package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/goverbs/verbs/tests/bench/record"
)

// page returns the text of docs/benchmarks.md.
func page(runs map[string]record.Run, plots map[string][]string, notes string) []byte {
	var b strings.Builder
	b.WriteString(introduction)
	summary(&b, runs)
	b.WriteString(method)
	b.WriteString("### Where it was measured\n\n")
	origins(&b, runs)
	reached(&b, runs)
	b.WriteString("## Verdicts\n\n")
	counts(&b, runs)
	b.WriteString("## Figures\n\nOf each side the minimum, median and maximum of all pairs.\n\n")
	for _, g := range record.Groups {
		lines := runs[g.Part].Of(g)
		if slices.ContainsFunc(lines, measured) {
			section(&b, g, lines, plots[g.Name])
		}
	}
	b.WriteString(notes)
	return []byte(b.String())
}

const introduction = `# Benchmarks

The library is compared with C programs that do the same work on rdma-core (libibverbs
and librdmacm), in the same boot, in turns.

`

const method = `
Figures are the medians of all pairs. A ratio above 1 means that Go is better, whatever
the unit; its 95 % interval stands in brackets.

## Method

The lab is a Linux kernel with the software drivers rxe and siw in QEMU, which emulates
the processor some 40 times slower than it is and slows the kernel's clock by the same
factor (time dilation), so that code, timers and schedulers are in proportion as on a real
machine. Three clocks answer three questions:

| measured with | clock | question |
|---|---|---|
| ` + "`make bench`" + ` | the lab's, dilated | What do programs see, the work of the kernel and of the driver included? |
| ` + "`make bench-native`" + ` | the processor's, on User-mode Linux | What do posting and polling cost in user space, without the doorbell (the system call)? |
| ` + "`make bench-counted`" + ` | one tick for each instruction, processors in turns | Has the work that a program does and causes become more? Nothing is cached and only one processor runs at a time, but figures repeat to a percent: this is for regressions. |

Both sides do each work in short turns, of milliseconds, so that what disturbs the machine
disturbs both. Their figures of a turn, or of some, are a pair. The ratio is the geometric
mean of the pairs' ratios, its interval is found by bootstrap, and the interval decides the
verdict. As two starts of a program differ more than its turns do, most programs are started six
times for a line:

- **ahead**: all of it is above 1;
- **level**: it contains 1 and lies within 0.95 to 1.05;
- **undecided**: it contains 1 and is wider;
- **behind**: all of it is below 1.

Latencies, message rates, bandwidths and echoes are of the steady state: a turn begins with
some milliseconds of the same work that are not measured. For the first 7 ms after a wait, the
monitor thread of Go's runtime wakes up every 70 µs; after that, ever more rarely. Programs
that poll have a processor each, which is kept from sleeping as with ` + "`idle=poll`" + `.

Lines without figures are **not measured**. [tests/bench](../tests/bench) has the programs,
[docs/benchmarks](benchmarks) the figures of every pair.

`

// parts are the parts in which lines are measured, in the order of the page.
var parts = []struct{ name, target string }{
	{record.Lab, "make bench"}, {record.Native, "make bench-native"}, {record.Counted, "make bench-counted"},
}

// clocks are the clocks in record.Origin that are not the machine's.
var clocks = map[string]string{"dilated": "dilated", "icount": "counts instructions"}

// origins writes where and when each part was measured.
func origins(b *strings.Builder, runs map[string]record.Run) {
	b.WriteString("| | kernel | its processors | the machine's | clock | C libraries | day |\n|---|---|---|---|---|---|---|\n")
	for _, part := range parts {
		r := runs[part.name]
		if len(r.Lines) == 0 {
			fmt.Fprintf(b, "| `%s` | %s | | | | | |\n", part.target, record.NotMeasured)
			continue
		}
		fmt.Fprintf(b, "| `%s` | %s | %d × %s | %s | %s | rdma-core %s | %s |\n",
			part.target, r.Kernel, r.CPUs, r.Machine, r.Host, cmp.Or(clocks[r.Clock], "the machine's"), r.RDMA, r.Date)
	}
	b.WriteString("\n")
	if r := runs[record.Lab]; len(r.Lines) > 0 && r.Clock != "dilated" {
		b.WriteString("The clock of the lab was **not dilated** when the figures of `make bench` were taken:\n" +
			"they exaggerate what depends on the scheduler.\n\n")
	}
}

// questions are the first questions of users, and the lines that answer them.
var questions = []struct {
	text, group string
	lines       []string
}{
	{"Latency of a READ of 8 bytes, polled", "latency", []string{"READ of 8 bytes"}},
	{"Latency of a SEND of 8 bytes there and back, waiting for events", "latency, events", []string{"SEND of 8 bytes, there and back"}},
	{"The same, with PollWait beside C's events", "latency, PollWait", []string{"SEND of 8 bytes, there and back"}},
	{"Message rate, SEND of 64 bytes", "message rate", []string{"SEND of 64 bytes"}},
	{"Bandwidth, SEND of 64 KiB", "bandwidth", []string{"SEND of 64 KiB"}},
	{"Cost of a post and of a poll in user space", "post and poll", []string{"post_send_1", "poll_1"}},
	{"Set-up of a connection", "set-up", []string{"set-up, by itself"}},
	{"Start of a process until a byte is there and back", "first byte", []string{"process that has a byte sent and back"}},
	{"Memory per connection, of 4096", "memory per connection", []string{"client, of 4096 connections"}},
	{"Memory of a process with the device open", "size", []string{"resident, with the device open"}},
	{"Garbage collection: 99th percentile of a polled READ", "latency, garbage collection, 99th percentile", []string{"READ of 8 bytes"}},
}

// summary writes the table of the questions.
func summary(b *strings.Builder, runs map[string]record.Run) {
	b.WriteString("| | rxe: Go | C | ratio | siw: Go | C | ratio |\n|---|---|---|---|---|---|---|\n")
	for _, q := range questions {
		g, _ := record.Find(q.group)
		fmt.Fprintf(b, "| %s |", title(q.text, g, runs))
		for _, device := range []string{"rxe0", "siw0"} {
			var ours, theirs, ratios []string
			for _, l := range runs[g.Part].Of(g) {
				if l.Device != device || !slices.Contains(q.lines, l.Name) {
					continue
				}
				ours, theirs = append(ours, figure(l, l.Ours)), append(theirs, figure(l, l.C))
				judged := fmt.Sprintf("**%s**", verdict(l))
				if r := ratio(l); r != "" {
					judged = r + ", " + judged
				}
				ratios = append(ratios, judged)
			}
			for _, cell := range [][]string{ours, theirs, ratios} {
				fmt.Fprintf(b, " %s |", strings.Join(cell, "<br>"))
			}
		}
		b.WriteString("\n")
	}
}

func measured(l record.Line) bool { return len(l.Ours) != 0 }

func verdict(l record.Line) record.Verdict {
	_, v := l.Compare()
	return v
}

// ratio returns the ratio of a line, or "" if it is not compared.
func ratio(l record.Line) string {
	if r, _ := l.Compare(); r.Mean > 0 {
		return r.String()
	}
	return ""
}

// title returns a text that links to the section of a group, if it has one.
func title(text string, g record.Group, runs map[string]record.Run) string {
	if !slices.ContainsFunc(runs[g.Part].Of(g), measured) {
		return text
	}
	return fmt.Sprintf("[%s](#%s)", text, anchor(g.Work))
}

// anchor returns the anchor of a title on GitHub.
func anchor(title string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-', r == '_', unicode.IsLetter(r), unicode.IsDigit(r):
			return unicode.ToLower(r)
		}
		return -1
	}, title)
}

// counts writes the table of how many lines of each group have which verdict.
func counts(b *strings.Builder, runs map[string]record.Run) {
	all := append(slices.Clone(verdicts), record.NotMeasured)
	b.WriteString("| |")
	for _, v := range all {
		fmt.Fprintf(b, " %s |", v)
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(all)) + "\n")
	row := func(text string, count map[record.Verdict]int) {
		fmt.Fprintf(b, "| %s |", text)
		for _, v := range all {
			if count[v] == 0 {
				b.WriteString(" |")
			} else {
				fmt.Fprintf(b, " %d |", count[v])
			}
		}
		b.WriteString("\n")
	}
	sum := map[record.Verdict]int{}
	for _, g := range record.Groups {
		count := map[record.Verdict]int{}
		for _, l := range runs[g.Part].Of(g) {
			count[verdict(l)]++
			sum[verdict(l)]++
		}
		row(title(g.Work, g, runs), count)
	}
	row("**all**", sum)
	b.WriteString("\n")
}

// section writes the section of a group: its plots and all figures.
func section(b *strings.Builder, g record.Group, lines []record.Line, plots []string) {
	fmt.Fprintf(b, "### %s\n\n", g.Work)
	for _, p := range plots {
		fmt.Fprintf(b, "![%s](%s)\n\n", g.Work, p)
	}
	beside := ""
	for _, l := range lines {
		if len(l.C) != 0 {
			beside = l.Beside
		}
	}
	fmt.Fprintf(b, "| driver | work | unit | Go | %s | pairs | ratio | verdict |\n|---|---|---|---|---|---|---|---|\n", beside)
	for _, l := range lines {
		pairs := ""
		if len(l.C) != 0 {
			pairs = fmt.Sprint(len(l.Ours))
		}
		fmt.Fprintf(b, "| %s | %s | %s | %v | %v | %s | %s | %s |\n", driver(l.Device), l.Name, l.Unit, l.Ours, l.C, pairs, ratio(l), verdict(l))
	}
	b.WriteString("\n")
}
