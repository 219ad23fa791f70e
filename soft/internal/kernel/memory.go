package kernel

import (
	"runtime/debug"
	"syscall"
	"unsafe"
)

// minAddr is below every mapped address.
const minAddr = 4096

// user is memory of the process that a command names by its address.
type user struct {
	addr uint64
	size int
}

// bytes returns the first n bytes; n is at most size. It returns nil if no memory can have their
// address.
func (u user) bytes(n int) []byte {
	p := uintptr(u.addr)
	if u.addr < minAddr || uint64(p) != u.addr {
		return nil
	}
	// The conversion is through memory because the checks of -race do not allow one of an
	// integer to a pointer into the Go heap.
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&p))), n)
}

// read copies memory to dst, of at most u.size bytes.
func (u user) read(dst []byte) (errno syscall.Errno) {
	if len(dst) == 0 {
		return 0
	}
	src := u.bytes(len(dst))
	if src == nil {
		return syscall.EFAULT
	}
	defer catchFault(debug.SetPanicOnFault(true), &errno)
	copy(dst, src)
	return 0
}

// write copies src to memory, as much as there is room for, and clears the rest of it.
func (u user) write(src []byte) (errno syscall.Errno) {
	if u.size == 0 {
		return 0
	}
	dst := u.bytes(u.size)
	if dst == nil {
		return syscall.EFAULT
	}
	defer catchFault(debug.SetPanicOnFault(true), &errno)
	clear(dst[copy(dst, src):])
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
