package mmap

import (
	"runtime"
	"unsafe"
)

// Bytes views the memory of *v, which must hold no pointers, as bytes.
func Bytes[T any](v *T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v))
}

// Slice views memory from an offset on as n values, which must hold no pointers and
// be aligned there.
func Slice[T any](b []byte, off, n int) []T {
	var v T
	size := n * int(unsafe.Sizeof(v))
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b[off:off+size]))), n)
}

// Addr returns the address of b, which is outside the Go heap or pinned.
func Addr(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

// Pin keeps the memory of b where it is until p is unpinned and returns its
// address, 0 if b is empty, for a kernel structure that carries it as a
// number.
func Pin(p *runtime.Pinner, b []byte) uint64 {
	if len(b) == 0 {
		return 0
	}
	p.Pin(unsafe.SliceData(b))
	return Addr(b)
}
