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
}

// closeUnreachable closes the object when the garbage collector finds that the
// program has dropped its last reference to v.
func closeUnreachable[T any](v *T, o *object) {
	runtime.AddCleanup(v, func(o *object) { o.tree.forget(o) }, o)
}

// forget closes an object that the program has dropped, as soon as nothing depends on it.
func (t *tree) forget(o *object) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !o.forgotten && !o.left {
		o.forgotten = true
		t.close(o.due())
	}
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
		if err != nil { // it is kept, with its memory, and tried again after the next collection
			runtime.AddCleanup(new(*object), t.retry, o)
		}
	}
	t.due, t.closing = nil, false
}

// retry closes again what the kernel refused to destroy.
func (t *tree) retry(o *object) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.close([]*object{o})
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
type registry struct {
	mu      sync.RWMutex
	entries map[uint64]entry
}

// entry is an object, of which one pointer is set.
type entry struct {
	obj *object
	qp  weak.Pointer[QP]
	cq  weak.Pointer[CQ]
	srq weak.Pointer[SRQ]
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
