//go:build !amd64 && !arm64

package mmap

import "sync/atomic"

const ordersDevice = false

// fence is the operand of atomic operations that order main memory.
var fence atomic.Uint32

func barrierToDevice()   { fence.Add(1) }
func barrierFromDevice() { fence.Add(1) }
func flushDevice()       { fence.Add(1) }

//go:noinline
func storeDevice(p *uint64, v uint64) { *p = v }

//go:noinline
func storeDevice32(p *uint32, v uint32) { *p = v }

//go:noinline
func copyDevice(to, from *[64]byte) { *to = *from }

func storeDoorbell64(record *atomic.Uint64, p *uint64, v uint64) {
	record.Store(v)
	storeDevice(p, v)
}
