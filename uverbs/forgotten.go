package uverbs

import (
	"runtime"
	"sync"
	"weak"
)

// registry is a context's QPs, CQs and SRQs, by the numbers that the kernel names
// them by in events. Numbers are never used twice, so a late event cannot hit a
// newer object.
//
// It notices, too, which of them the program has forgotten: after each collection
// it looks through them. A cleanup for each would cost more, as connections make
// three of them that are mostly closed long before.
type registry struct {
	mu      sync.Mutex
	entries map[uint64]entry
	closed  bool
}

// entry is an object, of which one pointer is set.
type entry struct {
	obj *object
	qp  weak.Pointer[QP]
	cq  weak.Pointer[CQ]
	srq weak.Pointer[SRQ]
}

func newRegistry() *registry {
	r := &registry{entries: map[uint64]entry{}}
	r.afterCollection()
	return r
}

func (r *registry) add(id uint64, e entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.entries[id] = e
}

func (r *registry) remove(id uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.entries, id)
}

func (r *registry) get(id uint64) entry {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.entries[id]
}

// close ends the looking.
func (r *registry) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
}

// afterCollection has look called when the next collection finds what nobody knows.
func (r *registry) afterCollection() {
	runtime.AddCleanup(new(*registry), (*registry).look, r)
}

func (r *registry) look() {
	r.mu.Lock()
	var forgotten []*object
	for _, e := range r.entries {
		if e.qp.Value() == nil && e.cq.Value() == nil && e.srq.Value() == nil {
			forgotten = append(forgotten, e.obj)
		}
	}
	closed := r.closed
	r.mu.Unlock()
	for _, o := range forgotten {
		o.forget()
	}
	if !closed {
		r.afterCollection()
	}
}
