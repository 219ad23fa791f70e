package uverbs

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync/atomic"
	"syscall"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/provider"
)

// MR is memory that the device may access, and its keys. It belongs to a [PD] and lives until
// Close, or until its PD becomes unreachable.
type MR struct {
	pd         *PD
	obj        *object
	mem        []byte // nil if this process must not access it
	size       int
	addr       uint64
	lkey, rkey uint32
	imported   bool // from another Context
	state      *mrState
}

// MROptions contains options for [PD.AllocMR] and [PD.RegisterMR].
type MROptions struct {
	// PageSize allocates whole reserved huge pages of that size, 2 MiB (vm.nr_hugepages) or 1 GiB,
	// which make a device's page tables smaller; 0 means ordinary pages. AllocMR fails with ENOMEM
	// if there are too few.
	PageSize int
	// IOVA is the address of the first byte for SGEs and peers (ibv_reg_mr_iova(3)), such as
	// new(uint64(0)); nil is the memory's, which siw requires. On rxe give both the same offset in a
	// page.
	IOVA *uint64
}

// AllocMR registers size bytes of new, zeroed, page-aligned memory outside the Go heap. After
// Close, slices of [MR.Bytes] must not be used.
func (p *PD) AllocMR(size int, access verbs.Access, opt MROptions) (*MR, error) {
	buf, err := mmap.NewBuffer(size, mmap.BufferOptions{PageSize: opt.PageSize})
	if err != nil {
		return nil, p.obj.fail("allocate MR in", err)
	}
	return p.register(buf.Bytes(), buf.Addr(), opt.IOVA, access, buf.Close)
}

// RegisterMR registers the caller's memory, without Go pointers, and pins it until Close.
// docs/deploy.md has a table of mappings that can be registered. With [verbs.AccessRemoteWrite]
// peers can write at any time: read only after a completion or a message that reports the write.
func (p *PD) RegisterMR(mem []byte, access verbs.Access, opt MROptions) (*MR, error) {
	switch {
	case len(mem) == 0:
		return nil, p.obj.fail(opRegister, fmt.Errorf("empty memory: %w", syscall.EINVAL))
	case opt.PageSize != 0:
		return nil, p.obj.fail(opRegister, fmt.Errorf("PageSize is an option of AllocMR only: %w", syscall.EINVAL))
	}
	addr, unpin := pin(mem)
	return p.register(mem, addr, opt.IOVA, access, unpin)
}

// pin pins mem until unpin is called.
func pin(mem []byte) (addr uint64, unpin func() error) {
	p := new(runtime.Pinner)
	return mmap.Pin(p, mem), func() error { p.Unpin(); return nil }
}

// odpSupport is a bit of the device's general on-demand paging capabilities.
const odpSupport = 1 << 0

const opRegister = "register MR in"

// register registers memory; a nil iova is addr. The region releases the memory with free, and so
// does register if it fails.
func (p *PD) register(mem []byte, addr uint64, iova *uint64, access verbs.Access, free func() error) (_ *MR, err error) {
	defer func() {
		if err != nil {
			free()
		}
	}()
	if err := p.obj.enter(opRegister); err != nil {
		return nil, err
	}
	defer p.obj.exit()
	iova = cmp.Or(iova, &addr)
	req := abi.IbUverbsRegMr{
		Start:       addr,
		Length:      uint64(len(mem)),
		HcaVa:       *iova,
		PdHandle:    p.handle,
		AccessFlags: uint32(access),
	}
	var resp abi.IbUverbsRegMrResp
	core := p.ctx.contextCore
	created := false
	part, err := core.driverContext.RegisterMR(&provider.MRInit{PD: p.driverPD, Start: addr, Length: req.Length, IOVA: *iova, Access: access},
		core.invokeFunc(abi.IB_USER_VERBS_CMD_REG_MR, mmap.Bytes(&req), mmap.Bytes(&resp), &created))
	if err != nil && created {
		core.destroy(kindMR, resp.MrHandle)
	}
	if errors.Is(err, syscall.EINVAL) && access&(verbs.AccessRemoteWrite|verbs.AccessRemoteAtomic) != 0 && access&verbs.AccessLocalWrite == 0 {
		err = fmt.Errorf("AccessRemoteWrite and AccessRemoteAtomic need AccessLocalWrite: %w", err)
	}
	if errors.Is(err, syscall.EINVAL) && access&verbs.AccessOnDemand != 0 && core.dev.Attr.ODP.General&odpSupport == 0 { // as before Linux 6.3
		err = fmt.Errorf("%w: no on-demand paging: %w", errors.ErrUnsupported, err)
	}
	if err != nil {
		return nil, core.failMemory(p.obj, opRegister, err, addr, req.Length, access)
	}
	m := &MR{pd: p, mem: mem, size: len(mem), addr: *iova, lkey: resp.Lkey, rkey: resp.Rkey}
	m.initObject(resp.MrHandle, part, free)
	return m, nil
}

// mrState is the state needed to destroy an MR. It is separate so that an unreachable MR
// can be collected.
type mrState struct {
	handle uint32
	free   func() error // frees or unpins the memory
	gone   atomic.Bool  // the kernel's MR is destroyed; another one may have its handle
}

// initObject makes the MR an object of its PD, which destroys it.
func (m *MR) initObject(handle uint32, part provider.Object, free func() error) {
	core, state := m.pd.ctx.contextCore, &mrState{handle: handle, free: free}
	m.state = state
	destroy := withRelease(func() error { return core.destroy(kindMR, handle) }, part)
	m.obj = newObject(core.device.Name, objectName{"MR %#x", m.lkey}, func() error {
		if !state.gone.Load() { // or a Close before this one has destroyed it, and could not free the memory
			if err := destroy(); err != nil {
				return err
			}
			state.gone.Store(true)
		}
		return state.free()
	}, m.pd.obj)
	m.obj.pinned = true
}

// Bytes returns the region's memory, or nil after Close, also if that could not free the memory.
func (m *MR) Bytes() []byte {
	if m.state.gone.Load() {
		return nil
	}
	return m.mem
}

// Word returns the 4 aligned bytes at off as an atomic in the host's byte order, for polling memory
// to which a peer writes, until Close. That they have changed says nothing of other bytes of the
// same WRITE: packets that took several paths are stored as they come. A completion does; see
// docs/reliability.md, "When a peer's data is there".
func (m *MR) Word(off int) *atomic.Uint32 { return mmap.Word(m.Bytes(), off) }

// Word64 returns the 8 aligned bytes at off as an atomic, for the operand of peers' RDMA atomics,
// until Close. An adapter's operations are atomic with regard to this processor's only if
// DeviceAttr.AtomicCap is [verbs.AtomicGlobal].
func (m *MR) Word64(off int) *atomic.Uint64 { return mmap.Word64(m.Bytes(), off) }

// Len returns the length of the region in bytes.
func (m *MR) Len() int { return m.size }

// Addr returns the address of the first byte, as SGEs and peers use it.
func (m *MR) Addr() uint64 { return m.addr }

// LKey returns the key for this side's work requests.
func (m *MR) LKey() uint32 { return m.lkey }

// RKey returns the key for peers.
func (m *MR) RKey() uint32 { return m.rkey }

// SGE returns an SGE for n bytes of the region from off. It panics, as slicing does, if they are
// not inside, or if n is 4 GiB or more.
func (m *MR) SGE(off, n int) verbs.SGE {
	if off < 0 || n < 0 || off > m.size-n {
		panic(fmt.Sprintf("uverbs: SGE [%d:%d+%d] of an MR of %d bytes", off, off, n, m.size))
	}
	if uint64(n) > math.MaxUint32 {
		panic(fmt.Sprintf("uverbs: SGE of %d bytes: an SGE is shorter than 4 GiB", n))
	}
	return verbs.SGE{Addr: m.addr + uint64(off), Length: uint32(n), LKey: m.lkey}
}

// Close deregisters the region and frees or unpins its memory. If the memory cannot be freed
// (munmap(2)), the region is deregistered, and another Close tries again to free it.
func (m *MR) Close() error {
	if m == nil {
		return verbs.ErrClosed
	}
	return m.obj.close()
}
