package mmap

import (
	"runtime"
	"unsafe"
)

// Bytes returns the memory of *v, which must not contain pointers, as bytes.
func Bytes[T any](v *T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v))
}

// Slice returns the memory of b from off as n values, which must not contain pointers and
// must be aligned.
func Slice[T any](b []byte, off, n int) []T {
	var v T
	size := n * int(unsafe.Sizeof(v))
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b[off:off+size]))), n)
}

// Addr returns the address of b, which must be outside the Go heap or pinned.
func Addr(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

// Pin pins the memory of b until p is unpinned and returns its address, or 0 if b is
// empty, for kernel structures that contain addresses as numbers.
func Pin(p *runtime.Pinner, b []byte) uint64 {
	if len(b) == 0 {
		return 0
	}
	p.Pin(unsafe.SliceData(b))
	return Addr(b)
}
