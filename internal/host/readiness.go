package host

import (
	"slices"
	"sync"
)

// Readiness is the [State] of a file. It implements Watch of [File] for files that embed it. The
// zero value is idle.
type Readiness struct {
	mu       sync.Mutex
	state    State
	watchers []*watcher
}

type watcher struct{ changed func(State) }

// Set sets the state and reports a change to the watchers. So that they see the changes in
// order, the file calls Set while it holds the lock that guards its events.
func (r *Readiness) Set(s State) { r.set(s, false) }

// Event sets the state Readable for a new event. It reports it also if earlier events have not been
// read, as the kernel wakes pollers for each: those who wait for edges may have read as many as
// they knew of.
func (r *Readiness) Event() { r.set(Readable, true) }

func (r *Readiness) set(s State, report bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state == s && !report {
		return
	}
	r.state = s
	for _, w := range r.watchers {
		w.changed(s)
	}
}

// Watch implements [File].
func (r *Readiness) Watch(changed func(State)) (stop func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := &watcher{changed}
	r.watchers = append(r.watchers, w)
	changed(r.state)
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.watchers = slices.DeleteFunc(r.watchers, func(x *watcher) bool { return x == w })
	}
}
