package soak

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// recorded is a course and its samples.
type recorded struct {
	course
	samples []sample
}

func (r *recorded) verdict() []string {
	for _, s := range r.samples {
		r.add(s)
	}
	return r.course.verdict()
}

// steady returns a run of an hour without problems.
func steady() *recorded {
	r := &recorded{course: course{duration: time.Hour, stall: time.Minute, layers: []string{"a", "b"}, took: 3605 * time.Second}}
	rnd := rand.New(rand.NewPCG(1, 2))
	for at := 0.0; at < 3600; at += 5 {
		rss := func() process { return process{RSS: 40<<10 + rnd.IntN(8<<10), Files: 30 + rnd.IntN(8)} }
		r.samples = append(r.samples, sample{
			at:        at,
			layers:    map[string]work{"a": {uint64(at) * 9, uint64(at) << 20, 1 + uint64(at)/7, 4}, "b": {uint64(at) + 1, 0, 1, 31}},
			processes: map[string]process{"client": rss(), "server": rss()},
			kernel:    map[string]int{"qp": 20 + rnd.IntN(6), "SUnreclaim": 60<<10 + rnd.IntN(4<<10)},
		})
	}
	return r
}

func TestVerdict(t *testing.T) {
	if reasons := steady().verdict(); reasons != nil {
		t.Error(reasons)
	}
	each := func(r *recorded, f func(i int, s *sample)) {
		for i := range r.samples {
			f(i, &r.samples[i])
		}
	}
	for name, c := range map[string]struct {
		spoil func(*recorded)
		want  string
	}{
		"failure":    {func(r *recorded) { r.failures = []string{"message 7 is lost"} }, "message 7 is lost"},
		"leak":       {func(r *recorded) { r.leaks = []string{"files: were 3, are 4"} }, "left after everything was closed: files"},
		"early":      {func(r *recorded) { r.took = 50 * time.Minute }, "ended after 50m0s of 1h0m0s"},
		"idle layer": {func(r *recorded) { r.layers = append(r.layers, "c") }, "layer c did nothing"},
		"stall":      {func(r *recorded) { r.samples[len(r.samples)-1].layers["b"] = work{1, 0, 1, 61} }, "layer b made no progress for 61.0 s"},
		"no samples": {func(r *recorded) { r.samples = nil }, "layer a did nothing"},
		"slow leak":  {func(r *recorded) { each(r, func(i int, s *sample) { s.grow("server", int(s.at)*20) }) }, "RSS of the server"},
		"late leak":  {func(r *recorded) { each(r, func(i int, s *sample) { s.grow("client", max(0, int(s.at)-2400)*30) }) }, "RSS of the client"},
		"QPs":        {func(r *recorded) { each(r, func(i int, s *sample) { s.kernel["qp"] += i / 12 }) }, "QPs"},
		"kernel":     {func(r *recorded) { each(r, func(i int, s *sample) { s.kernel["SUnreclaim"] += i * 70 }) }, "unreclaimable"},
		"big swings": {func(r *recorded) { each(r, func(i int, s *sample) { s.grow("server", i%2*(80<<10)+int(s.at)*40) }) }, "RSS of the server"},
	} {
		t.Run(name, func(t *testing.T) {
			r := steady()
			c.spoil(r)
			if got := strings.Join(r.verdict(), "\n"); !strings.Contains(got, c.want) {
				t.Errorf("the verdict is %q, without %q", got, c.want)
			}
		})
	}
	// More connections are not a leak when more are made.
	r := steady()
	each(r, func(i int, s *sample) {
		if s.at > 2400 {
			s.layers["a"] = work{2400*9 + uint64(s.at-2400)*18, 1, 1, 4}
			s.kernel["qp"] += 20
		}
	})
	if reasons := r.verdict(); reasons != nil {
		t.Error(reasons)
	}
	// Connections that last longer for a while are no leak.
	r = steady()
	each(r, func(i int, s *sample) {
		if s.at > 2400 && i%5 < 3 {
			s.kernel["qp"] += 20
		}
	})
	if reasons := r.verdict(); reasons != nil {
		t.Error(reasons)
	}
	// Memory that a process allocates once, at the start, is not a leak.
	r = steady()
	each(r, func(i int, s *sample) { s.grow("client", min(int(s.at), 1000)*30) })
	if reasons := r.verdict(); reasons != nil {
		t.Error(reasons)
	}
}

func (s *sample) grow(process string, kib int) {
	p := s.processes[process]
	p.RSS += kib
	s.processes[process] = p
}
