package mlx5

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/goverbs/verbs/mmap"
)

// maxUserIndex is the largest user index of a QP: 0xffffff means none (MLX5_IB_DEFAULT_UIDX).
const maxUserIndex = 0xfffffe

// table finds values by their number, which is never 0, without a lock.
type table[T any] struct {
	slots atomic.Pointer[[]atomic.Pointer[T]]

	mu   sync.Mutex
	free []uint32 // numbers that have been removed; the oldest is used again first
	next uint32   // number that has never been used, less one
}

// get returns the value with number i, or nil.
func (t *table[T]) get(i uint32) *T {
	s := t.slots.Load()
	if s == nil || uint64(i) >= uint64(len(*s)) {
		return nil
	}
	return (*s)[i].Load()
}

// reserve returns a number, at most most, for a value that set adds.
func (t *table[T]) reserve(most uint32) (uint32, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	// A number is used again as late as possible: a completion of its last owner that came too late
	// then finds nothing.
	const rest = 64
	var i uint32
	switch {
	case len(t.free) > rest || len(t.free) > 0 && t.next >= most:
		i, t.free = t.free[0], t.free[1:]
	case t.next < most:
		t.next++
		i = t.next
	default:
		return 0, fmt.Errorf("the context has %d already, the maximum: %w", most, syscall.EINVAL)
	}
	s := t.slots.Load()
	if s == nil || int(i) >= len(*s) {
		// Readers of the old slots do not look for i, which nobody knows yet.
		grown := make([]atomic.Pointer[T], max(2*rest, 2*int(i)))
		if s != nil {
			for k := range *s {
				grown[k].Store((*s)[k].Load())
			}
		}
		s = &grown
		t.slots.Store(s)
	}
	return i, nil
}

// set adds a value with a number that has been reserved.
func (t *table[T]) set(i uint32, v *T) {
	t.mu.Lock()
	defer t.mu.Unlock()
	(*t.slots.Load())[i].Store(v)
}

// remove removes number i. It does nothing if that is 0.
func (t *table[T]) remove(i uint32) {
	if i == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	(*t.slots.Load())[i].Store(nil)
	t.free = append(t.free, i)
}

// minRecord is the size of the smallest doorbell record with what separates it from the next: no
// two are in one cache line, which the device reads while another processor writes.
const minRecord = 64

// recordPool hands out doorbell records. Its pages are freed with the context.
type recordPool struct {
	size int // of a record

	mu    sync.Mutex
	pages []*mmap.Buffer
	free  [][]byte
}

// get returns a record of zeros.
func (p *recordPool) get() ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.free) == 0 {
		b, err := mmap.NewBuffer(os.Getpagesize(), mmap.BufferOptions{})
		if err != nil {
			return nil, err
		}
		p.pages = append(p.pages, b)
		for m := b.Bytes(); len(m) >= p.size; m = m[p.size:] {
			p.free = append(p.free, m[:p.size:p.size])
		}
	}
	n := len(p.free) - 1
	r := p.free[n]
	p.free = p.free[:n]
	clear(r)
	return r, nil
}

// put takes a record back that the device does not use any more. It does nothing if there is none.
func (p *recordPool) put(r []byte) {
	if r == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free = append(p.free, r)
}

func (p *recordPool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, b := range p.pages {
		b.Close()
	}
	p.pages, p.free = nil, nil
}
