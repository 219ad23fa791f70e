package rsock

import (
	"context"
	"sync"
	"time"
)

// deadline is a context that ends at a time, which may change while calls wait for it.
type deadline struct {
	mu     sync.Mutex
	parent context.Context
	ctx    context.Context
	cancel context.CancelFunc
}

func (d *deadline) init(parent context.Context) {
	d.parent = parent
	d.set(time.Time{})
}

// set replaces the context; the zero time means never.
func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cancel != nil {
		d.cancel()
	}
	if t.IsZero() {
		d.ctx, d.cancel = context.WithCancel(d.parent)
	} else {
		d.ctx, d.cancel = context.WithDeadline(d.parent, t)
	}
}

// current returns the context. If it is cancelled and its parent is not, it has been replaced.
func (d *deadline) current() context.Context {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ctx
}

// wait waits until ready has a value or is closed. It fails with [context.DeadlineExceeded] or
// with the cause of the parent's end.
func wait[T any](d *deadline, ready <-chan T) (v T, err error) {
	for {
		ctx := d.current()
		if d.parent.Err() != nil {
			return v, context.Cause(d.parent)
		}
		if ctx.Err() == context.DeadlineExceeded {
			return v, ctx.Err()
		}
		select {
		case v = <-ready:
			return v, nil
		case <-ctx.Done():
		}
	}
}
