//go:build linux

package vfiouser

import (
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"sort"
	"strconv"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrUnmapped is returned for addresses that the client has not mapped, or not for writing.
var ErrUnmapped = errors.New("address is not mapped for DMA")

// Memory is the memory of the guest that a device may access. The client maps and unmaps it at any
// time.
//
// A device copies by ReadAt and WriteAt, or makes a [View]. A view of pages stays valid memory of this
// process until it is closed: when the client unmaps memory, private memory atomically takes its place,
// so that accesses under way neither reach the guest nor fault.
type Memory struct {
	mu       sync.RWMutex
	mapped   int       // regions and parts of views, see maxMapped
	reserved uint64    // bytes of views, see maxReserved
	regions  []*region // by address
	views    map[*View]struct{}
}

// region is the memory of one DMA_MAP.
type region struct {
	addr, size uint64
	offset     int64 // in the file
	file       *os.File
	prot       int
	mem        []byte
}

func (r *region) end() uint64 { return r.addr + r.size }

// View is memory of the guest, mapped into this process a second time.
type View struct {
	m      *Memory
	mem    []byte
	parts  []part // that are mapped
	placed int    // mappings that count in m.mapped: parts, and private memory in their place
	whole  bool   // later mappings of the client are added: see All
	sparse bool   // has holes: see Sparse
}

// part is a run of a view.
type part struct {
	at         int // in the view
	addr, size uint64
}

func newMemory() *Memory { return &Memory{views: map[*View]struct{}{}} }

var pageSize = uint64(os.Getpagesize())

// maxAddress bounds guest addresses: page tables of x86 have 52 bits.
const maxAddress = 1 << 52

// errUnsealed refuses memory that its owner could take away.
var errUnsealed = fmt.Errorf("the file of the guest's memory can be truncated: use QEMU's memory-backend-memfd, with its default seal=on: %w", unix.EPERM)

// add maps a part of a file. A region without a file is accepted, as the client may do without for
// memory that it does not share, but cannot be accessed.
func (m *Memory) add(addr, size uint64, offset int64, prot int, file *os.File) error {
	if size == 0 || addr%pageSize != 0 || size%pageSize != 0 || addr >= maxAddress || size > maxAddress-addr || offset < 0 || uint64(offset)%pageSize != 0 {
		return fmt.Errorf("map %#x+%#x at offset %#x: %w", addr, size, offset, unix.EINVAL)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	i := m.search(addr)
	if i < len(m.regions) && m.regions[i].addr < addr+size {
		return fmt.Errorf("map %#x+%#x: overlaps %#x+%#x: %w", addr, size, m.regions[i].addr, m.regions[i].size, unix.EEXIST)
	}
	if len(m.regions) >= maxRegions {
		return fmt.Errorf("map %#x+%#x: there are %d regions: %w", addr, size, maxRegions, unix.ENOSPC)
	}
	r := &region{addr: addr, size: size, offset: offset, file: file, prot: prot}
	if file != nil && prot != 0 {
		// An access beyond the end of a file ends the process: the file must not shrink.
		if seals, err := unix.FcntlInt(file.Fd(), unix.F_GET_SEALS, 0); err != nil || seals&unix.F_SEAL_SHRINK == 0 {
			return fmt.Errorf("map %#x+%#x: %w", addr, size, errUnsealed)
		}
		info, err := file.Stat()
		if err != nil {
			return err
		}
		if m.mapped >= maxMapped {
			return fmt.Errorf("map %#x+%#x: %d runs of pages are mapped: %w", addr, size, maxMapped, unix.ENOSPC)
		}
		if info.Size() < offset || uint64(info.Size()-offset) < size {
			return fmt.Errorf("map %#x+%#x at offset %#x: the file has %#x bytes: %w", addr, size, offset, info.Size(), unix.EINVAL)
		}
		if r.mem, err = unix.Mmap(int(file.Fd()), offset, int(size), prot, unix.MAP_SHARED|unix.MAP_NORESERVE); err != nil {
			return os.NewSyscallError("mmap", err)
		}
		m.mapped++
		for v := range m.views {
			if v.whole {
				v.follow(r)
			}
		}
	}
	m.regions = slices.Insert(m.regions, i, r)
	return nil
}

// remove unmaps all regions inside of a range. It fails if one is only partly inside.
func (m *Memory) remove(addr, size uint64) error {
	if addr+size < addr {
		return fmt.Errorf("unmap %#x+%#x: %w", addr, size, unix.EINVAL)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var gone, kept []*region
	for _, r := range m.regions {
		switch {
		case r.end() <= addr || r.addr >= addr+size:
			kept = append(kept, r)
		case r.addr >= addr && r.end() <= addr+size:
			gone = append(gone, r)
		default:
			return fmt.Errorf("unmap %#x+%#x: a part of %#x+%#x: %w", addr, size, r.addr, r.size, unix.EINVAL)
		}
	}
	m.regions = kept
	for _, r := range gone {
		r.close(m)
	}
	return nil
}

// removeAll unmaps everything.
func (m *Memory) removeAll() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.regions {
		r.close(m)
	}
	m.regions = nil
}

// close unmaps a region of m.
func (r *region) close(m *Memory) {
	for v := range m.views {
		v.forget(r)
	}
	if r.mem != nil {
		unix.Munmap(r.mem)
		m.mapped--
	}
	if r.file != nil {
		r.file.Close()
	}
}

// search returns the index of the first region that ends behind addr.
func (m *Memory) search(addr uint64) int {
	return sort.Search(len(m.regions), func(i int) bool { return m.regions[i].end() > addr })
}

// find returns the accessible region of addr, or nil. m is locked.
func (m *Memory) find(addr uint64, prot int) *region {
	i := m.search(addr)
	if i == len(m.regions) || m.regions[i].addr > addr || m.regions[i].mem == nil || m.regions[i].prot&prot != prot {
		return nil
	}
	return m.regions[i]
}

// each calls do with the memory of a range, part by part. Nothing is done if a part is not mapped.
func (m *Memory) each(addr, size uint64, prot int, do func(mem []byte)) error {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if size > maxAddress || addr > maxAddress {
		return fmt.Errorf("address %#x+%#x: %w", addr, size, ErrUnmapped)
	}
	for pass := range 2 {
		for a := addr; a < addr+size; {
			r := m.find(a, prot)
			if r == nil {
				return fmt.Errorf("address %#x: %w", a, ErrUnmapped)
			}
			end := min(r.end(), addr+size)
			if pass == 1 {
				do(r.mem[a-r.addr : end-r.addr])
			}
			a = end
		}
	}
	return nil
}

// ReadAt fills b from an address of the guest, or fails with [ErrUnmapped].
func (m *Memory) ReadAt(b []byte, addr uint64) error {
	return m.each(addr, uint64(len(b)), unix.PROT_READ, func(mem []byte) { b = b[copy(b, mem):] })
}

// WriteAt writes b to an address of the guest, or fails with [ErrUnmapped] and writes nothing.
func (m *Memory) WriteAt(b []byte, addr uint64) error {
	return m.each(addr, uint64(len(b)), unix.PROT_WRITE, func(mem []byte) { b = b[copy(mem, b):] })
}

// Pages maps pages of the guest one after the other. Their size is a power of two and at least
// this machine's page. It fails with [ErrUnmapped] if the guest has no such memory.
func (m *Memory) Pages(addrs []uint64, size uint64) (*View, error) {
	return m.Part(addrs, size, 0, uint64(len(addrs))*size)
}

// Part is like Pages, for length bytes from offset off of the pages, which alone must be the guest's
// memory. Both are multiples of this machine's page.
func (m *Memory) Part(addrs []uint64, size, off, length uint64) (*View, error) {
	if size < pageSize || size&(size-1) != 0 || size > 1<<40 {
		return nil, fmt.Errorf("pages of %d bytes: this machine maps pages of %d: %w", size, pageSize, unix.EINVAL)
	}
	end := off + length
	if length == 0 || length > maxView || end < off || (end-1)/size >= uint64(len(addrs)) || (off|length)%pageSize != 0 {
		return nil, fmt.Errorf("%#x bytes from %#x of %d pages of %#x: a view has at most %#x: %w", length, off, len(addrs), size, uint64(maxView), unix.EINVAL)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	v, err := m.reserve(length)
	if err != nil {
		return nil, err
	}
	for i := 0; i < len(addrs); {
		// A run of pages takes one mapping.
		j := i + 1
		for j < len(addrs) && addrs[j] == addrs[j-1]+size {
			j++
		}
		if from, to := max(uint64(i)*size, off), min(uint64(j)*size, end); from < to {
			if err := v.place(from-off, addrs[i]+from-uint64(i)*size, to-from); err != nil {
				v.close()
				return nil, err
			}
		}
		i = j
	}
	m.views[v] = struct{}{}
	return v, nil
}

// maxMapped bounds the mappings for a guest. The kernel allows a process 65530 (vm.max_map_count): with
// none left, Go's own memory could not grow.
const maxMapped = 1 << 14

// maxView bounds the size of a view, and maxReserved the size of all views of a guest: the address space
// of 1<<47 bytes is also for other guests and for Go. maxRegions bounds DMA_MAP.
const (
	maxView     = 1 << 42
	maxReserved = 1 << 44
	maxRegions  = 1<<16 - 1 // as QEMU demands
)

// All maps all memory of the guest: an address of the guest is the offset in the view. The view follows
// the client's mappings. Where the guest has no memory, an access faults, so that the guest cannot make
// this process allocate memory there.
func (m *Memory) All(size uint64) (*View, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v, err := m.reserve(min(size, maxView))
	if err != nil {
		return nil, err
	}
	v.whole = true
	for _, r := range m.regions {
		v.follow(r)
	}
	m.views[v] = struct{}{}
	return v, nil
}

// Sparse returns a view of length bytes, a multiple of this machine's page, where nothing is mapped yet: an
// access to what Map has not mapped faults.
func (m *Memory) Sparse(length uint64) (*View, error) {
	if length == 0 || length > maxView || length%pageSize != 0 {
		return nil, fmt.Errorf("a view of %#x bytes: %w", length, unix.EINVAL)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	v, err := m.reserve(length)
	if err != nil {
		return nil, err
	}
	v.sparse = true
	m.views[v] = struct{}{}
	return v, nil
}

// Map maps a range of the guest's memory into the view at an offset, where nothing may be mapped. If readOnly
// is set, a store faults. All are multiples of this machine's page. On an error, some of the range may
// be mapped.
func (v *View) Map(at, addr, size uint64, readOnly bool) error {
	if (at|size)%pageSize != 0 || size > uint64(len(v.mem)) || at > uint64(len(v.mem))-size {
		return fmt.Errorf("map %#x+%#x: a view of %#x bytes: %w", at, size, len(v.mem), unix.EINVAL)
	}
	v.m.mu.Lock()
	defer v.m.mu.Unlock()
	if err := v.place(at, addr, size); err != nil || !readOnly {
		return err
	}
	return os.NewSyscallError("mprotect", unix.Mprotect(v.mem[at:at+size], unix.PROT_READ))
}

// Unmap makes a range of the view fault, as Map takes it. Nobody may be accessing it.
func (v *View) Unmap(at, size uint64) {
	v.m.mu.Lock()
	defer v.m.mu.Unlock()
	from, to := int(at), int(at+size)
	if _, err := unix.MmapPtr(-1, 0, unsafe.Pointer(&v.mem[from:to][0]), uintptr(size), unix.PROT_NONE, unix.MAP_FIXED|reserved); err != nil {
		panic(os.NewSyscallError("mmap", err)) // as in forget
	}
	var kept []part
	for _, p := range v.parts {
		end := p.at + int(p.size)
		if end <= from || p.at >= to {
			kept = append(kept, p)
			continue
		}
		if p.at < from {
			kept = append(kept, part{p.at, p.addr, uint64(from - p.at)})
		}
		if end > to {
			kept = append(kept, part{to, p.addr + uint64(to-p.at), uint64(end - to)})
		}
	}
	more := len(kept) - len(v.parts)
	v.parts = kept
	v.placed += more
	v.m.mapped += more
}

// Bytes returns the memory.
func (v *View) Bytes() []byte { return v.mem }

// Word returns a word of four bytes at an offset that is a multiple of four.
func (v *View) Word(off int) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(&v.mem[off : off+4 : off+4][0]))
}

// Close unmaps the view. Nothing may use it any more.
func (v *View) Close() {
	v.m.mu.Lock()
	defer v.m.mu.Unlock()
	if _, ok := v.m.views[v]; ok {
		delete(v.m.views, v)
		v.close()
	}
}

// reserved are the flags of private memory: it is not allocated before it is used.
const reserved = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_NORESERVE

// reserve reserves addresses. The kernel does not count inaccessible memory, so that this also works with
// vm.overcommit_memory=2, which ignores MAP_NORESERVE.
func (m *Memory) reserve(size uint64) (*View, error) {
	if size > math.MaxInt {
		return nil, fmt.Errorf("a view of %#x bytes: addresses of this process have %d bits: %w", size, strconv.IntSize, unix.ENOMEM)
	}
	if size > maxReserved-m.reserved {
		return nil, fmt.Errorf("a view of %#x bytes: the guest's views have %#x of %#x: %w", size, m.reserved, uint64(maxReserved), unix.ENOSPC)
	}
	p, err := unix.MmapPtr(-1, 0, nil, uintptr(size), unix.PROT_NONE, reserved)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	m.reserved += size
	return &View{m: m, mem: unsafe.Slice((*byte)(p), size)}, nil
}

func (v *View) close() {
	v.m.mapped -= v.placed
	v.m.reserved -= uint64(len(v.mem))
	unix.MunmapPtr(unsafe.Pointer(&v.mem[0]), uintptr(len(v.mem)))
}

// place maps a range of the guest into the view, which may span regions. m is locked.
func (v *View) place(at, addr, size uint64) error {
	if addr%pageSize != 0 || addr >= maxAddress || size > maxAddress-addr {
		return fmt.Errorf("address %#x: %w", addr, ErrUnmapped)
	}
	for end := addr + size; addr < end; {
		r := v.m.find(addr, unix.PROT_READ)
		if r == nil {
			return fmt.Errorf("address %#x: %w", addr, ErrUnmapped)
		}
		n := min(r.end(), end) - addr
		if err := v.mapFixed(r, at, addr, n); err != nil {
			return err
		}
		at, addr = at+n, addr+n
	}
	return nil
}

func (v *View) mapFixed(r *region, at, addr, size uint64) error {
	if v.m.mapped >= maxMapped {
		return fmt.Errorf("address %#x: %d runs of pages are mapped: %w", addr, maxMapped, unix.ENOSPC)
	}
	_, err := unix.MmapPtr(int(r.file.Fd()), r.offset+int64(addr-r.addr), unsafe.Pointer(&v.mem[at]), uintptr(size),
		// If the guest lets the device only read the memory, the device's stores go to a copy.
		unix.PROT_READ|unix.PROT_WRITE, unix.MAP_FIXED|sharing(r.prot))
	if err != nil {
		return os.NewSyscallError("mmap", err)
	}
	v.parts = append(v.parts, part{int(at), addr, size})
	v.placed++
	v.m.mapped++
	return nil
}

func sharing(prot int) int {
	if prot&unix.PROT_WRITE == 0 {
		return unix.MAP_PRIVATE
	}
	return unix.MAP_SHARED
}

// follow maps a region into a view of all memory.
func (v *View) follow(r *region) {
	if r.mem == nil || r.addr >= uint64(len(v.mem)) {
		return
	}
	// If this fails for want of mappings, an access faults there.
	_ = v.mapFixed(r, r.addr, r.addr, min(r.size, uint64(len(v.mem))-r.addr))
}

// forget replaces a region's parts in the view by private memory, or, in a view that has holes anyway, by
// reserved addresses, which join the mappings beside them.
func (v *View) forget(r *region) {
	prot, holes := unix.PROT_READ|unix.PROT_WRITE, v.whole || v.sparse
	if holes {
		prot = unix.PROT_NONE
	}
	v.parts = slices.DeleteFunc(v.parts, func(p part) bool {
		if p.addr < r.addr || p.addr >= r.end() {
			return false
		}
		if _, err := unix.MmapPtr(-1, 0, unsafe.Pointer(&v.mem[p.at]), uintptr(p.size), prot, unix.MAP_FIXED|reserved); err != nil {
			// The kernel has no memory for its lists. Continuing would write into the guest.
			panic(os.NewSyscallError("mmap", err))
		}
		if holes {
			v.placed--
			v.m.mapped--
		}
		return true
	})
}
