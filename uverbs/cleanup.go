package uverbs

import (
	"cmp"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
)

// tree has the state that the objects of a context share.
type tree struct {
	log atomic.Pointer[slog.Logger]

	mu      sync.Mutex // guards parents and children
	lastNum uint64     // of the object created last

	// pending contains unreachable objects that nothing depends on. A goroutine closes them, as
	// their system calls would delay the program's other cleanups.
	pending []*object
	closing bool // the goroutine is running
}

// addCleanup closes the object after v has become unreachable.
func addCleanup[T any](v *T, o *object) {
	runtime.AddCleanup(v, (*object).markUnreachable, o)
}

// markUnreachable closes an unreachable object as soon as nothing depends on it.
func (o *object) markUnreachable() {
	t := o.tree
	t.mu.Lock()
	defer t.mu.Unlock()
	if !o.unreachable && !o.detached {
		o.unreachable = true
		t.closeAsync(o.closable())
	}
}

// closeAsync closes objects in another goroutine. The caller holds mu.
func (t *tree) closeAsync(objects []*object) {
	t.pending = append(t.pending, objects...)
	if len(t.pending) > 0 && !t.closing {
		t.closing = true
		go t.closePending()
	}
}

func (t *tree) closePending() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for len(t.pending) > 0 {
		o := t.pending[0]
		t.pending = t.pending[1:]
		t.mu.Unlock()
		err := o.closeLeaked()
		t.mu.Lock()
		if err != nil { // retry after the next collection; until then the object keeps its memory
			runtime.AddCleanup(new(*object), t.retry, o)
		}
	}
	t.pending, t.closing = nil, false
}

// retry closes an object again that the kernel refused to destroy.
func (t *tree) retry(o *object) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closeAsync([]*object{o})
}

// closeLeaked closes an unreachable object, and logs it once.
func (o *object) closeLeaked() error {
	log := o.tree.log.Load()
	if log == nil || o.logged || o.pinned || o.isClosed() {
		return o.close()
	}
	o.logged = true
	attrs := []any{"device", o.device, "object", cmp.Or(o.name.String(), "device")}
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
