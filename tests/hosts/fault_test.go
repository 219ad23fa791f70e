package hosts

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/goverbs/verbs/tests/workload"
)

// worker does rounds of a session with the peer while a fault is caused. The sessions
// of all layers work at the same time.
type worker struct {
	layer  *workload.Layer
	driver driver
	s      workload.Session
	rounds atomic.Int64
	err    error // once it has ended
	ended  time.Time
	done   chan struct{}
}

// dialAll makes a session of each layer on each driver.
func dialAll(t *testing.T, p *peer, on ...driver) (all []*worker) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), workTimeout)
	defer stop()
	for host := 1; host <= 2; host++ { // rxe warns about unexpected answers
		p.run(t, host, "sh", "-c", "echo 'lab: expect warning: [rdma_rxe]' >/dev/kmsg")
	}
	for _, d := range on {
		for _, l := range d.layers() {
			s, err := l.Dial(ctx, p.serve(t, l, d))
			if err == nil {
				err = s.Round(ctx, 1000) // opens connections that are opened late
			}
			if err != nil {
				t.Fatalf("%s on %s: %v", l.Name, d.name(), err)
			}
			all = append(all, &worker{layer: l, driver: d, s: s, done: make(chan struct{})})
		}
	}
	return all
}

// start starts the work of a session, for some rounds or until it fails.
func (w *worker) start(ctx context.Context, rounds, size int) {
	go func() {
		defer close(w.done)
		for w.err == nil && w.rounds.Load() < int64(rounds) {
			if w.err = w.s.Round(ctx, size); w.err == nil {
				w.rounds.Add(1)
				w.err = ctx.Err() // rsock only supports deadlines
			}
		}
		w.ended = time.Now()
	}()
}

// pokeEverySecond makes sessions send something every second, also while they wait for an
// answer, until stop is called.
func pokeEverySecond(all []*worker) (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-quit:
				return
			case <-time.After(time.Second):
			}
			for _, w := range all {
				w.s.Poke()
			}
		}
	}()
	return func() { close(quit); <-done }
}

const forever = math.MaxInt

// waitUntilRunning waits until all sessions are working.
func waitUntilRunning(t *testing.T, all []*worker) {
	t.Helper()
	for _, w := range all {
		for w.rounds.Load() < 2 {
			select {
			case <-w.done:
				t.Fatalf("%s on %s before there was any fault: %v", w.layer.Name, w.driver.name(), w.err)
			case <-time.After(10 * time.Millisecond):
			}
		}
	}
}

// expectError waits for the end of a session, which must fail with one of the errors of its
// layer, and records it. began is the time of the fault.
func (w *worker) expectError(t *testing.T, what string, began time.Time) {
	t.Helper()
	<-w.done
	if name := w.errorName(t); name != "" {
		record(t, what, w.layer, w.driver, name, w.ended.Sub(began))
	}
}

// errorName returns the name of the error with which a session ended.
func (w *worker) errorName(t *testing.T) string {
	t.Helper()
	switch {
	case errors.Is(w.err, workload.ErrData):
		t.Errorf("%s on %s: %v", w.layer.Name, w.driver.name(), w.err)
	case errors.Is(w.err, context.DeadlineExceeded) && w.layer.Datagrams:
		return "no error" // datagrams have no connection that could end
	case !slices.ContainsFunc(w.layer.PeerGoneErrors, func(e error) bool { return errors.Is(w.err, e) }):
		t.Errorf("%s on %s: %v, want one of %v", w.layer.Name, w.driver.name(), w.err, w.layer.PeerGoneErrors)
	default:
		for _, e := range w.layer.PeerGoneErrors {
			if errors.Is(w.err, e) {
				t.Logf("%s on %s: %v", w.layer.Name, w.driver.name(), w.err)
				return e.Error()
			}
		}
	}
	return ""
}

// testNewConn makes a new connection, which must work, and records how long that took since
// after.
func testNewConn(t *testing.T, p *peer, what string, l *workload.Layer, d driver, after time.Time) {
	t.Helper()
	at := p.serve(t, l, d)
	ctx, stop := context.WithTimeout(t.Context(), workTimeout)
	defer stop()
	if err := l.Use(ctx, at, 3, 100_000); err != nil {
		t.Errorf("%s on %s, connected again: %v", l.Name, d.name(), err)
		return
	}
	record(t, what, l, d, "a new connection works", time.Since(after))
}

func closeAll(all []*worker) {
	for _, w := range all {
		w.s.Close()
	}
}
