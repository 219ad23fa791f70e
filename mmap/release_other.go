//go:build !amd64 || race

package mmap

import "sync/atomic"

func storeRelease(p *atomic.Uint32, v uint32) { p.Store(v) }
