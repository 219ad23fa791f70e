package main

import (
	"encoding/xml"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/tests/bench/record"
)

// flat returns three figures that are all the same.
func flat(v float64) record.Sample { return record.Sample{v, v, v} }

var lines = []record.Line{
	{Group: record.Connections, Device: "rxe0", Name: "set-ups, one at a time", Unit: "/s", Higher: true, Beside: "C", Ours: record.Sample{80, 100, 120}, C: flat(400)},
	{Group: record.Connections, Device: "siw0", Name: "set-ups, one at a time", Unit: "/s", Higher: true, Beside: "C", Ours: record.Sample{1, 2}, C: record.Sample{2, 1}},
	{Group: record.Latency, Device: "rxe0", Name: "fetch-and-add, polled", Unit: "µs", Beside: "C", Ours: flat(0.44), C: flat(0.5)},
	{Group: record.Soft, Name: "SEND of 64 KiB", Unit: "MB/s", Higher: true, Beside: "rxe", Ours: flat(300), C: flat(100)},
}

// folder returns a folder of documents in which lines were recorded.
func folder(t *testing.T, of string, lines ...record.Line) string {
	t.Helper()
	docs := t.TempDir()
	page := "# Title\n" + begin + "old\n" + end + "more\n"
	labtest.Check(t, os.WriteFile(filepath.Join(docs, "benchmarks.md"), []byte(page), 0o644))
	labtest.Check(t, collect(docs, of, left(t, lines...)), write(docs))
	return docs
}

// left returns a folder in which tests left lines.
func left(t *testing.T, lines ...record.Line) string {
	t.Helper()
	dir := t.TempDir()
	for _, l := range lines {
		labtest.Check(t, record.Append(dir, l))
	}
	return dir
}

func read(t *testing.T, file ...string) string {
	t.Helper()
	text := labtest.Must(os.ReadFile(filepath.Join(file...)))(t)
	return string(text)
}

func TestTables(t *testing.T) {
	t.Setenv("LAB_ACCEL", "dilated")
	page := read(t, folder(t, record.Lab, lines...), "benchmarks.md")
	for _, want := range []string{
		"| | beside | rxe: Go | other | ratio | siw: Go | other | ratio |\n",
		"\n| **Connections** | | | | | | | |\n| set-ups, one",
		"\n| set-ups, one at a time | C | 100 /s | 400 /s | 0.25 (0.20 to 0.30) behind | 1.5 /s | 1.5 /s | 1.00 (0.50 to 2.00) undecided |\n",
		"\n| set-ups, 16 at a time | C |  |  | not measured |  |  | not measured |\n",
		"\n| fetch-and-add, polled | C | 0.44 µs | 0.5 µs | 1.14 (1.14 to 1.14) ahead | | | |\n",
		"\n| SEND of 64 KiB | rxe | 300 MB/s | 100 MB/s | 3.00 (3.00 to 3.00) ahead | | | |\n",
		"| `make bench-native` | not measured |",
		" | dilated | rdma-core",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %s", want)
		}
	}
	for _, without := range []string{"old\n", "not dilated", "%!", "NaN"} {
		if strings.Contains(page, without) {
			t.Errorf("the page has %s", without)
		}
	}
	if !strings.HasPrefix(page, "# Title\n") || !strings.HasSuffix(page, "more\n") {
		t.Errorf("what was written by hand has gone:\n%s", page)
	}
}

// TestClock checks that the page warns if the clock of the lab was not dilated.
func TestClock(t *testing.T) {
	t.Setenv("LAB_ACCEL", "")
	if !strings.Contains(read(t, folder(t, record.Lab, lines...), "benchmarks.md"), "not dilated") {
		t.Error("no warning")
	}
}

// TestPlot checks that the plot is XML, with a mark for each line that was measured.
func TestPlot(t *testing.T) {
	svg := read(t, folder(t, record.Lab, lines...), "benchmarks.svg")
	marks := 0
	for d := xml.NewDecoder(strings.NewReader(svg)); ; {
		token, err := d.Token()
		if err == io.EOF {
			break
		}
		labtest.Check(t, err)
		if e, ok := token.(xml.StartElement); ok && e.Name.Local == "circle" {
			marks++
		}
	}
	if marks != len(lines) {
		t.Errorf("%d marks for %d lines", marks, len(lines))
	}
}

// TestParts records one part after the other: a part replaces its own earlier figures only.
func TestParts(t *testing.T) {
	docs := folder(t, record.Lab, lines...)
	native := record.Line{Group: record.UserSpace, Device: "siw0", Name: "poll_1", Unit: "ns", Beside: "cgo", Ours: flat(5), C: flat(35)}
	if err := collect(docs, record.Lab, left(t, native)); err == nil {
		t.Error("figures of the native part were taken for the lab's")
	}
	labtest.Check(t, collect(docs, record.Native, left(t, native)))
	labtest.Check(t, collect(docs, record.Lab, left(t, lines[0])), write(docs))
	page := read(t, docs, "benchmarks.md")
	if !strings.Contains(page, "| poll_1 | cgo |  |  | not measured | 5 ns | 35 ns |") || !strings.Contains(page, "100 /s") || strings.Contains(page, "0.44 µs") {
		t.Errorf("with both parts:\n%s", page)
	}
}

func TestCheck(t *testing.T) {
	count := func(v float64) record.Line {
		return record.Line{Group: record.Instrs, Device: "rxe0", Name: "poll_1", Unit: "instructions", Ours: record.Sample{v}}
	}
	docs := folder(t, record.Counted, count(100))
	for _, test := range []struct {
		now  record.Line
		want string
	}{
		{count(104.9), ""},
		{count(50), ""},
		{count(105.1), "1 of 1 figures are more than 5 % above"},
		{record.Line{Group: record.Instrs, Device: "siw0", Name: "poll_1", Ours: record.Sample{1}}, "nothing in"},
	} {
		err := check(docs, record.Counted, left(t, test.now), io.Discard)
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%v: %v", test.now.Ours, err)
		}
	}
}
