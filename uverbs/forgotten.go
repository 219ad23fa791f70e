package uverbs

import (
	"cmp"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"weak"
)

// tree is what the objects of a context share.
type tree struct {
	log atomic.Pointer[slog.Logger]

	mu   sync.Mutex // guards parents and children
	made uint64     // objects, without the context

	// due are objects that the program has forgotten and that nothing depends on.
	// A goroutine closes them: the system calls would hold up the cleanups of the
	// rest of the program.
	due     []*object
	closing bool // there is that goroutine

	// failed are those of them that the kernel refused to destroy. They, and their
	// memory, are kept and tried again after the next collection.
	failed []*object
}

// closeUnreachable closes the object when the garbage collector finds that the
// program has dropped its last reference to v.
func closeUnreachable[T any](v *T, o *object) {
	runtime.AddCleanup(v, func(o *object) { o.tree.forget(o) }, o)
}

// forget closes objects that the program has dropped, as soon as nothing depends
// on them.
func (t *tree) forget(objects ...*object) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, o := range objects {
		if !o.forgotten && !o.left {
			o.forgotten = true
			t.close(o.due())
		}
	}
}

// retry closes again what the kernel refused to destroy.
func (t *tree) retry() {
	t.mu.Lock()
	defer t.mu.Unlock()
	failed := t.failed
	t.failed = nil
	t.close(failed)
}

// close closes objects in another goroutine. The caller holds mu.
func (t *tree) close(objects []*object) {
	t.due = append(t.due, objects...)
	if len(t.due) > 0 && !t.closing {
		t.closing = true
		go t.closeDue()
	}
}

func (t *tree) closeDue() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for len(t.due) > 0 {
		o := t.due[0]
		t.due = t.due[1:]
		t.mu.Unlock()
		err := o.closeForgotten()
		t.mu.Lock()
		if err != nil {
			t.failed = append(t.failed, o)
		}
	}
	t.due, t.closing = nil, false
}

// closeForgotten is close for an object that the program has dropped. It is logged once.
func (o *object) closeForgotten() error {
	log := o.tree.log.Load()
	if log == nil || o.noted || o.kept || o.isClosed() {
		return o.close()
	}
	o.noted = true
	attrs := []any{"device", o.device, "object", cmp.Or(o.what.String(), "device")}
	if o.stack != nil {
		attrs = append(attrs, "made", string(o.stack))
	}
	log.Warn("object was not closed before it became unreachable", attrs...)
	err := o.close()
	if err != nil {
		log.Warn("unreachable object cannot be destroyed", append(attrs[:4], "err", err)...)
	}
	return err
}

// registry is a context's QPs, CQs and SRQs, by the numbers that the kernel names
// them by in events. Numbers are never used twice, so a late event cannot hit a
// newer object.
//
// It also finds those that the program has forgotten: after each collection
// it looks through them. A cleanup for each would cost more, as connections make
// three of them that are mostly closed long before.
type registry struct {
	tree *tree

	mu      sync.RWMutex
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

func newRegistry(t *tree) *registry {
	r := &registry{tree: t, entries: map[uint64]entry{}}
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
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.entries[id]
}

// close ends the looking.
func (r *registry) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
}

// afterCollection lets the next collection call look.
func (r *registry) afterCollection() {
	runtime.AddCleanup(new(*registry), (*registry).look, r)
}

// look closes what the program has forgotten.
func (r *registry) look() {
	r.tree.retry()
	r.tree.forget(r.unreachable()...)
	r.mu.RLock()
	defer r.mu.RUnlock()
	if !r.closed {
		r.afterCollection()
	}
}

// unreachable returns the objects that the program has dropped.
func (r *registry) unreachable() (objects []*object) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	n := 0
	for _, e := range r.entries {
		if e.qp.Value() == nil && e.cq.Value() == nil && e.srq.Value() == nil {
			objects = append(objects, e.obj)
		}
		if n++; n%64 == 0 { // add and remove are not kept waiting for all of them
			r.mu.RUnlock()
			r.mu.RLock()
		}
	}
	return objects
}
