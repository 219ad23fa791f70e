//go:build amd64 && !race

package mmap

import (
	"sync/atomic"
	"unsafe"
)

// StoreRelease stores v where the kernel sees it: not before what was stored
// earlier. That is all it takes to hand over an entry, while [atomic.Uint32.Store]
// also waits until all processors see the store, which takes longer than filling
// the entry. On amd64 stores are seen in order, so an ordinary one does, behind
// a call, across which the compiler moves none.
//
// It is not enough where a later load must not overtake the store.
//
//go:noinline
func StoreRelease(p *atomic.Uint32, v uint32) { *(*uint32)(unsafe.Pointer(p)) = v }
