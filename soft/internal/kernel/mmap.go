package kernel

import (
	"syscall"

	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/engine"
)

const pageSize = 4096

// offer offers the memory of a queue for a mapping, until it has been mapped or the object is
// destroyed (rxe_create_mmap_info).
func (f *file) offer(o *object, r *engine.Ring) abi.Mminfo {
	mem := r.Bytes()
	f.mu.Lock()
	defer f.mu.Unlock()
	info := abi.Mminfo{Offset: uint64(f.nextOffset), Size: uint32(len(mem))}
	f.mappings[f.nextOffset] = mem
	o.mappings = append(o.mappings, f.nextOffset)
	f.nextOffset += (int64(len(mem)) + pageSize - 1) &^ (pageSize - 1)
	return info
}

// Mmap implements [host.File] (rxe_mmap).
func (f *file) Mmap(offset int64, length int) ([]byte, syscall.Errno) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if errno := f.usable(); errno != 0 {
		return nil, errno
	}
	mem, ok := f.mappings[offset]
	if !ok || length <= 0 || length > len(mem) {
		return nil, syscall.EINVAL
	}
	delete(f.mappings, offset)
	return mem[:length:length], 0
}
