package uverbs

import (
	"cmp"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"weak"
)

// tree is the state that the objects of a context share.
type tree struct {
	log atomic.Pointer[slog.Logger]

	mu   sync.Mutex // guards parents and children
	made uint64     // number of objects, without the context

	// due contains unreachable objects that nothing depends on. A goroutine closes them:
	// the system calls would delay the other cleanups of the program.
	due     []*object
	closing bool // that goroutine is running
}

// closeUnreachable closes the object when the garbage collector finds that v is
// unreachable.
func closeUnreachable[T any](v *T, o *object) {
	runtime.AddCleanup(v, func(o *object) { o.tree.forget(o) }, o)
}

// forget closes an unreachable object as soon as nothing depends on it.
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
		if err != nil { // it stays, with its memory, until a retry after the next collection
			runtime.AddCleanup(new(*object), t.retry, o)
		}
	}
	t.due, t.closing = nil, false
}

// retry closes an object again that the kernel refused to destroy.
func (t *tree) retry(o *object) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.close([]*object{o})
}

// closeForgotten closes an unreachable object, and logs it once.
func (o *object) closeForgotten() error {
	log := o.tree.log.Load()
	if log == nil || o.noted || o.pinned || o.isClosed() {
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

// registry contains a context's QPs, CQs and SRQs, by the numbers that the kernel's
// events carry. Numbers are never used twice, so a late event cannot reach a newer
// object.
type registry struct {
	mu      sync.RWMutex
	entries map[uint64]entry
}

// entry is an object. One of its pointers is set.
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
