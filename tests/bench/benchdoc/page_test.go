package main

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/goverbs/verbs/tests/bench/record"
)

// TestCommitted finds the page and the plots as the figures beside them have
// them, and no other plots.
func TestCommitted(t *testing.T) {
	const docs = "../../../docs"
	files, err := render(docs)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		if got, err := os.ReadFile(filepath.Join(docs, name)); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is not what its figures give: run go run ./tests/bench/benchdoc (%v)", name, err)
		}
	}
	plots, err := filepath.Glob(docs + "/benchmarks/*.svg")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range plots {
		if files["benchmarks/"+filepath.Base(p)] == nil {
			t.Errorf("%s: a plot of nothing", p)
		}
	}
}

// around are nine figures within a spread of their median.
func around(median, spread float64) record.Sample {
	return record.Sample{median - spread/2, median, median, median, median, median, median, median, median + spread/2}
}

var sets = []record.Line{
	{Group: "set-up", Device: "rxe0", Name: "set-up, by itself", Unit: "µs", Beside: "C", Target: 1, Ours: around(100, 40), C: around(225, 100)},
	{Group: "set-up", Device: "rxe0", Name: "set-ups, one at a time", Unit: "/s", Higher: true, Beside: "C", Target: 1, Ours: around(731, 400), C: around(100, 4)},
	{Group: "set-up", Device: "rxe0", Name: "set-ups, 16 at a time", Unit: "/s", Higher: true, Beside: "C", Target: 1, Ours: around(100, 4), C: around(731, 400)},
	{Group: "set-up", Device: "siw0", Name: "set-up, by itself", Unit: "µs", Beside: "C", Target: 1, Ours: around(1000, 4), C: around(500, 4)},
	{Group: "size", Name: "program with its shared libraries", Unit: "MiB", Beside: "C", Slack: 6, Ours: around(4, 0), C: around(1, 0)},
	{Group: "memory per connection", Device: "rxe0", Name: "client, of 256 connections", Unit: "KiB", Beside: "C", Target: 1, Ours: around(20, 19), C: around(20, 1)},
}

// folder is a folder of documents in which those lines were measured.
func folder(t *testing.T, lines ...record.Line) string {
	t.Helper()
	docs, dir := t.TempDir(), t.TempDir()
	if err := os.Mkdir(filepath.Join(docs, "benchmarks"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(docs, "benchmarks", "notes.md"), []byte("## Why\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, l := range lines {
		if err := record.Append(dir, l); err != nil {
			t.Fatal(err)
		}
	}
	if err := collect(docs, record.Lab, dir); err != nil {
		t.Fatal(err)
	}
	return docs
}

func TestPage(t *testing.T) {
	files, err := render(folder(t, sets...))
	if err != nil {
		t.Fatal(err)
	}
	page := string(files["benchmarks.md"])
	for _, want := range []string{
		// Of the six lines that belong to it, four were measured.
		"| Setting connections up, by Dial and Listen | ≥ 1.0 × C's rate, ≤ 1.0 × C's time | 2.25 | 0.50 | missed: 1 of 6, too noisy: 2 of 6, not measured: 2 of 6, met: 1 of 6 |\n",
		"| Size, on disk and in memory | ≤ C's with its shared libraries + 6 MiB | +3.00 MiB | +3.00 MiB | not measured: 2 of 3, met: 1 of 3 |\n",
		"| Posting and polling in user space, but for the doorbell | ≤ 0.9 × libibverbs' time |  |  | not measured |\n",
		"| rxe | set-up, by itself | µs | 80 / 100 / 120 | C | 175 / 225 / 275 | 2.25 | met |\n",
		"| rxe | set-ups, one at a time | /s | 531 / 731 / 931 | C | 98 / 100 / 102 |  | too noisy |\n",
		"| siw | set-ups, 16 at a time |  |  |  |  |  | not measured |\n",
		"![Setting connections up, by Dial and Listen, Go beside C](benchmarks/set-up.svg)",
		"| `make bench-native` | not measured |",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %s", want)
		}
	}
	if !strings.HasSuffix(page, "\n\n## Why\n") {
		t.Error("the page does not end with the notes")
	}
	if strings.Contains(page, "benchmarks/memory-per-connection.svg") || files["benchmarks/memory-per-connection.svg"] != nil {
		t.Error("a plot with nothing but noise")
	}
}

// TestNoise has no ratio of noisy figures anywhere, nor bars of them.
func TestNoise(t *testing.T) {
	files, err := render(folder(t, sets...))
	if err != nil {
		t.Fatal(err)
	}
	ratio := regexp.MustCompile(`\b(7\.31|0\.14|0\.137)\b`) // of those that are noisy
	for name, text := range files {
		if found := ratio.Find(text); found != nil {
			t.Errorf("%s has %s", name, found)
		}
	}
	svg := string(files["benchmarks/set-up.svg"])
	if n := strings.Count(svg, ">too noisy</text>"); n != 2 {
		t.Errorf("%d lines of the plot are called noisy", n)
	}
	// Two lines are told, and the legend has a swatch.
	if n := strings.Count(svg, "fill:#007D9C"); n != 3 {
		t.Errorf("%d bars", n)
	}
}

// TestSame is that the page and the plots depend on the figures alone.
func TestSame(t *testing.T) {
	docs := folder(t, sets...)
	a, err := render(docs)
	if err != nil {
		t.Fatal(err)
	}
	b, err := render(docs)
	if err != nil || !maps.EqualFunc(a, b, bytes.Equal) {
		t.Errorf("twice the same figures give two pages: %v", err)
	}
}

// TestParts measures one part again: it keeps nothing of what it had, and the
// other part stays.
func TestParts(t *testing.T) {
	docs, dir := folder(t, sets...), t.TempDir()
	native := record.Line{Group: "allocations", Device: "rxe0", Name: "allocations", Unit: "per round", Beside: "none", Ours: around(0, 0)}
	if err := record.Append(dir, native); err != nil {
		t.Fatal(err)
	}
	if err := collect(docs, record.Lab, dir); err == nil {
		t.Error("figures of the native part were taken for the lab's")
	}
	if err := collect(docs, record.Native, dir); err != nil {
		t.Fatal(err)
	}
	if err := write(docs); err != nil {
		t.Fatal(err)
	}
	page := func() string {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(docs, "benchmarks.md"))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	if p := page(); !strings.Contains(p, "| 2.25 |") || !strings.Contains(p, "| 0 | 0 |  | not measured: 1 of 2, met: 1 of 2 |") {
		t.Errorf("with both parts:\n%s", p)
	}
	if err := collect(docs, record.Lab, t.TempDir()); err != nil {
		t.Fatal(err)
	}
	if err := write(docs); err != nil {
		t.Fatal(err)
	}
	if p := page(); strings.Contains(p, "2.25") || !strings.Contains(p, "| `make bench` | not measured |") || !strings.Contains(p, "met: 1 of 2") {
		t.Errorf("after a run of the lab that measured nothing:\n%s", p)
	}
	if svg, _ := filepath.Glob(filepath.Join(docs, "benchmarks", "*.svg")); len(svg) != 0 {
		t.Errorf("plots of figures that are gone: %v", svg)
	}
}
