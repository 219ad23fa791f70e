package uverbs

import (
	"fmt"
	"runtime"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
)

// Access says who may do what to memory. Values are the kernel's (enum
// ib_uverbs_access_flags). Local reads are always allowed.
type Access uint32

const (
	AccessLocalWrite   Access = abi.IB_UVERBS_ACCESS_LOCAL_WRITE
	AccessRemoteWrite  Access = abi.IB_UVERBS_ACCESS_REMOTE_WRITE // needs AccessLocalWrite
	AccessRemoteRead   Access = abi.IB_UVERBS_ACCESS_REMOTE_READ
	AccessRemoteAtomic Access = abi.IB_UVERBS_ACCESS_REMOTE_ATOMIC // needs AccessLocalWrite

	// AccessAll is everything a peer can be allowed to do.
	AccessAll = AccessLocalWrite | AccessRemoteWrite | AccessRemoteRead | AccessRemoteAtomic
)

// MR is a memory region: memory the device may touch, and the keys to it. It
// belongs to a [PD] and lives until it, or the PD, is closed or forgotten.
type MR struct {
	pd         *PD
	obj        *object
	mem        []byte
	closed     atomic.Bool
	addr       uint64
	lkey, rkey uint32
}

// MROptions tune [PD.AllocMR]. The zero value is right for most.
type MROptions struct {
	HugePages bool // see mmap.BufferOptions
}

// AllocMR makes a region of new, zeroed, page-aligned memory outside the Go
// heap, size bytes long. Close frees it: slices of [MR.Bytes] must not be used
// after that.
func (p *PD) AllocMR(size int, access Access, opt MROptions) (*MR, error) {
	buf, err := mmap.NewBuffer(size, mmap.BufferOptions{HugePages: opt.HugePages})
	if err != nil {
		return nil, p.obj.fail("allocate MR in", err)
	}
	mr, err := p.register(buf.Bytes(), buf.Addr(), access, buf.Close)
	if err != nil {
		buf.Close()
	}
	return mr, err
}

// RegisterMR makes a region of the caller's memory, which is pinned, and not
// collected, until the region is closed. The memory must not hold Go
// pointers, and peers with the key write to it at any time: the caller reads
// it only when told that they have.
func (p *PD) RegisterMR(mem []byte, access Access) (*MR, error) {
	if len(mem) == 0 {
		return nil, p.obj.fail(opRegister, fmt.Errorf("empty memory: %w", unix.EINVAL))
	}
	pin := new(runtime.Pinner)
	addr := mmap.Pin(pin, mem)
	unpin := func() error { pin.Unpin(); return nil }
	mr, err := p.register(mem, addr, access, unpin)
	if err != nil {
		unpin()
	}
	return mr, err
}

const opRegister = "register MR in"

// register takes over the memory, to be let go with free, if it succeeds.
func (p *PD) register(mem []byte, addr uint64, access Access, free func() error) (*MR, error) {
	if err := p.obj.enter(opRegister); err != nil {
		return nil, err
	}
	defer p.obj.exit()
	req := abi.IbUverbsRegMr{
		Start:       addr,
		Length:      uint64(len(mem)),
		HcaVa:       addr,
		PdHandle:    p.handle,
		AccessFlags: uint32(access),
	}
	var resp abi.IbUverbsRegMrResp
	core := p.ctx.contextCore
	err := core.file.Invoke(abi.IB_USER_VERBS_CMD_REG_MR, mmap.Bytes(&req), mmap.Bytes(&resp), nil, nil)
	if err != nil {
		return nil, p.obj.fail(opRegister, err)
	}
	m := &MR{pd: p, mem: mem, addr: addr, lkey: resp.Lkey, rkey: resp.Rkey}
	handle := resp.MrHandle
	m.obj = newObject(core.device.Name, fmt.Sprintf("MR %#x", resp.Lkey), func() error {
		err := core.destroy(abi.UVERBS_OBJECT_MR, abi.UVERBS_METHOD_MR_DESTROY, abi.UVERBS_ATTR_DESTROY_MR_HANDLE, 0, handle, nil)
		if err != nil {
			return err
		}
		return free()
	}, p.obj)
	m.obj.kept = true
	return m, nil
}

// Bytes is the region's memory; nil after Close.
func (m *MR) Bytes() []byte {
	if m.closed.Load() {
		return nil
	}
	return m.mem
}

// Len is the length of the region in bytes.
func (m *MR) Len() int { return len(m.mem) }

// Addr is the address of the first byte, as SGEs and peers name it.
func (m *MR) Addr() uint64 { return m.addr }

// LKey is the key for this side's work requests.
func (m *MR) LKey() uint32 { return m.lkey }

// RKey is the key for peers.
func (m *MR) RKey() uint32 { return m.rkey }

// SGE names n bytes of the region from off. It panics, as slicing does, if
// they are not all inside.
func (m *MR) SGE(off, n int) SGE {
	if off < 0 || n < 0 || off > len(m.mem)-n {
		panic(fmt.Sprintf("uverbs: SGE [%d:%d+%d] of an MR of %d bytes", off, off, n, len(m.mem)))
	}
	return SGE{Addr: m.addr + uint64(off), Length: uint32(n), LKey: m.lkey}
}

// Close deregisters the region and frees or unpins its memory. Work requests
// and peers that still use it fail with an access error.
func (m *MR) Close() error {
	err := m.obj.close()
	if err == nil {
		m.closed.Store(true)
	}
	return err
}
