package engine

import (
	"math"
	"runtime/debug"
	"sync/atomic"
	"syscall"
	"unsafe"
)

const probeStep = 4096 // smallest page

// memory returns the process's memory at addr, after checking that it can be read, and
// written if write is set.
//
// The checks of pointers that -race adds do not apply: the range is the program's claim.
//
//go:nocheckptr
func memory(addr, length uint64, write bool) ([]byte, error) {
	if length == 0 {
		return nil, nil
	}
	if length > math.MaxInt || addr > math.MaxUint-length || uint64(uintptr(addr)) != addr {
		return nil, syscall.EINVAL
	}
	if addr < probeStep {
		return nil, syscall.EFAULT
	}
	p := uintptr(addr)
	// The slice keeps memory of the Go heap allocated.
	mem := unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&p))), int(length))
	if !probe(mem, write) {
		return nil, syscall.EFAULT
	}
	return mem, nil
}

// probe touches each page of mem. It reports false if an access faults.
//
//go:norace
func probe(mem []byte, write bool) (ok bool) {
	defer catchFault(debug.SetPanicOnFault(true))
	base := uintptr(unsafe.Pointer(&mem[0]))
	for off, end := uintptr(0), uintptr(len(mem)); off < end; off = (base+off)&^(probeStep-1) + probeStep - base {
		probed.Add(uint32(mem[off]))
		if write {
			touch(unsafe.Pointer(&mem[off]))
		}
	}
	return true
}

// probed keeps the compiler from dropping loads.
var probed atomic.Uint32

// copyMemory copies to or from registered memory. It reports false if the program has unmapped
// it, or protected it, since it was registered.
func copyMemory(dst, src []byte) (ok bool) {
	defer catchFault(debug.SetPanicOnFault(true))
	copyMapped(dst, src)
	return true
}

// catchFault ends the panic of an access to memory that is not mapped.
func catchFault(before bool) {
	debug.SetPanicOnFault(before)
	switch e := recover().(type) {
	case nil, interface{ Addr() uintptr }:
	default:
		panic(e)
	}
}

// word returns the 8 bytes of mem, or nil if they are not aligned or fewer.
func word(mem []byte) *uint64 {
	if len(mem) < 8 || uintptr(unsafe.Pointer(&mem[0]))%8 != 0 {
		return nil
	}
	return (*uint64)(unsafe.Pointer(&mem[0]))
}

// compareSwap, fetchAdd and storeWord are atomic with the program's own atomics. They report
// false as copyMemory does.
func compareSwap(p *uint64, compare, swap uint64) (old uint64, ok bool) {
	defer catchFault(debug.SetPanicOnFault(true))
	for {
		old = atomic.LoadUint64(p)
		if old != compare || atomic.CompareAndSwapUint64(p, old, swap) {
			return old, true
		}
	}
}

func fetchAdd(p *uint64, add uint64) (old uint64, ok bool) {
	defer catchFault(debug.SetPanicOnFault(true))
	return atomic.AddUint64(p, add) - add, true
}

func storeWord(p *uint64, value uint64) (ok bool) {
	defer catchFault(debug.SetPanicOnFault(true))
	atomic.StoreUint64(p, value)
	return true
}
