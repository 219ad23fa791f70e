//go:build !race

package mmap

import "sync/atomic"

//go:noescape
func storeRelease(p *atomic.Uint32, v uint32)
