//go:build !nordma

package host

import (
	"math/bits"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// openKernel opens a node so that reads of it do not block.
func openKernel(path string) (int, error) {
	return unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
}

func closeKernel(fd int) error                  { return unix.Close(fd) }
func writeKernel(fd int, b []byte) (int, error) { return unix.Write(fd, b) }

// readKernel does not inform Go's scheduler, as event files are in nonblocking mode.
func readKernel(fd int, b []byte) (int, error) {
	n, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

func dupKernel(fd, lowest int) (int, error) {
	return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, lowest)
}

func ioctlKernel(fd int, request uint32, msg []byte) syscall.Errno {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(request), uintptr(unsafe.Pointer(unsafe.SliceData(msg))))
	return errno
}

// Replace makes fd, which is a descriptor of the kernel's, another one of the file by (dup3(2)).
func Replace(fd, by int) error { return unix.Dup3(by, fd, unix.O_CLOEXEC) }

func mapKernel(fd int, offset int64, length int, readOnly bool) ([]byte, error) {
	if readOnly {
		return mapPages(fd, offset, length, unix.PROT_READ, unix.MAP_SHARED)
	}
	return mapPages(fd, offset, length, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
}

// MapMemory maps memory of its own, with huge pages of pageSize bytes unless that is 0.
func MapMemory(length, pageSize int) ([]byte, error) {
	flags := unix.MAP_PRIVATE | unix.MAP_ANONYMOUS
	if pageSize != 0 {
		flags |= unix.MAP_HUGETLB | bits.TrailingZeros(uint(pageSize))<<unix.MAP_HUGE_SHIFT
	}
	return mapPages(-1, 0, length, unix.PROT_READ|unix.PROT_WRITE, flags)
}

// mapPages maps length bytes. (unix.Mmap would add the mapping to a table.)
func mapPages(fd int, offset int64, length, prot, flags int) ([]byte, error) {
	p, err := unix.MmapPtr(fd, offset, nil, uintptr(length), prot, flags)
	if err != nil {
		return nil, err
	}
	return unsafe.Slice((*byte)(p), length), nil
}

// Unmap unmaps memory of the kernel's files, or of MapMemory.
func Unmap(mem []byte) error {
	return unix.MunmapPtr(unsafe.Pointer(unsafe.SliceData(mem)), uintptr(len(mem)))
}

func (h *Handle) writeKernel(b []byte, blocking bool) syscall.Errno {
	return h.call(unix.SYS_WRITE, uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)), blocking)
}

func (h *Handle) ioctlKernel(request uint32, msg []byte, blocking bool) syscall.Errno {
	return h.call(unix.SYS_IOCTL, uintptr(request), uintptr(unsafe.Pointer(unsafe.SliceData(msg))), blocking)
}

func (h *Handle) call(trap, a2, a3 uintptr, blocking bool) (errno syscall.Errno) {
	for {
		// RawSyscall, which does not inform the scheduler, costs less for commands that only queue
		// work (BenchmarkDoorbell in package uverbs). For commands in which the kernel does the
		// work, Syscall costs little in comparison (BenchmarkWrite shows no difference on siw) and
		// does not make other goroutines and the garbage collector wait.
		if blocking {
			_, _, errno = unix.Syscall(trap, h.fd, a2, a3)
		} else {
			_, _, errno = unix.RawSyscall(trap, h.fd, a2, a3)
		}
		if errno != syscall.EINTR {
			return errno
		}
	}
}
