package mmap

import (
	"fmt"
	"sync/atomic"
	"unsafe"
)

// Word64 is [Word] for 8 bytes, the operands of RDMA's atomics.
func Word64(b []byte, off int) *atomic.Uint64 {
	p := unsafe.Pointer(unsafe.SliceData(b[off : off+8]))
	if uintptr(p)%8 != 0 {
		panic(fmt.Sprintf("mmap: word of 64 bits at %p is not aligned", p))
	}
	return (*atomic.Uint64)(p)
}

// Word returns the 4 bytes of b at off as an atomic in the host's byte order, for memory
// that another side may write at the same time. It panics, as slicing does, if they are
// not all inside b, or not aligned.
func Word(b []byte, off int) *atomic.Uint32 {
	p := unsafe.Pointer(unsafe.SliceData(b[off : off+4]))
	if uintptr(p)%4 != 0 {
		panic(fmt.Sprintf("mmap: word at %p is not aligned", p))
	}
	return (*atomic.Uint32)(p)
}
