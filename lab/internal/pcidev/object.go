//go:build linux

package pcidev

import (
	"maps"
	"slices"
	"sync"
)

// Objects has the objects of a kind by the numbers by which the driver names them. Its lock covers
// the table, not the objects.
type Objects[T any] struct {
	mu   sync.RWMutex
	m    map[uint32]T
	next uint32
}

// Add gives an object a number from first to last. It gives a number again only when it has used all
// others, so that a late reference to a destroyed object does not find another. It reports false if
// all are in use.
func (o *Objects[T]) Add(v T, first, last uint32) (num uint32, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if uint32(len(o.m)) > last-first {
		return 0, false
	}
	if o.m == nil {
		o.m = map[uint32]T{}
	}
	for {
		if o.next < first || o.next > last {
			o.next = first
		}
		num = o.next
		o.next++
		if _, used := o.m[num]; !used {
			o.m[num] = v
			return num, true
		}
	}
}

// Put adds an object with a given number. It reports false if that is in use.
func (o *Objects[T]) Put(num uint32, v T) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.m == nil {
		o.m = map[uint32]T{}
	}
	if _, used := o.m[num]; used {
		return false
	}
	o.m[num] = v
	return true
}

// Get returns the object with a number.
func (o *Objects[T]) Get(num uint32) (v T, ok bool) {
	o.mu.RLock()
	defer o.mu.RUnlock()
	v, ok = o.m[num]
	return v, ok
}

// Has reports whether there is an object with a number.
func (o *Objects[T]) Has(num uint32) bool {
	_, ok := o.Get(num)
	return ok
}

// Remove removes an object from the table. It reports false if there is none.
func (o *Objects[T]) Remove(num uint32) (v T, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	v, ok = o.m[num]
	delete(o.m, num)
	return v, ok
}

// All returns the objects, in no order.
func (o *Objects[T]) All() []T {
	o.mu.RLock()
	defer o.mu.RUnlock()
	return slices.Collect(maps.Values(o.m))
}

// Len returns the number of objects.
func (o *Objects[T]) Len() int {
	o.mu.RLock()
	defer o.mu.RUnlock()
	return len(o.m)
}

// Clear removes all objects, and then calls end for each to release its resources.
func (o *Objects[T]) Clear(end func(T)) {
	o.mu.Lock()
	all := o.m
	o.m, o.next = nil, 0
	o.mu.Unlock()
	for _, v := range all {
		end(v)
	}
}
