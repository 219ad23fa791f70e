//go:build !amd64 && !arm64

package mmap

import "sync/atomic"

const ordersDevice = false

// fence is what atomic operations that order main memory are done to.
var fence atomic.Uint32

func barrierToDevice()   { fence.Add(1) }
func barrierFromDevice() { fence.Add(1) }
func flushDevice()       { fence.Add(1) }

//go:noinline
func storeDevice(p *uint64, v uint64) { *p = v }
