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

// ongoing is a session with the peer that works while a fault is caused. The sessions
// of all layers work at the same time.
type ongoing struct {
	layer  *workload.Layer
	driver driver
	s      workload.Session
	rounds atomic.Int64
	err    error // once it has ended
	ended  time.Time
	done   chan struct{}
}

// connect makes a session of each layer on each driver.
func connect(t *testing.T, p *peer, on ...driver) (all []*ongoing) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), workTime)
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
			all = append(all, &ongoing{layer: l, driver: d, s: s, done: make(chan struct{})})
		}
	}
	return all
}

// begin starts the work of a session, for some rounds or until it fails.
func (o *ongoing) begin(ctx context.Context, rounds, size int) {
	go func() {
		defer close(o.done)
		for o.err == nil && o.rounds.Load() < int64(rounds) {
			if o.err = o.s.Round(ctx, size); o.err == nil {
				o.rounds.Add(1)
				o.err = ctx.Err() // rsock only supports deadlines
			}
		}
		o.ended = time.Now()
	}()
}

// poke makes sessions send something every second, also while they wait for an
// answer, until stop is called.
func poke(all []*ongoing) (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-quit:
				return
			case <-time.After(time.Second):
			}
			for _, o := range all {
				o.s.Poke()
			}
		}
	}()
	return func() { close(quit); <-done }
}

const forever = math.MaxInt

// underWay waits until all sessions are working.
func underWay(t *testing.T, all []*ongoing) {
	t.Helper()
	for _, o := range all {
		for o.rounds.Load() < 2 {
			select {
			case <-o.done:
				t.Fatalf("%s on %s before there was any fault: %v", o.layer.Name, o.driver.name(), o.err)
			case <-time.After(10 * time.Millisecond):
			}
		}
	}
}

// expect waits for the end of a session, which must fail with one of the errors of its
// layer, and records it. began is the time of the fault.
func (o *ongoing) expect(t *testing.T, what string, began time.Time) {
	t.Helper()
	<-o.done
	if name := o.heard(t); name != "" {
		record(t, what, o.layer, o.driver, name, o.ended.Sub(began))
	}
}

// heard returns the name of the error with which a session ended.
func (o *ongoing) heard(t *testing.T) string {
	t.Helper()
	switch {
	case errors.Is(o.err, workload.ErrData):
		t.Errorf("%s on %s: %v", o.layer.Name, o.driver.name(), o.err)
	case errors.Is(o.err, context.DeadlineExceeded) && o.layer.Datagrams:
		return "nothing, as told" // datagrams have no connection that could end
	case !slices.ContainsFunc(o.layer.Died, func(e error) bool { return errors.Is(o.err, e) }):
		t.Errorf("%s on %s: %v, want one of %v", o.layer.Name, o.driver.name(), o.err, o.layer.Died)
	default:
		for _, e := range o.layer.Died {
			if errors.Is(o.err, e) {
				t.Logf("%s on %s: %v", o.layer.Name, o.driver.name(), o.err)
				return e.Error()
			}
		}
	}
	return ""
}

// renew makes a new connection, which must work, and records how long that took since
// after.
func renew(t *testing.T, p *peer, what string, l *workload.Layer, d driver, after time.Time) {
	t.Helper()
	at := p.serve(t, l, d)
	ctx, stop := context.WithTimeout(t.Context(), workTime)
	defer stop()
	if err := l.Use(ctx, at, 3, 100_000); err != nil {
		t.Errorf("%s on %s, connected again: %v", l.Name, d.name(), err)
		return
	}
	record(t, what, l, d, "a new connection works", time.Since(after))
}

func closeAll(all []*ongoing) {
	for _, o := range all {
		o.s.Close()
	}
}
