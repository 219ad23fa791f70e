//go:build race

package engine

import "unsafe"

// copyMapped copies to or from registered memory. The race detector must not see it: the
// program synchronizes with completions, which are not in its model, and a peer may access
// memory at any time. It sees the built-in copy in every function.
//
//go:norace
func copyMapped(dst, src []byte) {
	n := min(len(dst), len(src))
	const block = 64
	i := 0
	for ; i+block <= n; i += block {
		*(*[block]byte)(unsafe.Pointer(&dst[i])) = *(*[block]byte)(unsafe.Pointer(&src[i]))
	}
	for ; i < n; i++ {
		dst[i] = src[i]
	}
}

// touch does nothing: the race detector sees atomic operations in every function, and the
// program may use other parts of the memory.
func touch(unsafe.Pointer) {}
