package mmap

import (
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"

	"github.com/goverbs/verbs/internal/host"
)

// BufferOptions contains options for [NewBuffer]. The zero value suits most programs.
type BufferOptions struct {
	// PageSize backs the buffer with huge pages of that many bytes, 2 MiB or 1 GiB, from the
	// system's reserved pool (/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages, which is
	// vm.nr_hugepages where base pages have 4 KiB) and rounds its size up to a multiple of
	// them; 0 means ordinary pages. NewBuffer fails with ENOMEM if the pool is too small.
	PageSize int
}

// Buffer is page-aligned, zeroed memory outside the Go heap: the garbage collector neither scans
// nor frees it, and its pages never move, as memory regions require. The owner must close it.
type Buffer struct {
	mem  []byte // the whole mapping
	size int
	huge bool
}

// NewBuffer makes a buffer of size bytes.
func NewBuffer(size int, opt BufferOptions) (*Buffer, error) {
	if size <= 0 {
		return nil, fmt.Errorf("mmap: buffer of %d bytes: %w", size, syscall.EINVAL)
	}
	length := size
	if page := opt.PageSize; page != 0 {
		if page != 2<<20 && page != 1<<30 {
			return nil, fmt.Errorf("mmap: pages of %d bytes: %w: 0, 2 MiB and 1 GiB are sizes of pages", page, syscall.EINVAL)
		}
		length = (size + page - 1) &^ (page - 1)
		if err := host.TakeMapping(); err != nil {
			return nil, fmt.Errorf("mmap: %w", err)
		}
	}
	mem, err := host.MapMemory(length, opt.PageSize)
	if err != nil && opt.PageSize != 0 {
		host.ReturnMapping()
	}
	if page := opt.PageSize; page != 0 && err == syscall.ENOMEM {
		dir := fmt.Sprintf("/sys/kernel/mm/hugepages/hugepages-%dkB", page>>10)
		return nil, fmt.Errorf("mmap: buffer of %d huge pages of %d MiB, of which %s are free: reserve more, as root: echo NUMBER > %s/nr_hugepages: %w",
			length/page, page>>20, freeHugePages(dir), dir, os.NewSyscallError("mmap", err))
	}
	if err != nil {
		return nil, fmt.Errorf("mmap: buffer of %d bytes: %w", length, os.NewSyscallError("mmap", err))
	}
	return &Buffer{mem, size, opt.PageSize != 0}, nil
}

// freeHugePages returns the number of free pages in the pool dir, as text.
func freeHugePages(dir string) string {
	text, err := os.ReadFile(dir + "/free_hugepages")
	if err != nil {
		return "an unknown number"
	}
	return strings.TrimSpace(string(text))
}

// Bytes returns the buffer's memory, or nil after Close. Slices of it must not be used after Close.
func (b *Buffer) Bytes() []byte {
	if b.mem == nil {
		return nil
	}
	return b.mem[:b.size:b.size]
}

// Addr returns the address of the first byte.
func (b *Buffer) Addr() uint64 { return Addr(b.mem) }

// Close frees the memory. It may be called again, also if it has failed: freeing memory in the midst of
// a mapping makes two of it, and fails with ENOMEM if the process has vm.max_map_count.
func (b *Buffer) Close() error {
	if b == nil {
		return net.ErrClosed
	}
	if b.mem == nil {
		return nil
	}
	if err := host.Unmap(b.mem); err != nil {
		return os.NewSyscallError("munmap", err)
	}
	b.mem = nil
	if b.huge {
		host.ReturnMapping()
	}
	return nil
}
