// Package noescape passes slices through interfaces without moving them to the heap.
package noescape

import "unsafe"

// Slice returns s. The compiler assumes that the arguments of an interface's methods escape, and
// moves them to the heap. It does not see that the result is s, as with noescape of package
// strings. The result may be passed to functions that do not keep it; it has at most 4 Mi elements.
//
//go:nocheckptr
func Slice[T any](s []T) []T {
	const most = 1 << 22 // slicing an array takes fewer instructions than unsafe.Slice
	addr := uintptr(unsafe.Pointer(unsafe.SliceData(s)))
	return (*[most]T)(unsafe.Add(nil, addr))[:len(s):len(s)]
}
