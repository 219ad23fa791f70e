package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/tests/soak/samples"
)

// write writes the samples of a run of several minutes.
func write(t *testing.T, end *samples.End) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "v0.jsonl")
	f := labtest.Must(os.Create(file))(t)
	e := json.NewEncoder(f)
	lines := []samples.Line{{Start: &samples.Start{Device: "v0", Kernel: "6.0", Duration: 6 * time.Minute, Every: 5 * time.Second, Stall: time.Minute, Seed: 77, Layers: []string{"a"}}}}
	for i := range uint64(73) {
		p := samples.Process{RSS: 1 << 15, Files: 9}
		lines = append(lines, samples.Line{Sample: &samples.Sample{
			At:        float64(5 * i),
			Layers:    map[string]samples.Layer{"a": {Rounds: 10 * i, Bytes: i << 20, Connections: i, Rest: 2.5}},
			Processes: map[string]samples.Process{"client": p, "server": p},
			Kernel:    map[string]int{"qp": 4},
			Counters:  map[string]uint64{"sent_pkts": 100 * i, "errors": 3},
		}})
	}
	for _, l := range append(lines, samples.Line{End: end}) {
		labtest.Check(t, e.Encode(l))
	}
	labtest.Check(t, f.Close())
	return file
}

func TestReport(t *testing.T) {
	good := &samples.End{At: 365, Faults: []samples.Fault{{Name: "partition", Times: 3, Seconds: 12}}, Packets: 100, Dropped: 7}
	bad := &samples.End{At: 361, Failures: []string{"a server: message 7 is damaged\ngoroutine 1 [running]"}, Leaks: []string{"files: were 3, are 4"}}
	for name, c := range map[string]struct {
		end    *samples.End
		status int
		want   []string
	}{
		"passed": {good, 0, []string{"# v0 for 6m5s: passed", "| a | 72 | 720 | 72.0 | 0.20 | 2.5 s |", "| sent_pkts | 7200 |", "RSS of the client", "| partition | 3 | 12 |", "Of 100 packets 7 were dropped", "SEED=77", "(v0.svg)"}},
		"failed": {bad, 0, []string{": failed", "- a server: message 7 is damaged\n\n```\ngoroutine 1", "files: were 3, are 4"}},
		"kernel": {good, 1, []string{": failed", "exit status is 1"}},
		"killed": {nil, 0, []string{"# v0 for 6m0s: failed", "cut off"}},
	} {
		t.Run(name, func(t *testing.T) {
			file := write(t, c.end)
			to := strings.TrimSuffix(file, ".jsonl") + ".md"
			reasons, err := report(file, to, c.status)
			if err != nil || (len(reasons) == 0) != (name == "passed") {
				t.Fatal(reasons, err)
			}
			text := labtest.Must(os.ReadFile(to))(t)
			for _, w := range c.want {
				if !strings.Contains(string(text), w) {
					t.Errorf("%q is not in\n%s", w, text)
				}
			}
			if strings.Contains(string(text), "| errors |") {
				t.Error("a counter that stood still is told of")
			}
			svg, err := os.ReadFile(strings.TrimSuffix(to, ".md") + ".svg")
			if err != nil || !strings.Contains(string(svg), "<svg") || !strings.Contains(string(svg), "RSS of the server") {
				t.Errorf("the plot: %d bytes, %v", len(svg), err)
			}
		})
	}
	if _, err := report(filepath.Join(t.TempDir(), "none"), "x.md", 0); err == nil {
		t.Error("reported on nothing")
	}
}
