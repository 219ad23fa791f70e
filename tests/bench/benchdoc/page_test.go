package main

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/tests/bench/record"
)

// TestCommitted checks that the committed page and plots are those of the committed figures,
// and that there are no other plots.
func TestCommitted(t *testing.T) {
	const docs = "../../../docs"
	files := labtest.Must(render(docs))(t)
	for name, want := range files {
		if got, err := os.ReadFile(filepath.Join(docs, name)); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is not what its figures give: run go run ./tests/bench/benchdoc (%v)", name, err)
		}
	}
	plots := labtest.Must(filepath.Glob(docs + "/benchmarks/*.svg"))(t)
	for _, p := range plots {
		if files["benchmarks/"+filepath.Base(p)] == nil {
			t.Errorf("%s: a plot of nothing", p)
		}
	}
}

// flat returns three figures that are all the same.
func flat(v float64) record.Sample { return record.Sample{v, v, v} }

var spread = &record.Spread{
	Ours: record.NewHistogram(record.Sample{400, 450, 500, 30_000}),
	C:    record.NewHistogram(record.Sample{400, 450, 20_000_000}),
}

var lines = []record.Line{
	{Group: "set-up", Device: "rxe0", Name: "set-up, by itself", Unit: "µs", Beside: "C", Ours: record.Sample{80, 100, 120}, C: record.Sample{180, 225, 270}},
	{Group: "set-up", Device: "rxe0", Name: "set-ups, one at a time", Unit: "/s", Higher: true, Beside: "C", Ours: flat(100), C: flat(400)},
	{Group: "set-up", Device: "siw0", Name: "set-up, by itself", Unit: "µs", Beside: "C", Ours: record.Sample{1, 2}, C: record.Sample{2, 1}},
	{Group: "size", Name: "program with its shared libraries", Unit: "MiB", Beside: "C", Ours: flat(4), C: flat(4)},
	{Group: "latency", Device: "rxe0", Name: "READ of 8 bytes", Unit: "µs", Beside: "C", Ours: flat(0.45), C: flat(0.44), Spread: spread},
}

// folder returns a folder of documents with the figures of lines.
func folder(t *testing.T, lines ...record.Line) string {
	t.Helper()
	docs, dir := t.TempDir(), t.TempDir()
	labtest.Check(t, os.Mkdir(filepath.Join(docs, "benchmarks"), 0o755))
	labtest.Check(t, os.WriteFile(filepath.Join(docs, "benchmarks", "notes.md"), []byte("## Why\n"), 0o644))
	for _, l := range lines {
		labtest.Check(t, record.Append(dir, l))
	}
	labtest.Check(t, collect(docs, record.Lab, dir))
	return docs
}

// rendered returns the page and the plots of lines.
func rendered(t *testing.T, lines ...record.Line) map[string][]byte {
	t.Helper()
	files := labtest.Must(render(folder(t, lines...)))(t)
	return files
}

func TestPage(t *testing.T) {
	t.Setenv("LAB_ACCEL", "dilated")
	page := string(rendered(t, lines...)["benchmarks.md"])
	for _, want := range []string{
		"\n| [Set-up of a connection](#connection-set-up-with-dial-and-listen) | 100 µs | 225 µs | 2.25 (2.25 to 2.25), **ahead** | 1.5 µs | 1.5 µs | 1.00 (0.50 to 2.00), **undecided** |\n",
		"\n| [Latency of a READ of 8 bytes, polled](#latency-polled) | 0.45 µs | 0.44 µs | 0.98 (0.98 to 0.98), **behind** |  |  | **not measured** |\n",
		"\n| Cost of a post and of a poll in user space | <br> | <br> | **not measured**<br>**not measured** |",
		"\n| [Connection set-up with Dial and Listen](#connection-set-up-with-dial-and-listen) | 1 | | 1 | 1 | 3 |\n",
		"\n| [Size on disk and in memory](#size-on-disk-and-in-memory) | | 1 | | | 2 |\n",
		"\n| Message rate | | | | | 16 |\n",
		"\n### Connection set-up with Dial and Listen\n\n![Connection set-up with Dial and Listen](benchmarks/set-up.svg)\n",
		"\n| rxe | set-up, by itself | µs | 80 / 100 / 120 | 180 / 225 / 270 | 3 | 2.25 (2.25 to 2.25) | ahead |\n",
		"\n| siw | set-ups, 16 at a time |  |  |  |  |  | not measured |\n",
		"](benchmarks/latency.svg)\n\n![Latency, polled](benchmarks/latency-histogram.svg)\n",
		"| `make bench-native` | not measured |",
		" | dilated | rdma-core",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %s", want)
		}
	}
	if !strings.HasSuffix(page, "\n\n## Why\n") {
		t.Error("the page does not end with the notes")
	}
	for _, without := range []string{"### Message rate", "not dilated", "%!", "NaN"} {
		if strings.Contains(page, without) {
			t.Errorf("the page has %s", without)
		}
	}
}

// TestClock checks that the page warns if the clock of the lab was not dilated.
func TestClock(t *testing.T) {
	t.Setenv("LAB_ACCEL", "")
	if !bytes.Contains(rendered(t, lines...)["benchmarks.md"], []byte("not dilated")) {
		t.Error("no warning")
	}
}

// TestLinks checks that links lead to existing titles and files.
func TestLinks(t *testing.T) {
	files := rendered(t, lines...)
	page := string(files["benchmarks.md"])
	var anchors []string
	for _, m := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(page, -1) {
		anchors = append(anchors, anchor(m[1]))
	}
	for _, m := range regexp.MustCompile(`\]\(([^)]*)\)`).FindAllStringSubmatch(page, -1) {
		to, isAnchor := strings.CutPrefix(m[1], "#")
		if isAnchor && !slices.Contains(anchors, to) || strings.HasSuffix(to, ".svg") && files[to] == nil {
			t.Errorf("a link to %s", m[1])
		}
	}
}

// TestQuestions checks that the answers are among the lines of groups.
func TestQuestions(t *testing.T) {
	for _, q := range questions {
		g, ok := record.Find(q.group)
		for _, name := range q.lines {
			for _, device := range []string{"rxe0", "siw0"} {
				if !ok || !g.Has(record.Line{Group: g.Name, Device: device, Name: name}) {
					t.Errorf("%s: there is no %s: %s, %s", q.text, q.group, device, name)
				}
			}
		}
	}
}

// TestTargets checks that every target has lines, and that the page shows how many reach it.
func TestTargets(t *testing.T) {
	for _, target := range targets {
		if len(target.of(nil)) == 0 {
			t.Errorf("%s: no lines", target.work)
		}
	}
	page := string(rendered(t, lines...)["benchmarks.md"])
	for _, want := range []string{
		"\n| polled latency, median | 0.97 | 7 | 1 | 0.98, rxe READ of 8 bytes |\n",
		"\n| memory per connection, of 4096 | 1 | 4 | 0 | not measured |\n",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %s", want)
		}
	}
}

// TestForest checks that the plot contains the compared lines only.
func TestForest(t *testing.T) {
	files := rendered(t, append(slices.Clone(lines), record.Line{Group: "start", Name: "first device listed", Unit: "ms", Ours: flat(1)})...)
	svg := string(files["benchmarks/set-up.svg"])
	for _, want := range []string{
		">rxe: set-up, by itself</text>", ">100 µs</text>", ">225 µs</text>", ">2.25 (2.25 to 2.25)</text>",
		">0.25 (0.25 to 0.25)</text>", ">siw: set-up, by itself</text>",
	} {
		if !strings.Contains(svg, want) {
			t.Errorf("the plot lacks %s", want)
		}
	}
	if strings.Contains(svg, "16 at a time") {
		t.Error("a line that was not measured is in the plot")
	}
	if files["benchmarks/start.svg"] != nil {
		t.Error("a plot of a line that is compared with nothing")
	}
	if !bytes.Contains(files["benchmarks/size.svg"], []byte(">program with its shared libraries</text>")) {
		t.Error("no plot of a line without a device")
	}
}

// TestWide checks that axes for ratios of all sizes have enough ticks, but not too many.
func TestWide(t *testing.T) {
	for _, c := range []float64{1e-4, 0.01, 0.3, 0.9, 1, 1.4, 4, 30, 1e4} {
		least, most := min(0.8, c)/1.05, max(1.25, c)*1.05
		if n := len(ticks(ratios, 9, least, most)); n < 3 || n > 9 {
			t.Errorf("%d ticks from %.3g to %.3g", n, least, most)
		}
	}
}

func TestHistograms(t *testing.T) {
	files := rendered(t, lines...)
	svg := string(files["benchmarks/latency-histogram.svg"])
	for _, want := range []string{">rxe: READ of 8 bytes</text>", ">1µs</text>", ">10ms</text>", ">0.1 %</text>"} {
		if !strings.Contains(svg, want) {
			t.Errorf("the plot lacks %s", want)
		}
	}
	if files["benchmarks/set-up-histogram.svg"] != nil {
		t.Error("a plot of lines without a spread")
	}
}

// TestSame checks that the page and the plots depend only on the figures.
func TestSame(t *testing.T) {
	docs := folder(t, lines...)
	a := labtest.Must(render(docs))(t)
	b, err := render(docs)
	if err != nil || !maps.EqualFunc(a, b, bytes.Equal) {
		t.Errorf("twice the same figures give two pages: %v", err)
	}
}

// TestUnpaired reads figures that are not pairs, as old files may contain.
func TestUnpaired(t *testing.T) {
	docs := folder(t)
	const text = `{"kernel":"6.12","lines":[
{"group":"latency","device":"rxe0","name":"READ of 8 bytes","unit":"µs","beside":"C","ours":[1,2,3],"c":[1,2]}
]}`
	labtest.Check(t, os.WriteFile(figures(docs, record.Lab), []byte(text), 0o644))
	files, err := render(docs)
	if err != nil || !bytes.Contains(files["benchmarks.md"], []byte("| 1 / 2 / 3 | 1 / 1.5 / 2 | 3 |  | not measured |\n")) {
		t.Errorf("%v\n%s", err, files["benchmarks.md"])
	}
}

// TestParts measures one part again: its earlier figures are removed, and the other part is
// unchanged.
func TestParts(t *testing.T) {
	docs, dir := folder(t, lines...), t.TempDir()
	native := record.Line{Group: "allocations", Device: "rxe0", Name: "allocations", Unit: "per round", Beside: "none", Ours: flat(0)}
	labtest.Check(t, record.Append(dir, native))
	if err := collect(docs, record.Lab, dir); err == nil {
		t.Error("figures of the native part were taken for the lab's")
	}
	labtest.Check(t, collect(docs, record.Native, dir))
	labtest.Check(t, write(docs))
	page := func() string {
		t.Helper()
		text := labtest.Must(os.ReadFile(filepath.Join(docs, "benchmarks.md")))(t)
		return string(text)
	}
	const allocations = "| rxe | allocations | per round | 0 / 0 / 0 |  |  |  |  |\n"
	if p := page(); !strings.Contains(p, "2.25") || !strings.Contains(p, allocations) {
		t.Errorf("with both parts:\n%s", p)
	}
	labtest.Check(t, collect(docs, record.Lab, t.TempDir()))
	labtest.Check(t, write(docs))
	if p := page(); strings.Contains(p, "2.25") || !strings.Contains(p, "| `make bench` | not measured |") || !strings.Contains(p, allocations) {
		t.Errorf("after a run of the lab that measured nothing:\n%s", p)
	}
	if svg, _ := filepath.Glob(filepath.Join(docs, "benchmarks", "*.svg")); len(svg) != 0 {
		t.Errorf("plots of figures that are gone: %v", svg)
	}
}
