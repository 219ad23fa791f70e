package mmap

import (
	"fmt"
	"os"
	"syscall"

	"github.com/goverbs/verbs/internal/host"
)

// Region is a shared, read-write mapping of part of a device file: a queue
// that the driver allocated.
type Region struct {
	mem   []byte
	unmap func([]byte) error
}

// Map maps length bytes of the file fd from offset (a multiple of the page
// size; for RDMA drivers it is a cookie taken from the driver's response).
func Map(fd int, offset int64, length int) (*Region, error) {
	return mapRegion(fd, offset, length, false)
}

// MapReadOnly is [Map] for registers that the kernel lets programs read only.
func MapReadOnly(fd int, offset int64, length int) (*Region, error) {
	return mapRegion(fd, offset, length, true)
}

func mapRegion(fd int, offset int64, length int, readOnly bool) (*Region, error) {
	if length <= 0 {
		return nil, fmt.Errorf("mmap: length %d: %w", length, syscall.EINVAL)
	}
	mem, unmap, err := host.Map(fd, offset, length, readOnly)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	return &Region{mem, unmap}, nil
}

// Bytes returns the mapped memory, or nil after Close.
func (r *Region) Bytes() []byte { return r.mem }

// Close unmaps the region, which must not be in use. It may be called again.
func (r *Region) Close() error {
	if r == nil || r.mem == nil {
		return nil
	}
	mem := r.mem
	r.mem = nil
	return os.NewSyscallError("munmap", r.unmap(mem))
}
