package mmap

import "sync/atomic"

// OrdersDevice reports whether the barriers order accesses to device memory on this
// architecture. Drivers that map device registers refuse to open devices where it is
// false.
const OrdersDevice = ordersDevice

// BarrierToDevice makes a device that sees a later store, to main memory or to one
// of its registers, see all earlier stores to main memory.
func BarrierToDevice() { barrierToDevice() }

// BarrierFromDevice makes later loads see what a device wrote to main memory before it
// wrote what an earlier load saw.
func BarrierFromDevice() { barrierFromDevice() }

// FlushDevice makes all earlier stores, also those that are held back to be combined,
// leave the processor before any later store to device memory. It is needed before and
// after a store to write-combining memory, such as mlx5's doorbell registers, and before
// a lock is released that keeps other processors from the same register.
func FlushDevice() { flushDevice() }

// StoreDevice stores v to a register of a device with one instruction that is not split,
// dropped or repeated, nor locked, as that of sync/atomic is on amd64. It is no barrier,
// and does not change the byte order. p must be aligned to 8 bytes. On 32-bit machines the
// store may be split.
func StoreDevice(p *uint64, v uint64) { storeDevice(p, v) }

// StoreRelease stores v in main memory, after all earlier loads and stores. A later load
// may be done before it: where that matters, as between arming and a last look, use
// p.Store, which takes a locked instruction on amd64.
func StoreRelease(p *atomic.Uint32, v uint32) { storeRelease(p, v) }
