package mmap

import (
	"fmt"
	"os"
	"syscall"
	"unsafe"

	"github.com/goverbs/verbs/internal/unix"
	"github.com/goverbs/verbs/internal/virtual"
)

// Region is a shared, read-write mapping of part of a device file: a queue
// that the driver allocated.
type Region struct {
	mem     []byte
	virtual bool // of a virtual file: the garbage collector frees it
}

// mapPages maps length bytes. (unix.Mmap would add the mapping to a table.)
func mapPages(fd int, offset int64, length, flags int) ([]byte, error) {
	p, err := unix.MmapPtr(fd, offset, nil, uintptr(length), unix.PROT_READ|unix.PROT_WRITE, flags)
	if err != nil {
		return nil, err
	}
	return unsafe.Slice((*byte)(p), length), nil
}

func unmap(mem []byte) error {
	if len(mem) == 0 {
		return nil
	}
	return os.NewSyscallError("munmap", unix.MunmapPtr(unsafe.Pointer(unsafe.SliceData(mem)), uintptr(len(mem))))
}

// Map maps length bytes of the file fd from offset (a multiple of the page
// size; for RDMA drivers it is a cookie taken from the driver's response).
func Map(fd int, offset int64, length int) (*Region, error) {
	if length <= 0 {
		return nil, fmt.Errorf("mmap: length %d: %w", length, syscall.EINVAL)
	}
	if virtual.Is(fd) {
		mem, errno := virtual.Mmap(fd, offset, length)
		if errno != 0 {
			return nil, os.NewSyscallError("mmap", errno)
		}
		return &Region{mem, true}, nil
	}
	mem, err := mapPages(fd, offset, length, unix.MAP_SHARED)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	return &Region{mem, false}, nil
}

// Bytes returns the mapped memory, or nil after Close.
func (r *Region) Bytes() []byte { return r.mem }

// Close unmaps the region, which must not be in use. It may be called again.
func (r *Region) Close() error {
	if r == nil {
		return nil
	}
	mem := r.mem
	r.mem = nil
	if r.virtual {
		return nil
	}
	return unmap(mem)
}
