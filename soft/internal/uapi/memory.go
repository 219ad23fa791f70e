// Package uapi has what the files of uverbs and of rdma_cm share: access to the caller's memory,
// and tables of the objects that commands name by numbers.
package uapi

import (
	"runtime/debug"
	"syscall"
	"unsafe"
)

// minAddr is below every mapped address.
const minAddr = 4096

// Access calls f with n bytes of memory that a command passes by its address. Callers in this
// process pass memory that is outside the Go heap or pinned. It fails with EFAULT if the memory is
// not mapped.
func Access(addr uint64, n int, f func(mem []byte)) (errno syscall.Errno) {
	if n == 0 {
		return 0
	}
	p, end := uintptr(addr), addr+uint64(n)
	if addr < minAddr || end < addr || uint64(uintptr(end)) != end {
		return syscall.EFAULT
	}
	defer catchFault(debug.SetPanicOnFault(true), &errno)
	// The conversion is through memory because the checks of -race do not allow one of an
	// integer to a pointer into the Go heap.
	f(unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&p))), n))
	return 0
}

// catchFault turns the panic of an access to unmapped memory into EFAULT.
func catchFault(before bool, errno *syscall.Errno) {
	debug.SetPanicOnFault(before)
	switch e := recover().(type) {
	case nil:
	case interface{ Addr() uintptr }:
		*errno = syscall.EFAULT
	default:
		panic(e)
	}
}
