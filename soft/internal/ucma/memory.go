package ucma

import (
	"runtime/debug"
	"syscall"
	"unsafe"
)

// copyIn copies n bytes of the caller's memory, which a command passes by its address. Callers
// in this process pass memory that is outside the Go heap or pinned.
func copyIn(addr uint64, n int) (b []byte, errno syscall.Errno) {
	b = make([]byte, n)
	return b, access(addr, n, func(mem []byte) { copy(b, mem) })
}

// copyOut copies an answer to the caller's memory, as much of it as there is room for.
func copyOut(addr uint64, room int, answer []byte) syscall.Errno {
	return access(addr, min(room, len(answer)), func(mem []byte) { copy(mem, answer) })
}

// access calls f with n bytes of the caller's memory. It fails with EFAULT if they are not
// mapped.
func access(addr uint64, n int, f func(mem []byte)) (errno syscall.Errno) {
	if n == 0 {
		return 0
	}
	if addr == 0 || addr+uint64(n) < addr || uint64(uintptr(addr+uint64(n))) != addr+uint64(n) {
		return syscall.EFAULT
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if recover() != nil {
			errno = syscall.EFAULT
		}
	}()
	at := uintptr(addr)
	f(unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&at))), n))
	return 0
}
