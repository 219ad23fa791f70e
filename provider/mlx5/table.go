package mlx5

import (
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
)

// maxUserIndex is the largest user index of a QP: 0xffffff means none (MLX5_IB_DEFAULT_UIDX).
const maxUserIndex = 0xfffffe

// table finds values by their number, which is never 0. get takes no lock: every completion needs
// it.
type table[T any] struct {
	slots atomic.Pointer[[]atomic.Pointer[T]]

	mu   sync.Mutex
	free []uint32 // removed numbers, the oldest first
	last uint32   // the highest number that has been used
}

// get returns the value with number i, or nil.
func (t *table[T]) get(i uint32) *T {
	s := t.slots.Load()
	if s == nil || uint64(i) >= uint64(len(*s)) {
		return nil
	}
	return (*s)[i].Load()
}

// reserve returns a number, at most most, for a value that the caller adds with set.
func (t *table[T]) reserve(most uint32) (uint32, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	// A number is reused as late as possible, so that a late completion of its last owner finds
	// nothing.
	const rest = 64
	var i uint32
	switch {
	case len(t.free) > rest || len(t.free) > 0 && t.last >= most:
		i, t.free = t.free[0], t.free[1:]
	case t.last < most:
		t.last++
		i = t.last
	default:
		return 0, fmt.Errorf("the context has %d already, the maximum: %w", most, syscall.EINVAL)
	}
	if s := t.slots.Load(); s == nil || int(i) >= len(*s) {
		grown := make([]atomic.Pointer[T], max(2*rest, 2*int(i)))
		if s != nil {
			copy(grown, *s)
		}
		t.slots.Store(&grown) // readers of the old slots do not look for i, which nobody knows yet
	}
	return i, nil
}

// set adds the value of a reserved number.
func (t *table[T]) set(i uint32, v *T) {
	t.mu.Lock()
	defer t.mu.Unlock()
	(*t.slots.Load())[i].Store(v)
}

// remove frees number i, unless it is 0.
func (t *table[T]) remove(i uint32) {
	if i == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	(*t.slots.Load())[i].Store(nil)
	t.free = append(t.free, i)
}
