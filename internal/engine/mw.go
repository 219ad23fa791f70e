package engine

import (
	"sync"
	"syscall"

	"github.com/goverbs/verbs"
)

// accessMW contains the rights that a window can have.
const accessMW = accessMR | verbs.AccessZeroBased

// MW is a memory window: a key for a part of an MR, which a QP binds and takes back by work
// requests, in the order of its other requests and without a system call. Of type 1, bound by
// ibv_bind_mw, the key is good for all QPs of the PD; of type 2, bound by a posted request, for the
// QP that has bound it (type 2B).
type MW struct {
	dev *Device
	pd  *PD
	typ verbs.MWType

	mu     sync.Mutex
	key    uint32
	state  mwState
	access verbs.Access
	addr   uint64
	length uint64
	mr     *MR // nil if nothing is bound
	qp     *QP // that bound a type 2 window
}

type mwState uint8

const (
	mwInvalid mwState = iota
	mwFree            // type 2: not bound
	mwValid
)

// AllocMW makes a memory window.
func (pd *PD) AllocMW(typ verbs.MWType) (*MW, error) {
	mw := &MW{dev: pd.dev, pd: pd, typ: typ}
	switch typ {
	case verbs.MWType1:
		mw.state = mwValid
	case verbs.MWType2:
		mw.state = mwFree
	default:
		return nil, syscall.EINVAL
	}
	return hold(pd, mw, func() bool { return pd.dev.mws.addRandom(mw, &mw.key, minMWIndex, maxMWIndex, maxMW) })
}

// RKey returns the window's key. Binding changes its last byte.
func (mw *MW) RKey() uint32 {
	mw.mu.Lock()
	defer mw.mu.Unlock()
	return mw.key
}

// Destroy ends the window.
func (mw *MW) Destroy() error {
	mw.mu.Lock()
	defer mw.mu.Unlock()
	if mw.state == mwInvalid {
		return syscall.EINVAL
	}
	mw.unbind()
	mw.state = mwInvalid
	mw.dev.mws.remove(mw.key >> 8)
	mw.pd.use.put()
	return nil
}

func (mw *MW) unbind() {
	if mw.mr != nil {
		mw.mr.mu.Lock()
		mw.mr.windows--
		mw.mr.mu.Unlock()
	}
	mw.mr, mw.qp = nil, nil
	mw.access, mw.addr, mw.length = 0, 0, 0
}

// binding is the work request BIND_MW.
type binding struct {
	addr, length uint64
	lkey         uint32
	key, newKey  uint32 // of the window
	access       verbs.Access
}

// bindMW executes a BIND_MW request (rxe_bind_mw).
func (qp *QP) bindMW(b *binding) bool {
	mw := qp.dev.mws.get(b.key >> 8)
	if mw == nil || b.access&^accessMW != 0 {
		return false
	}
	var mr *MR
	if b.length != 0 {
		if mr = qp.dev.mrs.get(b.lkey >> 8); mr == nil || mr.key != b.lkey {
			return false
		}
	}
	mw.mu.Lock()
	defer mw.mu.Unlock()
	if mw.key != b.key || mw.pd != qp.pd {
		return false
	}
	switch mw.typ {
	case verbs.MWType1:
		// A type 1 window may be bound again, or unbound by a length of 0 (rxe_check_bind_mw).
		if mw.state != mwValid || b.access&verbs.AccessZeroBased != 0 {
			return false
		}
	case verbs.MWType2:
		// One of type 2 has to be invalidated first.
		if mw.state != mwFree || mr == nil {
			return false
		}
	}
	if mr != nil && !mr.bind(qp.pd, b) {
		return false
	}
	mw.unbind()
	// The program chooses the last byte anew with each binding, so that a key given to a peer
	// before is void.
	mw.key = mw.key&^0xff | b.newKey&0xff
	mw.state = mwValid
	mw.access, mw.addr, mw.length, mw.mr = b.access, b.addr, b.length, mr
	if mw.typ == verbs.MWType2 {
		mw.qp = qp
	}
	return true
}

// bind counts a window of the region if it may be bound.
func (mr *MR) bind(pd *PD, b *binding) bool {
	mr.mu.Lock()
	defer mr.mu.Unlock()
	writes := b.access&accessRemoteWrites != 0
	switch {
	case !mr.valid, mr.pd != pd,
		mr.access&verbs.AccessMWBind == 0,
		// A window cannot give a right to write that the region lacks.
		writes && mr.access&verbs.AccessLocalWrite == 0, mr.parts != nil,
		!mr.inRange(b.addr, b.length):
		return false
	}
	mr.windows++
	return true
}

// invalidate executes a LOCAL_INV request, or the invalidation of a SEND_WITH_INV. Only
// type 2 windows can be invalidated, by the QP that has bound them: memory that a program
// registers cannot. The kernel's rxe lets all QPs do that (rxe_check_invalidate_mw), although
// only this one may use the window (rxe_lookup_mw).
func (qp *QP) invalidate(key uint32) bool {
	if qp.init.Invalidate != nil {
		return qp.init.Invalidate(key)
	}
	if !isMWKey(key) {
		return false
	}
	mw := qp.dev.mws.get(key >> 8)
	if mw == nil {
		return false
	}
	mw.mu.Lock()
	defer mw.mu.Unlock()
	if mw.key != key || mw.typ != verbs.MWType2 || mw.state != mwValid || mw.pd != qp.pd || mw.qp != qp {
		return false
	}
	mw.unbind()
	mw.state = mwFree
	return true
}

// window is remote for the key of a window. Addresses of a zero-based window begin at 0.
func (qp *QP) window(key uint32, access verbs.Access, va, length, n uint64) span {
	mw := qp.dev.mws.get(key >> 8)
	if mw == nil {
		return span{}
	}
	mw.mu.Lock()
	defer mw.mu.Unlock()
	if mw.key != key || mw.pd != qp.pd || mw.state != mwValid || mw.mr == nil || mw.access&access != access ||
		mw.typ == verbs.MWType2 && mw.qp != qp {
		return span{}
	}
	off := va
	if mw.access&verbs.AccessZeroBased == 0 {
		off = va - mw.addr // wraps around for smaller addresses, which are then out of range
	}
	if length > mw.length || off > mw.length-length {
		return span{}
	}
	mw.mr.mu.RLock() // a region with windows is valid
	off += mw.addr - mw.mr.iova
	return span{mem: mw.mr.mem[off:][:n:n], mr: mw.mr}
}
