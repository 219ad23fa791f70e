// Package tally sums the statistics of connections that belong together, such as a listener's,
// without work while they carry data.
package tally

import (
	"maps"
	"reflect"
	"slices"
	"sync"
)

// Tally is a set of connections of type C, whose statistics are a struct of type S. Its fields of
// type uint64 and time.Duration are counters, those of type int the state of now, and structs have
// such fields. The zero value is empty. Its methods may be called by several goroutines.
type Tally[C interface {
	comparable
	Stats() S
}, S any] struct {
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

// Remove removes a connection, and adds its final counters to the sum of closed connections. It
// does nothing if the connection is not in it or t is nil.
func (t *Tally[C, S]) Remove(c C, last S) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.open[c]; ok {
		delete(t.open, c)
		add(reflect.ValueOf(&t.closed).Elem(), reflect.ValueOf(last), false)
	}
}

// Change calls f with the statistics of closed connections, with the lock held.
func (t *Tally[C, S]) Change(f func(closed *S)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f(&t.closed)
}

// Open returns the open connections.
func (t *Tally[C, S]) Open() []C {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.openLocked()
}

func (t *Tally[C, S]) openLocked() []C { return slices.Collect(maps.Keys(t.open)) }

// Sum returns the number of open connections and the sum of all statistics: the counters of all,
// and the state of the open ones. No lock is held while it calls Stats, so that making and closing
// connections does not wait for the locks of all others. A connection that is closed meanwhile
// counts as open.
func (t *Tally[C, S]) Sum() (sum S, open int) {
	t.mu.Lock()
	sum = t.closed
	conns := t.openLocked()
	t.mu.Unlock()
	for _, c := range conns {
		add(reflect.ValueOf(&sum).Elem(), reflect.ValueOf(c.Stats()), true)
	}
	return sum, len(conns)
}

// add adds the counters of s and, if state is set, the state of now. It goes by the types of the
// fields, so that no field can be forgotten.
func add(sum, s reflect.Value, state bool) {
	for i := range s.NumField() {
		switch to, v := sum.Field(i), s.Field(i); to.Kind() {
		case reflect.Struct:
			add(to, v, state)
		case reflect.Uint64:
			to.SetUint(to.Uint() + v.Uint())
		case reflect.Int64: // time.Duration
			to.SetInt(to.Int() + v.Int())
		case reflect.Int:
			if state {
				to.SetInt(to.Int() + v.Int())
			}
		}
	}
}
