package perf

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/latency"
)

// svgText checks that a file is well-formed SVG and returns its texts.
func svgText(t *testing.T, file string) string {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var text strings.Builder
	var root string
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
		case xml.CharData:
			text.Write(tok)
			text.WriteByte(' ')
		}
	}
	if root != "svg" {
		t.Errorf("%s holds %q", file, root)
	}
	return text.String()
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
