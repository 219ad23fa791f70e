package engine

import (
	"sync"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/unix"
)

// The upper 24 bits of a key are a random number: those of MRs in one half of the range,
// those of MWs in the other. The last byte is random and, for MWs, the consumer's.
const (
	minMRIndex = 1
	maxMRIndex = 1<<23 - 1
	minMWIndex = 1 << 23
	maxMWIndex = 1<<24 - 1
)

func isMWKey(key uint32) bool { return key>>8 >= minMWIndex }

const (
	accessRemote   = verbs.AccessRemoteRead | verbs.AccessRemoteWrite | verbs.AccessRemoteAtomic
	accessFlush    = verbs.AccessFlushGlobal | verbs.AccessFlushPersistent
	accessOptional = 0x3ff00000 // IB_ACCESS_OPTIONAL

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
	valid   bool
	windows int // MWs bound to it
}

// checkAccess is ib_check_mr_access.
func checkAccess(access verbs.Access) error {
	switch {
	case access&(verbs.AccessRemoteAtomic|verbs.AccessRemoteWrite) != 0 && access&verbs.AccessLocalWrite == 0,
		access&^accessAny != 0:
		return unix.EINVAL
	case access&verbs.AccessOnDemand != 0, access&^accessMR != 0:
		return unix.EOPNOTSUPP
	}
	return nil
}

// RegisterMR registers length bytes of the process's memory at addr, which peers and
// work requests address as iova and following. It fails with EFAULT if the memory is not
// mapped or, with [verbs.AccessLocalWrite], not writable, and with EINVAL or EOPNOTSUPP for
// access that is not supported. The memory must stay mapped until Dereg.
func (pd *PD) RegisterMR(addr, length, iova uint64, access verbs.Access) (*MR, error) {
	d := pd.dev
	if err := d.usable(); err != nil {
		return nil, err
	}
	if err := checkAccess(access); err != nil {
		return nil, err
	}
	if access&verbs.AccessFlushPersistent != 0 {
		return nil, unix.EINVAL // this is no persistent memory
	}
	if iova+length < iova {
		return nil, unix.EINVAL
	}
	mem, err := memory(addr, length, access&verbs.AccessLocalWrite != 0)
	if err != nil {
		return nil, err
	}
	if !pd.use.get() {
		return nil, unix.EINVAL
	}
	mr := &MR{dev: d, length: length, iova: iova, pd: pd, access: access, mem: mem, valid: true}
	if !d.mrs.addRandom(mr, &mr.key, minMRIndex, maxMRIndex, maxMR) {
		pd.use.put()
		return nil, unix.ENOMEM
	}
	return mr, nil
}

// LKey returns the local key.
func (mr *MR) LKey() uint32 { return mr.key }

// RKey returns the remote key, which is the same.
func (mr *MR) RKey() uint32 { return mr.key }

// Length returns the length of the region.
func (mr *MR) Length() uint64 { return mr.length }

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
		return unix.EINVAL
	}
	if access != nil && *access&verbs.AccessLocalWrite != 0 && mr.access&verbs.AccessLocalWrite == 0 {
		return unix.EACCES // ib_umem_check_rereg
	}
	if pd != nil && pd != mr.pd {
		if !pd.use.get() {
			return unix.EINVAL
		}
		mr.pd.use.put()
		mr.pd = pd
	}
	if access != nil {
		mr.access = *access
	}
	return nil
}

// Dereg ends the registration. When it has returned the memory is not accessed. It fails
// with EINVAL while memory windows are bound to the region.
func (mr *MR) Dereg() error {
	mr.mu.Lock()
	defer mr.mu.Unlock()
	if !mr.valid || mr.windows > 0 {
		return unix.EINVAL
	}
	mr.valid = false
	mr.mem = nil
	mr.dev.mrs.remove(mr.key >> 8)
	mr.pd.use.put()
	return nil
}

// lock locks the region for an access with a key, by an object of a PD. It reports false,
// with the region unlocked, if that is not allowed.
func (mr *MR) lock(pd *PD, key uint32, access verbs.Access) bool {
	mr.mu.RLock()
	if mr.valid && mr.key == key && mr.pd == pd && mr.access&access == access {
		return true
	}
	mr.mu.RUnlock()
	return false
}

func (mr *MR) unlock() { mr.mu.RUnlock() }

// inRange reports whether the region contains length bytes at addr.
func (mr *MR) inRange(addr, length uint64) bool {
	off := addr - mr.iova
	return addr >= mr.iova && length <= mr.length && off <= mr.length-length
}

// slice returns length bytes at addr, which are in range. The region is locked.
func (mr *MR) slice(addr, length uint64) []byte {
	off := addr - mr.iova
	return mr.mem[off : off+length]
}

// localMR returns the region for a local key, locked, or nil.
func (qp *QP) localMR(key uint32, access verbs.Access) *MR {
	mr := qp.lastMR
	if mr == nil || mr.key != key {
		if mr = qp.dev.mrs.get(key >> 8); mr == nil {
			return nil
		}
	}
	if !mr.lock(qp.pd, key, access) {
		return nil
	}
	qp.lastMR = mr
	return mr
}
