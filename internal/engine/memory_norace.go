//go:build !race

package engine

import (
	"sync/atomic"
	"unsafe"
)

// copyMapped copies to or from registered memory, which the program or a peer may access at
// any time.
func copyMapped(dst, src []byte) { copy(dst, src) }

// touch writes to the page at p without changing it. The page may be anything.
//
//go:nocheckptr
func touch(p unsafe.Pointer) { atomic.AddUint32((*uint32)(unsafe.Pointer(uintptr(p)&^3)), 0) }
