package mmap

import (
	"sync"
	"unsafe"
)

// Cell is a little memory outside the Go heap, for what is passed to system calls
// by address again and again: nothing there needs pinning.
type Cell [256]byte

// cells are those in nobody's hands. Their pages are never unmapped.
var cells struct {
	sync.Mutex
	free []*Cell
}

const cellsAtOnce = 64

// NewCell returns a cell with whatever was left in it. FreeCell takes it back.
func NewCell() (*Cell, error) {
	cells.Lock()
	defer cells.Unlock()
	if len(cells.free) == 0 {
		b, err := NewBuffer(cellsAtOnce*int(unsafe.Sizeof(Cell{})), BufferOptions{})
		if err != nil {
			return nil, err
		}
		more := unsafe.Slice((*Cell)(unsafe.Pointer(unsafe.SliceData(b.mem))), cellsAtOnce)
		for i := range more {
			cells.free = append(cells.free, &more[i])
		}
	}
	last := len(cells.free) - 1
	c := cells.free[last]
	cells.free = cells.free[:last]
	return c, nil
}

// FreeCell keeps a cell for others.
func FreeCell(c *Cell) {
	cells.Lock()
	cells.free = append(cells.free, c)
	cells.Unlock()
}

// Addr is the address of the cell's first byte.
func (c *Cell) Addr() uint64 { return uint64(uintptr(unsafe.Pointer(c))) }
