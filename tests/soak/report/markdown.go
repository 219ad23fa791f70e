package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/goverbs/verbs/tests/soak/samples"
)

// markdown writes the report.
func markdown(w io.Writer, run *samples.Run, reasons []string, picture string) {
	p := func(format string, args ...any) { fmt.Fprintf(w, format, args...) }
	s := run.Start
	p("# %s for %v: %s\n\n", s.Device, run.Took(), word(reasons))
	about := "All layers at once on one device, in two processes"
	if s.About != "" {
		about = s.About
	}
	p("%s, see [tests/soak](../../tests/soak/doc.go).\n", about)
	p("Every message, stream and written memory was compared with what was sent.\n\n")
	p("| | |\n|---|---|\n")
	p("| device | %s |\n| kernel | %s, %d processors, in QEMU |\n| Go | %s |\n", s.Device, s.Kernel, s.CPUs, s.Go)
	p("| began | %s |\n| asked for | %v |\n| seed | %d |\n", s.Began.UTC().Format("2006-01-02 15:04 MST"), s.Duration, s.Seed)
	p("| samples | %d, one in %v |\n", len(run.Samples), s.Every)
	p("| again | `make soak DEVICE=%s DURATION=%v SEED=%d` |\n\n", s.Device, s.Duration, s.Seed)
	failures(p, reasons)
	layers(p, run)
	faults(p, run)
	trends(p, run)
	counters(p, run)
	if len(run.Samples) > 1 {
		p("## In time\n\n![rates, memory, files and objects](%s)\n", picture)
	}
}

type printf = func(format string, args ...any)

func word(reasons []string) string {
	if len(reasons) == 0 {
		return "passed"
	}
	return "failed"
}

func failures(p printf, reasons []string) {
	p("## Verdict\n\n")
	if len(reasons) == 0 {
		p("Passed: no error, nothing lost, reordered, doubled or damaged, no layer without\nprogress, nothing left when all was closed, nothing that grows.\n\n")
		return
	}
	p("Failed:\n\n")
	for _, r := range reasons {
		p("- %s\n", firstLine(r))
		if _, rest, long := strings.Cut(r, "\n"); long {
			p("\n```\n%s\n```\n\n", strings.TrimRight(rest, "\n"))
		}
	}
	p("\n")
}

func layers(p printf, run *samples.Run) {
	last := run.Last()
	if last == nil {
		return
	}
	p("## Layers\n\n| layer | connections | rounds | MiB | MiB/s | longest rest |\n|---|--:|--:|--:|--:|--:|\n")
	var sum samples.Layer
	for _, name := range run.Start.Layers {
		l := last.Layers[name]
		p("| %s | %d | %d | %.1f | %.2f | %.1f s |\n", name, l.Connections, l.Rounds, mib(l.Bytes), mib(l.Bytes)/last.At, l.Rest)
		sum.Connections, sum.Rounds, sum.Bytes = sum.Connections+l.Connections, sum.Rounds+l.Rounds, sum.Bytes+l.Bytes
	}
	p("| all | %d | %d | %.1f | %.2f | |\n\n", sum.Connections, sum.Rounds, mib(sum.Bytes), mib(sum.Bytes)/last.At)
	p("A round is one of [tests/workload](../../tests/workload/layer.go), or a dial, and its\n")
	p("bytes are those that it is asked to move, either way. A layer may rest for %v.\n\n", run.Start.Stall)
}

// faults lists what the network did.
func faults(p printf, run *samples.Run) {
	if run.End == nil || len(run.End.Faults) == 0 {
		return
	}
	p("## Faults\n\n| one after the other | times | seconds |\n|---|--:|--:|\n")
	for _, f := range run.End.Faults {
		p("| %s | %d | %.0f |\n", f.Name, f.Times, f.Seconds)
	}
	p("\nOf %d packets %d were dropped.\n\n", run.End.Packets, run.End.Dropped)
}

func trends(p printf, run *samples.Run) {
	all := run.Trends()
	if all == nil {
		p("## Growth\n\nThe run was too short to tell.\n\n")
		return
	}
	p("## Growth\n\n| | median of the middle third | of the last | may be | slope, per hour |\n|---|--:|--:|--:|--:|\n")
	for _, t := range all {
		p("| %[1]s | %.0[2]f %[3]s | %.0[4]f %[3]s | %.0[5]f %[3]s | %+.1[6]f |\n", t.Name, t.Middle, t.Unit, t.Last, t.Bound, t.PerHour)
	}
	p("\n")
}

func counters(p printf, run *samples.Run) {
	last := run.Last()
	if last == nil || len(last.Counters) == 0 {
		return
	}
	p("## Counters of the device\n\n| | |\n|---|--:|\n")
	for _, name := range samples.Names(last.Counters) {
		if n := last.Counters[name] - run.Samples[0].Counters[name]; n != 0 {
			p("| %s | %d |\n", name, n)
		}
	}
	p("\nThose that counted nothing are left out.\n\n")
}

func mib(bytes uint64) float64 { return float64(bytes) / (1 << 20) }
