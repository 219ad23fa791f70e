package perf

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/verbs/cmd/verbs/internal/latency"
)

// svgText checks that a file is well-formed SVG, with all points of its lines within
// the axes, and returns its texts.
func svgText(t *testing.T, file string) string {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var text strings.Builder
	var root string
	points := 0
	for d := xml.NewDecoder(f); ; {
		tok, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		switch tok := tok.(type) {
		case xml.StartElement:
			if root == "" {
				root = tok.Name.Local
			}
			for _, a := range tok.Attr {
				if a.Name.Local != "points" {
					continue
				}
				for p := range strings.FieldsSeq(a.Value) {
					var x, y float64
					if _, err := fmt.Sscanf(p, "%f,%f", &x, &y); err != nil || !(80 <= x && x <= 740 && 40 <= y && y <= 400) {
						t.Errorf("a point at %s, %v", p, err)
					}
					points++
				}
			}
		case xml.CharData:
			text.Write(tok)
			text.WriteByte(' ')
		}
	}
	if root != "svg" || points == 0 {
		t.Errorf("%s holds %q with %d points", file, root, points)
	}
	return text.String()
}

func TestLinearAxis(t *testing.T) {
	for top, want := range map[float64]string{
		0: "0 0.2 0.4 0.6 0.8 1", 0.3: "0 0.1 0.2 0.3", 7: "0 2 4 6 8", 100: "0 20 40 60 80 100",
		101: "0 50 100 150", 12345: "0 5000 10000 15000", 2e6: "0 500000 1000000 1500000 2000000",
	} {
		var got []string
		a := linearAxis("", top)
		for _, tick := range a.ticks {
			got = append(got, tick.label)
		}
		if text := strings.Join(got, " "); text != want || a.to < top {
			t.Errorf("to %g: %s, want %s", top, text, want)
		}
	}
}

func TestPlot(t *testing.T) {
	sized := func(mode string, sizes ...int) (all []*result) {
		for _, n := range sizes {
			r := &result{Op: "send", Mode: mode, Device: "rxe0", Size: n}
			if mode == modeLat {
				r.hist = latency.New()
				for i := range 1000 {
					r.hist.Record(time.Duration(n+i) * time.Microsecond)
				}
				r.Latency = r.hist.Summary()
			} else {
				r.Bandwidth = new(bandwidth)
				r.Bandwidth.add(100, n, 0.5)
			}
			all = append(all, r)
		}
		return all
	}
	for name, c := range map[string]struct {
		results []*result
		want    []string
	}{
		"bandwidth":     {sized(modeBW, sizes()...), []string{"send bw on rxe0", "MiB/s", "bytes", "8 KiB", "2 MiB"}},
		"one bandwidth": {sized(modeBW, 65536), []string{"send bw on rxe0", "MiB/s"}},
		"no bandwidth":  {[]*result{{Mode: modeBW, Bandwidth: new(bandwidth)}}, []string{"MiB/s"}},
		"latency":       {sized(modeLat, sizes()...), []string{"send lat on rxe0", "p50", "p99.9", "bytes"}},
		"distribution":  {sized(modeLat, 2), []string{"send lat on rxe0", "percentile"}},
		"all lost":      {[]*result{{Mode: modeLat, hist: latency.New()}}, []string{"percentile"}},
		"partly lost":   {append(sized(modeLat, 2, 4, 8), &result{Mode: modeLat, Size: 16}), []string{"p99.9"}},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "out.svg")
			if err := plot(file, c.results); err != nil {
				t.Fatal(err)
			}
			text := svgText(t, file)
			for _, want := range c.want {
				if !strings.Contains(text, want) {
					t.Errorf("no %q in %q", want, text)
				}
			}
		})
	}
	lost := []*result{{Mode: modeLat, Size: 2}, {Mode: modeLat, Size: 4}}
	if err := plot(filepath.Join(t.TempDir(), "out.svg"), lost); err == nil {
		t.Error("nothing is drawn")
	}
	if err := plot(filepath.Join(t.TempDir(), "no", "such", "out.svg"), sized(modeBW, 1)); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}
