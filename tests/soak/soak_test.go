package soak

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
)

var (
	duration = flag.Duration("duration", 5*time.Second, "how long TestSoak runs on each device")
	every    = flag.Duration("every", 5*time.Second, "time between samples")
	stall    = flag.Duration("stall", time.Minute, "how long a layer may make no progress")
	pace     = flag.Duration("pace", 0, "how long a client rests after a round or a connection, on average, so that several runs fit a machine")
	seed     = flag.Uint64("seed", 0, "what the load is made from; 0 takes any")
	only     = flag.String("layers", "", "layers to run, separated by commas; all if empty")
)

// TestSoak runs all layers at the same time, and checks the result.
func TestSoak(t *testing.T) {
	labtest.RequireLong(t)
	selectLayers()
	// Otherwise khugepaged makes huge pages of what has one small page, for as long as a run lasts.
	largePages(t, "", "never")
	labtest.Each(t, func(t *testing.T, device string) {
		if len(labtest.Adapters()) > 0 {
			// An emulated adapter maps each run of pages by itself, and no more than 16,384.
			largePages(t, "hugepages-64kB/", "always")
		}
		r := newRun(t, &side{device: device, addr: labtest.AddrOf(device), layers: layersOf(t, device)}, device)
		r.going = newRemovals(t, r.side)
		r.check()
	})
	t.Run(userSpace, soakSoft)
}

// largePages says when the kernel takes memory in larger parts, all or those of a size (since 6.8).
func largePages(t *testing.T, size, when string) {
	err := os.WriteFile("/sys/kernel/mm/transparent_hugepage/"+size+"enabled", []byte(when), 0)
	if !errors.Is(err, fs.ErrNotExist) {
		labtest.Check(t, err)
	}
}

// selectLayers leaves the layers to run.
func selectLayers() {
	if *only != "" {
		unwanted := func(l layer) bool { return !slices.Contains(strings.Split(*only, ","), l.Name) }
		for _, all := range []*[]layer{&layers, &softLayers, &softVictims} {
			*all = slices.DeleteFunc(*all, unwanted)
		}
	}
}

// run is a run on a device.
type run struct {
	*testing.T
	*side
	course
	began   time.Time
	server  *server
	clients *clients
	faulty  *network  // nil if it has no faults
	going   *removals // nil if there are none

	mu sync.Mutex // of failures
}

// newRun prepares a run of a side, which is this process.
func newRun(t *testing.T, s *side, name string) *run {
	t.Helper()
	labtest.DriverLog(t)
	if *seed == 0 {
		*seed = rand.Uint64()
	}
	r := &run{T: t, side: s, course: course{duration: *duration, stall: *stall}}
	s.stop = make(chan struct{})
	s.report = func(f string) {
		t.Log(f)
		r.mu.Lock()
		defer r.mu.Unlock()
		if len(r.failures) > 0 {
			f = "after that: " + f // the first failure ends other connections
		}
		r.failures = append(r.failures, f)
	}
	r.side.ctx, r.side.cancel = context.WithCancel(t.Context())
	t.Cleanup(r.side.cancel)
	for _, l := range s.layers {
		r.course.layers = append(r.course.layers, l.Name)
	}
	t.Logf("%s on %s for %v, seed %d", name, os.Getenv("VERBS_LAB"), *duration, *seed)
	return r
}

// check does the run, and checks the result.
func (r *run) check() {
	r.Helper()
	warmUp(r.T, r.side)
	before := inventory(r.T, true)
	r.began = time.Now()
	leaked, err := r.load()
	if err != nil {
		r.report(err.Error())
	}
	r.cancel()
	r.took = time.Since(r.began).Round(time.Second)
	// The leaks of this process and of the kernel are found after the server has ended.
	for _, l := range leaked {
		r.leaks = append(r.leaks, "server: "+l)
	}
	r.leaks = append(r.leaks, leaks(r.T, true, before)...)
	r.mu.Lock()
	defer r.mu.Unlock()
	reasons := r.verdict()
	verdict := "passed"
	if len(reasons) > 0 {
		verdict = "failed"
	}
	removed := 0
	if r.going != nil {
		removed = r.going.done
	}
	r.Logf("%s after %v, with seed %d, a second device removed %d times\n%s", verdict, r.took, *seed, removed, r.table())
	for _, reason := range reasons {
		r.Error(reason)
	}
}

// load runs the load, from the start of the server to its end.
func (r *run) load() (leaks []string, err error) {
	if r.server, err = startServer(r.side, *seed); err != nil {
		return nil, err
	}
	defer func() {
		left, err2 := r.server.close()
		leaks = left
		if err == nil && err2 != nil {
			err = fmt.Errorf("server: %w", err2)
		}
	}()
	if r.faulty != nil { // the other side dials as well
		servers, addrs, err := r.listenAll()
		if err != nil {
			return nil, err
		}
		defer r.end(servers)
		if err := r.server.dial(addrs); err != nil {
			return nil, err
		}
	}
	if r.clients, err = startClients(r.side, r.server.addrs, *seed); err != nil {
		return nil, err
	}
	if r.faulty != nil {
		defer r.faulty.start(*seed)()
	}
	if r.going != nil {
		defer r.going.start(*seed)()
	}
	r.watch(time.Now().Add(r.duration))
	if r.faulty != nil {
		if _, err := r.server.ask("stop", lifetime+2*time.Minute); err != nil {
			r.report(err.Error())
		}
	}
	if err := r.clients.end(); err != nil {
		r.report(err.Error())
	}
	if err := r.sample(); err != nil && r.ctx.Err() == nil {
		return nil, err
	}
	if err := r.clients.endLoop(); err != nil {
		r.report(fmt.Sprintf("loop of clients: %v", err))
	}
	return nil, nil
}

// watch takes samples until the time is up and every layer has done something, or a failure. It
// checks for stalls more often.
func (r *run) watch(until time.Time) {
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	next := time.Now()
	for (time.Now().Before(until) || r.unbegun()) && r.ctx.Err() == nil {
		r.clients.check(r.stalled)
		if !time.Now().Before(next) {
			next = next.Add(*every)
			if err := r.sample(); err != nil {
				r.fail("sampler", "", err)
				return
			}
		}
		select {
		case <-tick.C:
		case <-r.ctx.Done():
		}
	}
}

// unbegun reports whether a layer had done nothing when the last sample was taken.
func (r *run) unbegun() bool {
	return slices.ContainsFunc(r.course.layers, func(name string) bool { return r.last.layers[name].Rounds == 0 })
}

// stalled ends the run, and reports the stacks of both processes.
func (r *run) stalled(layer string, since time.Duration) {
	text := fmt.Sprintf("layer %s has made no progress for %v\nclient:\n%s", layer, since.Round(time.Second), stacks())
	if a, err := r.server.ask("stacks", time.Minute); err == nil {
		text += "\nserver:\n" + a.Stacks
	}
	r.report(text)
	r.cancel()
}

// sample takes a sample, and logs a summary.
func (r *run) sample() error {
	s := sample{layers: map[string]work{}}
	r.clients.addWork(s.layers, "")
	mine, err := thisProcess()
	if err != nil {
		return err
	}
	a, err := r.server.ask("sample", time.Minute)
	if err != nil {
		return err
	}
	if a.Process == nil {
		return fmt.Errorf("the server answers something else")
	}
	s.processes = map[string]process{"client": mine, "server": *a.Process}
	if s.kernel, err = kernelState(r.device); err != nil {
		return err
	}
	maps.Copy(s.layers, a.Layers)
	maps.Copy(s.kernel, a.Objects)
	s.at = time.Since(r.began).Seconds()
	r.add(s)
	var line strings.Builder
	for _, name := range r.course.layers {
		l := s.layers[name]
		fmt.Fprintf(&line, "  %s %d/%d/%d MiB", name, l.Connections, l.Rounds, l.Bytes>>20)
	}
	r.Logf("%5.0f s%s  RSS %d+%d, heap %d+%d MiB", s.at, &line, mine.RSS>>10, a.Process.RSS>>10, mine.Heap>>10, a.Process.Heap>>10)
	return nil
}
