package mmap

import "sync/atomic"

// OrdersDevice reports whether the barriers order accesses to device memory on this architecture.
// Drivers that map device registers refuse to open devices where it is false.
const OrdersDevice = ordersDevice

// BarrierToDevice orders stores: a device that sees a later store, to main memory or to
// one of its registers, sees all earlier stores to main memory.
func BarrierToDevice() { barrierToDevice() }

// BarrierFromDevice orders loads: later loads see what a device wrote to main memory
// before it wrote the value that an earlier atomic load returned.
func BarrierFromDevice() { barrierFromDevice() }

// FlushDevice makes all earlier stores, including those that are buffered for write
// combining, leave the processor before any later store to device memory. It is required
// before and after a store to write-combining memory, such as mlx5's doorbell registers,
// and before the release of a lock that excludes other processors from the same register.
func FlushDevice() { flushDevice() }

// StoreDevice stores v to a device register with one instruction, which is not split, dropped or
// repeated, and not locked, unlike that of sync/atomic on amd64. It is not a barrier and does not
// change the byte order. p must be aligned to 8 bytes. On 32-bit machines the store may be split.
func StoreDevice(p *uint64, v uint64) { storeDevice(p, v) }

// StoreDevice32 is StoreDevice for registers of 4 bytes.
func StoreDevice32(p *uint32, v uint32) { storeDevice32(p, v) }

// CopyDevice copies 64 bytes to write-combining memory of a device, with stores that follow each
// other, so that the processor may send them as one. It is not a barrier. Both must be aligned to
// 16 bytes.
func CopyDevice(to, from *[64]byte) { copyDevice(to, from) }

// StoreRelease stores v in main memory after all earlier loads and stores. A later load
// may be executed before it. Where that matters, as between arming a CQ and the last
// poll, use p.Store, which takes a locked instruction on amd64.
func StoreRelease(p *atomic.Uint32, v uint32) { storeRelease(p, v) }

// StoreDoorbell rings a doorbell: it stores v in main memory, and then w to a device
// register, as FlushDevice, StoreDevice and FlushDevice do in turn, with one call.
func StoreDoorbell(record *atomic.Uint32, v uint32, p *uint64, w uint64) {
	storeDoorbell(record, v, p, w)
}

// StoreDoorbell64 rings a doorbell whose register is in uncached memory: it stores v in main memory,
// after all earlier stores, and then to the register. Unlike write-combining memory, uncached memory
// needs no flush, neither before the store nor before the release of a lock.
func StoreDoorbell64(record *atomic.Uint64, p *uint64, v uint64) { storeDoorbell64(record, p, v) }

// CopyDoorbell is like StoreDoorbell, but copies 64 bytes to write-combining memory of the device.
func CopyDoorbell(record *atomic.Uint32, v uint32, to, from *[64]byte) {
	copyDoorbell(record, v, to, from)
}
