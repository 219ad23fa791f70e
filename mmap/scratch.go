package mmap

import "sync"

// scratchSize holds all but the longest requests and responses.
const scratchSize = 4096

// idle is scratch memory in nobody's hands, as much as calls commonly overlap.
// (A channel would do, and take four times as long.)
var idle struct {
	sync.Mutex
	n       int
	buffers [8]*Buffer
}

// Scratch returns at least size bytes for what one system call passes by
// address, with whatever the last one left in them. Outside the Go heap nothing
// needs pinning, and what is copied there need not be on the heap itself.
// FreeScratch takes them back.
func Scratch(size int) (*Buffer, error) {
	if size <= scratchSize {
		if b := takeIdle(); b != nil {
			return b, nil
		}
		size = scratchSize
	}
	return NewBuffer(size, BufferOptions{})
}

// FreeScratch keeps scratch memory for others, or frees it.
func FreeScratch(b *Buffer) {
	if b.size != scratchSize || !keepIdle(b) {
		b.Close()
	}
}

func takeIdle() *Buffer {
	idle.Lock()
	defer idle.Unlock()
	if idle.n == 0 {
		return nil
	}
	idle.n--
	return idle.buffers[idle.n]
}

func keepIdle(b *Buffer) bool {
	idle.Lock()
	defer idle.Unlock()
	if idle.n == len(idle.buffers) {
		return false
	}
	idle.buffers[idle.n] = b
	idle.n++
	return true
}
