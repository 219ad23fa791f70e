// Package tally sums the statistics of connections that belong together, such as those of a
// listener, without work while they carry data.
package tally

import (
	"maps"
	"slices"
	"sync"
)

// Tally is a set of connections of type C whose statistics have type S. The zero value is
// empty. Its methods may be called by several goroutines. Functions passed to Remove and Change run
// with the lock held.
type Tally[C comparable, S any] struct {
	mu     sync.Mutex
	open   map[C]struct{}
	closed S
}

// Add adds a connection.
func (t *Tally[C, S]) Add(c C) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.open == nil {
		t.open = map[C]struct{}{}
	}
	t.open[c] = struct{}{}
}

// Remove removes a connection, and calls keep to add its statistics, which no longer change, to
// those of closed connections. It does nothing if the connection is not in it or t is nil.
func (t *Tally[C, S]) Remove(c C, keep func(closed *S)) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.open[c]; ok {
		delete(t.open, c)
		keep(&t.closed)
	}
}

// Change calls f with the statistics of closed connections.
func (t *Tally[C, S]) Change(f func(closed *S)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f(&t.closed)
}

// Sum returns the number of connections, and the statistics of closed ones after add was called
// for each of the others. No lock is held then, so that making and closing connections does not
// wait for the locks of all others. A connection that is closed meanwhile counts as open.
func (t *Tally[C, S]) Sum(add func(sum *S, c C)) (sum S, open int) {
	t.mu.Lock()
	sum = t.closed
	conns := slices.Collect(maps.Keys(t.open))
	t.mu.Unlock()
	for _, c := range conns {
		add(&sum, c)
	}
	return sum, len(conns)
}
