package unix

import (
	"sync"
	"syscall"

	"github.com/goverbs/verbs/internal/virtual"
)

// The functions of this file serve the kernel's files and those of package virtual.

// Open opens a path.
func Open(path string, flags int, mode uint32) (int, error) {
	if virtual.IsNode(path) {
		fd, errno := virtual.Open(path)
		return fd, errorOf(errno)
	}
	return open(path, flags, mode)
}

// Close closes a descriptor.
func Close(fd int) error {
	if virtual.Is(fd) {
		return errorOf(virtual.Close(fd))
	}
	return closeFile(fd)
}

// Read reads into b.
func Read(fd int, b []byte) (int, error) {
	if virtual.Is(fd) {
		return readVirtual(fd, b)
	}
	return read(fd, b)
}

// Write writes b.
func Write(fd int, b []byte) (int, error) {
	if virtual.Is(fd) {
		return writeVirtual(fd, b)
	}
	return write(fd, b)
}

// Ioctl runs an ioctl whose argument is msg.
func Ioctl(fd int, request uint32, msg []byte) syscall.Errno {
	if virtual.Is(fd) {
		return virtual.Ioctl(fd, request, msg)
	}
	return ioctl(fd, request, msg)
}

// FcntlInt is fcntl(2). Virtual files have F_DUPFD_CLOEXEC only.
func FcntlInt(fd uintptr, cmd, arg int) (int, error) {
	if !virtual.Is(int(fd)) {
		return fcntlInt(fd, cmd, arg)
	}
	if cmd != F_DUPFD_CLOEXEC {
		return -1, syscall.EINVAL
	}
	dup, errno := virtual.Dup(int(fd))
	return dup, errorOf(errno)
}

func errorOf(errno syscall.Errno) error {
	switch errno {
	case 0:
		return nil
	case syscall.EAGAIN: // most frequent; another one may be allocated where error numbers are large
		return errAgain
	}
	return errno
}

var errAgain error = syscall.EAGAIN

// buffers has copies of what is read and written: through the interface of virtual files, the
// caller's memory would escape to the heap, also that for the kernel's files.
var buffers struct {
	sync.Mutex
	free []*[4096]byte
}

func getBuffer() *[4096]byte {
	buffers.Lock()
	defer buffers.Unlock()
	last := len(buffers.free) - 1
	if last < 0 {
		return new([4096]byte)
	}
	b := buffers.free[last]
	buffers.free = buffers.free[:last]
	return b
}

func putBuffer(b *[4096]byte) {
	buffers.Lock()
	defer buffers.Unlock()
	buffers.free = append(buffers.free, b)
}

func readVirtual(fd int, b []byte) (int, error) {
	buf := getBuffer()
	defer putBuffer(buf)
	n, errno := virtual.Read(fd, buf[:min(len(b), len(buf))])
	return copy(b, buf[:n]), errorOf(errno)
}

func writeVirtual(fd int, b []byte) (int, error) {
	buf := getBuffer()
	defer putBuffer(buf)
	n, errno := virtual.Write(fd, append(buf[:0], b...))
	return n, errorOf(errno)
}
