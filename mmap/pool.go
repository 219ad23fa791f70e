package mmap

import (
	"sync"

	"github.com/goverbs/verbs/internal/host"
)

// pool contains free memory outside the Go heap, in blocks of one size. Its pages are
// never unmapped.
type pool struct {
	size int
	mu   sync.Mutex
	free [][]byte
}

var pools = [...]*pool{{size: 256}, {size: 4096}} // for commands, and for all but the longest data

// Alloc returns size bytes for data that system calls pass by address. They are not
// zeroed. Memory outside the Go heap needs no pinning, and data that is copied there need
// not be on the heap itself. Free releases them.
func Alloc(size int) ([]byte, error) {
	for _, p := range pools {
		if size <= p.size {
			b, err := p.get()
			return b[:min(size, len(b))], err
		}
	}
	b, err := NewBuffer(size, BufferOptions{})
	if err != nil {
		return nil, err
	}
	return b.mem, nil
}

// Free releases what Alloc returned, or a slice from its beginning.
func Free(b []byte) {
	for _, p := range pools {
		if cap(b) == p.size {
			p.put(b[:p.size])
			return
		}
	}
	host.Unmap(b[:cap(b)])
}

func (p *pool) get() ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.free) == 0 {
		const blocks = 16
		b, err := NewBuffer(blocks*p.size, BufferOptions{})
		if err != nil {
			return nil, err
		}
		for m := b.mem; len(m) > 0; m = m[p.size:] {
			p.free = append(p.free, m[:p.size:p.size])
		}
	}
	last := len(p.free) - 1
	b := p.free[last]
	p.free = p.free[:last]
	return b, nil
}

func (p *pool) put(b []byte) {
	p.mu.Lock()
	p.free = append(p.free, b)
	p.mu.Unlock()
}
