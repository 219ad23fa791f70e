package erdma

import (
	"sync"
	"sync/atomic"
)

// numberBits is the size of a QP's number (ERDMA_CMD_CREATE_QP_QPN_MASK).
const numberBits = 20

// blockBits is the part of it that chooses a place in a block.
const blockBits = 10

// table finds QPs by their number, which the kernel gives to all contexts of a device in turn: few
// blocks are in use. get takes no lock, as every completion needs it.
type table struct {
	blocks [1 << (numberBits - blockBits)]atomic.Pointer[block]
	mu     sync.Mutex
}

type block struct {
	qps  [1 << blockBits]atomic.Pointer[queuePair]
	used int
}

// get returns the QP with a number, or nil.
func (t *table) get(num uint32) *queuePair {
	if num>>numberBits != 0 {
		return nil
	}
	b := t.blocks[num>>blockBits].Load()
	if b == nil {
		return nil
	}
	return b.qps[num%(1<<blockBits)].Load()
}

// set sets the QP with a number, which has none, or removes it.
func (t *table) set(num uint32, p *queuePair) {
	t.mu.Lock()
	defer t.mu.Unlock()
	b := t.blocks[num>>blockBits].Load()
	if b == nil {
		b = new(block)
		t.blocks[num>>blockBits].Store(b)
	}
	b.qps[num%(1<<blockBits)].Store(p)
	if p != nil {
		b.used++
	} else if b.used--; b.used == 0 {
		t.blocks[num>>blockBits].Store(nil) // a get that has loaded it finds nothing there
	}
}
