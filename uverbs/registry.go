package uverbs

import (
	"maps"
	"slices"
	"sync"
	"weak"
)

// registry contains a context's QPs, CQs and SRQs, by the numbers that the kernel's events carry.
// Numbers are never used twice, so a late event cannot reach a newer object.
type registry struct {
	mu      sync.RWMutex
	entries map[uint64]entry
	lost    bool // the device is: no peer can reach its QPs
}

// entry is an object. One of its weak pointers is set.
type entry struct {
	obj *object
	qp  weak.Pointer[QP]
	cq  weak.Pointer[CQ]
	srq weak.Pointer[SRQ]

	held *QP // see hold
}

func (r *registry) add(id uint64, e entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.entries[id] = e
}

// hold keeps a QP reachable, with the objects that it was made from, until hold is called with
// false, remove or letGo.
func (r *registry) hold(id uint64, q *QP, hold bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !hold || r.lost {
		q = nil
	}
	if e, ok := r.entries[id]; ok {
		e.held = q
		r.entries[id] = e
	}
}

// letGo ends all holds, and lets later ones have no effect.
func (r *registry) letGo() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lost = true
	for id, e := range r.entries {
		e.held = nil
		r.entries[id] = e
	}
}

func (r *registry) remove(id uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.entries, id)
}

func (r *registry) get(id uint64) entry {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.entries[id]
}

// all returns all objects, in the order of creation.
func (r *registry) all() (entries []entry) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, id := range slices.Sorted(maps.Keys(r.entries)) {
		entries = append(entries, r.entries[id])
	}
	return entries
}
