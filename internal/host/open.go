package host

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
)

// ENODATA is Linux's error number, which package syscall of some systems lacks.
const ENODATA = syscall.Errno(61)

// Open opens a device's node.
func Open(path string) (int, error) {
	if !isNode(path) {
		return openKernel(path)
	}
	if path == CM {
		if err := Prepare(); err != nil {
			return -1, err
		}
	}
	nodes.RLock()
	open := nodes.open[path]
	nodes.RUnlock()
	if open == nil {
		return -1, syscall.ENOENT
	}
	fd := -1
	f, errno := open()
	if errno == 0 {
		fd, errno = Install(f, path)
	}
	return fd, errorOf(errno)
}

// isNode reports whether a path leads to a node of this process.
func isNode(path string) bool { return strings.HasPrefix(path, Scheme) }

// CM is the node of the rdma_cm for the device that the environment requests, and others
// of this machine. Devices on networks of their own have other nodes, which begin with it.
const CM = Scheme + "rdma_cm"

// CMNode returns the node of rdma_cm: the kernel's, or CM if the environment requests it.
func CMNode() string {
	if Requested() {
		return CM
	}
	return "/dev/infiniband/rdma_cm"
}

// Remedy returns the remedy for a missing node; kernel is the one for a node of the kernel.
func Remedy(node, kernel string) string {
	if isNode(node) {
		return "make a device with package soft, which opens it"
	}
	return kernel
}

// Spins reports whether waits on a device may poll. A device of this process needs the processors
// for its goroutines, which wake the goroutine that waits (BenchmarkWait of package rsock).
func Spins(node string) bool { return !isNode(node) }

// PathOf returns the path by which a descriptor's file was opened.
func PathOf(fd int) (string, error) {
	if fd < base {
		return os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	}
	if f := lookup(fd); f != nil {
		return f.path, nil
	}
	return "", fmt.Errorf("device in user space of another process, or closed: %w", errors.ErrUnsupported)
}

// Dup returns another descriptor of a file. For a file of the kernel it is the lowest free one from
// lowest up.
func Dup(fd, lowest int) (int, error) {
	if fd < base {
		return dupKernel(fd, lowest)
	}
	f := lookup(fd)
	if f == nil {
		return -1, syscall.EBADF
	}
	dup, errno := install(f)
	return dup, errorOf(errno)
}

// Close closes a descriptor.
func Close(fd int) error {
	if fd < base {
		return closeKernel(fd)
	}
	table.Lock()
	f := table.files[fd]
	if f == nil {
		table.Unlock()
		return syscall.EBADF
	}
	delete(table.files, fd)
	f.users--
	last := f.users == 0
	table.Unlock()
	if last {
		f.Close()
	}
	return nil
}

// Read reads from an event file into b. It never waits.
func Read(fd int, b []byte) (int, error) {
	if fd < base {
		return readKernel(fd, b)
	}
	f, buf := fileAt(fd), getBuffer()
	defer putBuffer(buf)
	n, errno := f.Read(buf[:min(len(b), len(buf))])
	return copy(b, buf[:n]), errorOf(errno)
}

// Write writes b.
func Write(fd int, b []byte) (int, error) {
	if fd < base {
		return writeKernel(fd, b)
	}
	f, buf := fileAt(fd), getBuffer()
	defer putBuffer(buf)
	n, errno := f.Write(append(buf[:0], b...))
	return n, errorOf(errno)
}

// Ioctl runs an ioctl whose argument is msg.
func Ioctl(fd int, request uint32, msg []byte) syscall.Errno {
	if fd < base {
		return ioctlKernel(fd, request, msg)
	}
	return fileAt(fd).Ioctl(request, msg)
}

// Map maps length bytes of a file, and returns the function that unmaps them.
func Map(fd int, offset int64, length int, readOnly bool) (mem []byte, unmap func([]byte) error, err error) {
	if fd < base {
		if err := TakeMapping(); err != nil {
			return nil, nil, err
		}
		if mem, err = mapKernel(fd, offset, length, readOnly); err != nil {
			ReturnMapping()
			if err == syscall.ENOMEM {
				err = fmt.Errorf("%w (vm.max_map_count, or address space, ulimit -v)", ErrMappings)
			}
			return nil, nil, err
		}
		return mem, func(mem []byte) error {
			ReturnMapping()
			return Unmap(mem)
		}, nil
	}
	mem, errno := fileAt(fd).Mmap(offset, length)
	return mem, func([]byte) error { return nil }, errorOf(errno) // the garbage collector frees it
}

// Handle is an open file as the data path uses it, which does not look for it each time.
type Handle struct {
	fd   uintptr
	file File // nil if the file is the kernel's
}

// HandleOf returns the handle of an open file.
func HandleOf(fd int) Handle { return Handle{uintptr(fd), Get(fd)} }

// Write runs a command by write(2). blocking reports whether the kernel does the work in the call
// and does not only queue it. b is not memory of Go.
func (h *Handle) Write(b []byte, blocking bool) syscall.Errno {
	if h.file != nil {
		_, errno := h.file.Write(b)
		return errno
	}
	return h.writeKernel(b, blocking)
}

// Ioctl runs a command by ioctl(2), as Write does.
func (h *Handle) Ioctl(request uint32, msg []byte, blocking bool) syscall.Errno {
	if h.file != nil {
		return h.file.Ioctl(request, msg)
	}
	return h.ioctlKernel(request, msg, blocking)
}

// fileAt returns the file of a descriptor, or one whose calls fail with EBADF.
func fileAt(fd int) File {
	if f := Get(fd); f != nil {
		return f
	}
	return closedFile{}
}

type closedFile struct{ Unsupported }

func (closedFile) Ioctl(uint32, []byte) syscall.Errno      { return syscall.EBADF }
func (closedFile) Write([]byte) (int, syscall.Errno)       { return 0, syscall.EBADF }
func (closedFile) Read([]byte) (int, syscall.Errno)        { return 0, syscall.EBADF }
func (closedFile) Mmap(int64, int) ([]byte, syscall.Errno) { return nil, syscall.EBADF }
func (closedFile) Close()                                  {}

func errorOf(errno syscall.Errno) error {
	switch errno {
	case 0:
		return nil
	case syscall.EAGAIN: // the most frequent; the conversion allocates where error numbers are large
		return errAgain
	}
	return errno
}

var errAgain error = syscall.EAGAIN

// buffers has memory for copies of what is read and written: the caller's memory would escape to
// the heap through the interface File, even if the file is the kernel's.
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
