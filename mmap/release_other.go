//go:build !amd64 || race

package mmap

import "sync/atomic"

// StoreRelease stores v where the kernel sees it: not before what was stored
// earlier. It is not enough where a later load must not overtake the store.
func StoreRelease(p *atomic.Uint32, v uint32) { p.Store(v) }
