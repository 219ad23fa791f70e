package samples

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
)

// steady returns a run of an hour without problems.
func steady() *Run {
	r := &Run{Start: Start{Duration: time.Hour, Every: 5 * time.Second, Stall: time.Minute, Layers: []string{"a", "b"}}}
	rnd := rand.New(rand.NewPCG(1, 2))
	for at := 0.0; at < 3600; at += 5 {
		rss := func() Process { return Process{RSS: 40<<10 + rnd.IntN(8<<10), Files: 30 + rnd.IntN(8)} }
		r.Samples = append(r.Samples, Sample{
			At:        at,
			Layers:    map[string]Layer{"a": {uint64(at) * 9, uint64(at) << 20, 1 + uint64(at)/7, 4}, "b": {uint64(at) + 1, 0, 1, 31}},
			Processes: map[string]Process{"client": rss(), "server": rss()},
			Kernel:    map[string]int{"qp": 20 + rnd.IntN(6), "SUnreclaim": 60<<10 + rnd.IntN(4<<10)},
		})
	}
	r.End = &End{At: 3605}
	return r
}

func TestVerdict(t *testing.T) {
	if reasons := steady().Verdict(); reasons != nil {
		t.Error(reasons)
	}
	each := func(r *Run, f func(i int, s *Sample)) {
		for i := range r.Samples {
			f(i, &r.Samples[i])
		}
	}
	for name, c := range map[string]struct {
		spoil func(*Run)
		want  string
	}{
		"killed":     {func(r *Run) { r.End = nil }, "cut off"},
		"failure":    {func(r *Run) { r.End.Failures = []string{"message 7 is lost"} }, "message 7 is lost"},
		"leak":       {func(r *Run) { r.End.Leaks = []string{"files: were 3, are 4"} }, "left after everything was closed: files"},
		"early":      {func(r *Run) { r.End.At = 3000 }, "ended after 50m0s of 1h0m0s"},
		"idle layer": {func(r *Run) { r.Start.Layers = append(r.Start.Layers, "c") }, "layer c did nothing"},
		"stall":      {func(r *Run) { r.Last().Layers["b"] = Layer{1, 0, 1, 61} }, "layer b made no progress for 61.0 s"},
		"no samples": {func(r *Run) { r.Samples = nil }, "layer a did nothing"},
		"slow leak":  {func(r *Run) { each(r, func(i int, s *Sample) { s.grow("server", int(s.At)*20) }) }, "RSS of the server"},
		"late leak":  {func(r *Run) { each(r, func(i int, s *Sample) { s.grow("client", max(0, int(s.At)-2400)*30) }) }, "RSS of the client"},
		"QPs":        {func(r *Run) { each(r, func(i int, s *Sample) { s.Kernel["qp"] += i / 12 }) }, "QPs"},
		"kernel":     {func(r *Run) { each(r, func(i int, s *Sample) { s.Kernel["SUnreclaim"] += i * 70 }) }, "unreclaimable"},
		"big swings": {func(r *Run) { each(r, func(i int, s *Sample) { s.grow("server", i%2*(80<<10)+int(s.At)*40) }) }, "RSS of the server"},
	} {
		t.Run(name, func(t *testing.T) {
			r := steady()
			c.spoil(r)
			if got := strings.Join(r.Verdict(), "\n"); !strings.Contains(got, c.want) {
				t.Errorf("the verdict is %q, without %q", got, c.want)
			}
		})
	}
	// More connections are not a leak when more are made.
	r := steady()
	each(r, func(i int, s *Sample) {
		if s.At > 2400 {
			s.Layers["a"] = Layer{2400*9 + uint64(s.At-2400)*18, 1, 1, 4}
			s.Kernel["qp"] += 20
		}
	})
	if reasons := r.Verdict(); reasons != nil {
		t.Error(reasons)
	}
	// Memory that a process allocates once, at the start, is not a leak.
	r = steady()
	each(r, func(i int, s *Sample) { s.grow("client", min(int(s.At), 1000)*30) })
	if reasons := r.Verdict(); reasons != nil {
		t.Error(reasons)
	}
}

func (s *Sample) grow(process string, kib int) {
	p := s.Processes[process]
	p.RSS += kib
	s.Processes[process] = p
}

func TestRead(t *testing.T) {
	want := steady()
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.Encode(Line{Start: &want.Start})
	for i := range want.Samples {
		e.Encode(Line{Sample: &want.Samples[i]})
	}
	whole := b.Len()
	e.Encode(Line{End: want.End})
	for name, c := range map[string]struct {
		text    string
		samples int
		end     bool
	}{
		"whole":  {b.String(), len(want.Samples), true},
		"killed": {b.String()[:whole], len(want.Samples), false},
		"cut":    {b.String()[:whole-10], len(want.Samples) - 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			got := labtest.Must(Read(strings.NewReader(c.text)))(t)
			if len(got.Samples) != c.samples || (got.End != nil) != c.end || got.Start.Duration != time.Hour {
				t.Errorf("%d samples of %d, end %v", len(got.Samples), c.samples, got.End)
			}
		})
	}
	for _, text := range []string{"", "{}", "x\n" + b.String(), b.String()[:20]} {
		if _, err := Read(strings.NewReader(text)); err == nil {
			t.Errorf("read %.20q", text)
		}
	}
}
