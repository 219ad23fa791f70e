package engine

import (
	"sort"
	"sync"
	"syscall"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/maps"
)

// The upper 24 bits of a key are random, in one half of the range for MRs, in the other for MWs.
// The last byte is random; of MWs, the consumer chooses it.
const (
	minMRIndex = 1
	maxMRIndex = 1<<23 - 1
	minMWIndex = 1 << 23
	maxMWIndex = 1<<24 - 1
)

func isMWKey(key uint32) bool { return key>>8 >= minMWIndex }

const (
	accessRemote       = verbs.AccessRemoteRead | verbs.AccessRemoteWrite | verbs.AccessRemoteAtomic
	accessRemoteWrites = verbs.AccessRemoteWrite | verbs.AccessRemoteAtomic
	accessFlush        = verbs.AccessFlushGlobal | verbs.AccessFlushPersistent
	accessOptional     = 0x3ff00000 // IB_ACCESS_OPTIONAL

	// which require memory that can be written (ib_access_writable)
	accessWritable = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteAtomic | verbs.AccessMWBind

	// supported by rxe for MRs and QPs
	accessMR = accessRemote | verbs.AccessLocalWrite | verbs.AccessMWBind | verbs.AccessOnDemand | accessFlush | accessOptional
	// all flags of ib_access_flags
	accessAny = accessMR | verbs.AccessZeroBased | verbs.AccessHugeTLB
)

// MR is registered memory.
type MR struct {
	dev    *Device
	key    uint32
	length uint64
	iova   uint64

	mu      sync.RWMutex // held for reading during accesses
	pd      *PD
	access  verbs.Access
	mem     []byte
	parts   []Part // of a region of RegisterParts, which has no mem
	only    uint32 // number of the only QP that may use it, if not 0
	valid   bool
	windows int // MWs bound to it
	paged   bool
}

// Part is memory of another region, for RegisterParts.
type Part struct {
	Key          uint32
	Addr, Length uint64

	end uint64 // in the region of parts
}

// checkAccess is ib_check_mr_access.
func checkAccess(access verbs.Access) error {
	switch {
	case access&(verbs.AccessRemoteAtomic|verbs.AccessRemoteWrite) != 0 && access&verbs.AccessLocalWrite == 0,
		access&^accessAny != 0:
		return syscall.EINVAL
	case access&verbs.AccessOnDemand != 0, access&^accessMR != 0:
		return syscall.EOPNOTSUPP
	}
	return nil
}

// RegisterMR registers length bytes of the process's memory at addr, which peers and work requests
// address from iova on. It fails with EFAULT if the memory is not mapped or, for access that
// writes, is read-only or a file on a disk; with EINVAL or EOPNOTSUPP for unsupported access. The
// memory must stay mapped until Destroy.
func (pd *PD) RegisterMR(addr, length, iova uint64, access verbs.Access) (*MR, error) {
	if err := checkAccess(access); err != nil {
		return nil, err
	}
	if access&verbs.AccessFlushPersistent != 0 || iova+length < iova { // this is no persistent memory
		return nil, syscall.EINVAL
	}
	write := access&accessWritable != 0
	mem, err := memory(addr, length, write)
	if err != nil {
		return nil, err
	}
	if write && length > 0 && maps.OnDisk(addr, length) {
		return nil, syscall.EFAULT
	}
	mr := &MR{dev: pd.dev, length: length, iova: iova, pd: pd, access: access, mem: mem, valid: true}
	return hold(pd, mr, func() bool { return pd.dev.mrs.addRandom(mr, &mr.key, minMRIndex, maxMRIndex, maxMR) })
}

// RegisterKey registers mem, which peers and work requests address from iova on, with a key that
// the caller chooses: its upper 24 bits are below 1<<23 and no other region's. It is for device
// models, who own their guests' memory: only the key is checked. Access to an unmapped part of mem
// fails, as with RegisterMR.
func (pd *PD) RegisterKey(key uint32, mem []byte, iova uint64, access verbs.Access) (*MR, error) {
	return pd.register(&MR{key: key, length: uint64(len(mem)), iova: iova, access: access, mem: mem})
}

func (pd *PD) register(mr *MR) (*MR, error) {
	if isMWKey(mr.key) || mr.iova+mr.length < mr.iova || mr.access&^accessMR != 0 {
		return nil, syscall.EINVAL
	}
	mr.dev, mr.pd, mr.valid = pd.dev, pd, true
	return hold(pd, mr, func() bool { return pd.dev.mrs.put(mr.key>>8, mr) })
}

// RegisterParts is RegisterKey for a region that consists of parts of others, one after the other.
// Each access looks them up, with their own keys and rights for local accesses, in the PD of the
// QP. They may not have parts themselves. qpn is the number of the only QP that may use the region,
// or 0.
func (pd *PD) RegisterParts(key uint32, parts []Part, iova uint64, access verbs.Access, qpn uint32) (*MR, error) {
	var length uint64
	for i := range parts {
		if length+parts[i].Length < length {
			return nil, syscall.EINVAL
		}
		length += parts[i].Length
		parts[i].end = length
	}
	return pd.register(&MR{key: key, length: length, iova: iova, access: access, parts: parts, only: qpn})
}

// LKey returns the local key.
func (mr *MR) LKey() uint32 { return mr.key }

// RKey returns the remote key, which is the same.
func (mr *MR) RKey() uint32 { return mr.key }

// Length returns the length of the region.
func (mr *MR) Length() uint64 { return mr.length }

// IOVA returns the address of the region in requests.
func (mr *MR) IOVA() uint64 { return mr.iova }

// Rereg changes the PD, unless pd is nil, and the access, unless access is nil.
func (mr *MR) Rereg(pd *PD, access *verbs.Access) error {
	if err := mr.dev.usable(); err != nil {
		return err
	}
	if access != nil {
		if err := checkAccess(*access); err != nil {
			return err
		}
	}
	mr.mu.Lock()
	defer mr.mu.Unlock()
	if !mr.valid {
		return syscall.EINVAL
	}
	if access != nil && *access&verbs.AccessLocalWrite != 0 && mr.access&verbs.AccessLocalWrite == 0 {
		return syscall.EACCES // ib_umem_check_rereg
	}
	if pd != nil && pd != mr.pd {
		if !pd.use.get() {
			return syscall.EINVAL
		}
		mr.pd.use.put()
		mr.pd = pd
	}
	if access != nil {
		mr.access = *access
	}
	return nil
}

// Destroy ends the registration. When it has returned the memory is not accessed. It fails
// with EINVAL while memory windows are bound to the region.
func (mr *MR) Destroy() error {
	mr.mu.Lock()
	defer mr.mu.Unlock()
	if !mr.valid || mr.windows > 0 {
		return syscall.EINVAL
	}
	mr.valid = false
	mr.mem = nil
	mr.dev.mrs.remove(mr.key >> 8)
	mr.pd.use.put()
	return nil
}

// lock locks the region for an access with a key by a QP. It reports false, with the region
// unlocked, if that is not allowed.
func (mr *MR) lock(qp *QP, key uint32, access verbs.Access) bool {
	mr.mu.RLock()
	if mr.valid && mr.key == key && mr.pd == qp.pd && mr.access&access == access && (mr.only == 0 || mr.only == qp.num) {
		return true
	}
	mr.mu.RUnlock()
	return false
}

// inRange reports whether the region contains length bytes at addr.
func (mr *MR) inRange(addr, length uint64) bool {
	off := addr - mr.iova
	return addr >= mr.iova && length <= mr.length && off <= mr.length-length
}

// span is memory that a key gives access to. Its regions are locked until unlock.
type span struct {
	mem   []byte
	mr    *MR  // nil if access is refused
	parts *MR  // of which mr has a part, or nil
	paged bool // if access fails, a page may be missing
}

func (s *span) unlock() {
	s.mr.mu.RUnlock()
	if s.parts != nil {
		s.parts.mu.RUnlock()
	}
}

// copy copies between the memory and buf, whose beginning it fills, and unlocks the span. It returns
// the number of bytes, and reports false if access is refused or the memory is not mapped any more.
func (s *span) copy(buf []byte, toMemory bool) (n int, ok bool) {
	if s.mr == nil {
		return 0, false
	}
	n = len(s.mem)
	dst, src := buf[:n], s.mem
	if toMemory {
		dst, src = src, dst
	}
	ok = copyMemory(dst, src)
	s.unlock()
	return n, ok
}

// find returns the locked region of a key, or nil. last is the region that the QP has used before:
// it may have ended, and another one may have its key.
func (qp *QP) find(last **MR, key uint32, access verbs.Access) *MR {
	if mr := *last; mr != nil && mr.key == key && mr.lock(qp, key, access) {
		return mr
	}
	mr := qp.dev.mrs.get(key >> 8)
	if mr == nil || !mr.lock(qp, key, access) {
		return nil
	}
	*last = mr
	return mr
}

// local returns n bytes at addr for a local key: fewer if they are in several parts.
func (qp *QP) local(key uint32, access verbs.Access, addr, n uint64) span {
	return qp.find(&qp.lastLocal, key, access).span(qp, access, addr, n, n)
}

// remote returns n bytes at va for an access of a peer to length bytes there: fewer if they are in
// several parts.
func (qp *QP) remote(key uint32, access verbs.Access, va, length, n uint64) span {
	if isMWKey(key) {
		return qp.window(key, access, va, length, n)
	}
	return qp.find(&qp.lastRemote, key, access).span(qp, access, va, length, n)
}

// span returns n of length bytes of the region, which is locked, or nil.
func (mr *MR) span(qp *QP, access verbs.Access, addr, length, n uint64) span {
	if mr == nil {
		return span{}
	}
	if !mr.inRange(addr, length) {
		mr.mu.RUnlock()
		return span{}
	}
	off := addr - mr.iova
	switch {
	case mr.parts == nil:
		return span{mem: mr.mem[off:][:n:n], mr: mr, paged: mr.paged}
	case n == 0:
		return span{mr: mr}
	}
	i := sort.Search(len(mr.parts), func(i int) bool { return off < mr.parts[i].end })
	p := &mr.parts[i]
	off -= p.end - p.Length
	n = min(n, p.Length-off)
	if access &= accessRemoteWrites | verbs.AccessLocalWrite; access != 0 {
		access = verbs.AccessLocalWrite
	}
	to := qp.dev.mrs.get(p.Key >> 8)
	if to == nil || to.parts != nil || !to.lock(qp, p.Key, access) {
		paged := to == nil && mr.paged // the part itself is missing
		mr.mu.RUnlock()
		return span{paged: paged}
	}
	if !to.inRange(p.Addr+off, n) {
		to.mu.RUnlock()
		mr.mu.RUnlock()
		return span{}
	}
	off = p.Addr + off - to.iova
	return span{mem: to.mem[off:][:n:n], mr: to, parts: mr, paged: to.paged || mr.paged}
}
