//go:build linux

package connectx

import (
	"bytes"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/lab/connectx/internal/ifc"
)

// A UMR (user-mode memory registration) request configures an mkey: it registers memory, binds a
// memory window, or invalidates either. It consists of a control segment, whose last word names the
// key, and
//
//	struct mlx5_wqe_umr_ctrl_seg   what to change, and in which state the key must be
//	struct mkc                     new values of the fields that the mask selects
//	translation entries, or a data segment that says where they are
//
// as mlx5_ib's umr.c and wr.c and libmlx5's set_bind_wr post them.
const (
	umrCtrlSize = 48
	umrLeast    = segment + umrCtrlSize + ifc.MkcSize

	// Offsets in struct mlx5_wqe_umr_ctrl_seg, in whose first byte are the flags.
	umrOctowords = 4  // number of entries in units of 16 bytes
	umrOffset    = 6  // lower 16 bits of the first entry's offset, in the same unit
	umrMask      = 8  // MLX5_MKEY_MASK_*
	umrOffsetTop = 16 // upper 32 bits of the offset
	umrReserved  = 20
)

// Flags, MLX5_UMR_*.
const (
	umrCheckQPN     = 1 << 3 // fails unless the key is bound to this QP
	umrOffsetValid  = 1 << 4
	umrCheckNotFree = 1 << 5 // fails if the key is not free
	umrCheckFree    = 2 << 5 // fails if it is
	umrInline       = 1 << 7 // the entries are in the request

	umrChecks = umrCheckNotFree | umrCheckFree
	umrFlags  = umrCheckQPN | umrOffsetValid | umrChecks | umrInline
)

// umrFields are the fields that each bit of the mask selects.
var umrFields = map[uint64][]ifc.Field{
	ifc.MkeyMaskLen: {ifc.MkcLen, ifc.MkcLength64}, ifc.MkeyMaskPageSize: {ifc.MkcLogPageSize}, ifc.MkeyMaskStartAddr: {ifc.MkcStartAddr}, ifc.MkeyMaskPd: {ifc.MkcPd},
	ifc.MkeyMaskEnRinval: {ifc.MkcEnRinval}, ifc.MkeyMaskKey: {ifc.MkcMkey70}, ifc.MkeyMaskQpn: {ifc.MkcQpn}, ifc.MkeyMaskLr: {ifc.MkcLr}, ifc.MkeyMaskLw: {ifc.MkcLw},
	ifc.MkeyMaskRr: {ifc.MkcRr}, ifc.MkeyMaskRw: {ifc.MkcRw}, ifc.MkeyMaskA: {ifc.MkcA}, ifc.MkeyMaskSmallFence: {ifc.MkcSmallFenceOnRdmaReadResponse},
	ifc.MkeyMaskFree: {ifc.MkcFree},
}

// updater executes the UMR requests of a QP.
type updater struct {
	env      *env
	keys     *keyTable
	qpn, pdn uint32
	kernel   bool // the kernel's QP for UMR requests, which has no PD and may set any
	datagram bool // a UD QP, which has no UMR requests
	fastReg  bool // may load lists of pages: qpc.fre, which create_kernel_qp sets
}

// keyUpdate is a UMR request.
type keyUpdate struct {
	*updater
	wqe, ctrl, mkc []byte
	key            uint32
	flags          byte
	mask           uint64
	offset, size   int // bytes, of the translation entries

	// Set once the key has been found.
	k         *mkey  // locked
	old, next []byte // its context
	free      bool
	only      uint32 // QP that the key is bound to, or anyQP
}

// refusal is a reason to refuse a request. The recorder gets its name.
type refusal struct {
	name    string
	refuses func(u *keyUpdate) bool
}

// malformed are the reasons to refuse a request whatever the key. Programs write to their queues
// without the driver: one that could load a list of pages (qpc.fre), or set the PD, would reach all
// memory. Only the kernel's queues may.
var malformed = []refusal{
	{"the QP is of UD", func(u *keyUpdate) bool { return u.datagram }},
	{"unknown flags", func(u *keyUpdate) bool { return u.flags&^umrFlags != 0 }},
	{"the key is to be free, and not to be", func(u *keyUpdate) bool { return u.flags&umrChecks == umrChecks }},
	{"reserved bits", func(u *keyUpdate) bool {
		return u.ctrl[1]|u.ctrl[2]|u.ctrl[3] != 0 || !ifc.Field(umrReserved*8<<16|(umrCtrlSize-umrReserved)*8).Zero(u.ctrl)
	}},
	{"an offset without its flag", func(u *keyUpdate) bool { return u.offset != 0 && u.flags&umrOffsetValid == 0 }},
	{"unknown fields", func(u *keyUpdate) bool {
		known := uint64(0)
		for bit := range umrFields {
			known |= bit
		}
		return u.mask&^known != 0
	}},
	{"entries are not in units of 64 bytes", func(u *keyUpdate) bool { return u.size%64 != 0 }},
	{"only the QP for such requests may set the PD", func(u *keyUpdate) bool { return u.mask&ifc.MkeyMaskPd != 0 && !u.kernel }},
	{"the QP may not set the size of pages", func(u *keyUpdate) bool { return u.mask&ifc.MkeyMaskPageSize != 0 && !u.fastReg }},
	{"entries are behind the request's end", func(u *keyUpdate) bool {
		return u.size > 0 && u.flags&umrInline != 0 && len(u.wqe)-umrLeast < u.size
	}},
	{"no segment for the entries", func(u *keyUpdate) bool {
		return u.size > 0 && u.flags&umrInline == 0 && (len(u.wqe) != umrLeast+segment || int64(be.Uint32(u.wqe[umrLeast:])) < int64(u.size))
	}},
}

// conflicts are the reasons to refuse a request because of its key: it fails with
// IBV_WC_MW_BIND_ERR.
var conflicts = []refusal{
	{"the key has been destroyed", func(u *keyUpdate) bool { return u.k.gone }},
	{"the key is not for such requests", func(u *keyUpdate) bool { return !ifc.MkcUmrEn.Is(u.old) }},
	{"the key is of another PD", func(u *keyUpdate) bool { return !u.kernel && ifc.MkcPd.U32(u.old) != u.pdn }},
	{"the key is not free", func(u *keyUpdate) bool { return u.flags&umrCheckNotFree != 0 && !u.free }},
	{"the key is free", func(u *keyUpdate) bool { return u.flags&umrCheckFree != 0 && u.free }},
	{"the key is not bound to the QP", func(u *keyUpdate) bool { return u.flags&umrCheckQPN != 0 && u.only != u.qpn }},
	{"the key is bound to another QP", func(u *keyUpdate) bool { return u.only != anyQP && u.only != u.qpn && !u.free }},
	{"the key is to be another QP's", func(u *keyUpdate) bool {
		to := ifc.MkcQpn.U32(u.next)
		return u.mask&ifc.MkeyMaskQpn != 0 && to != anyQP && to != u.qpn
	}},
	{"the key is of another variant", func(u *keyUpdate) bool { // a request that sets the variant may name either
		return (u.mask&ifc.MkeyMaskKey == 0 || ifc.MkcFree.Is(u.next)) && ifc.MkcMkey70.U32(u.old) != u.key&0xff
	}},
	{"the QP may not load a list of pages", func(u *keyUpdate) bool {
		mode := mkeyMode(u.old)
		return u.size > 0 && mode != ifc.MkcModeKlms && !(u.fastReg && (mode == ifc.MkcModeMtt || mode == ifc.MkcModeKsm))
	}},
	{"the key has no room for the entries", func(u *keyUpdate) bool { // which is in units of 64 bytes, as updates are
		return u.size > 0 && u.offset+u.size > (int(ifc.MkcTranslationsOctwordSize.U32(u.old))+3)&^3*octoword
	}},
}

// refused reports whether one of the reasons applies, and records the first that does.
func (u *keyUpdate) refused(reasons []refusal) bool {
	for _, r := range reasons {
		if r.refuses(u) {
			u.record(u.wqe, r.name)
			return true
		}
	}
	return false
}

func (q *updater) record(wqe []byte, reason string) {
	q.env.record(Event{Kind: RecordRefusal, Number: q.qpn, Offset: int(be.Uint16(wqe[ctrlIndex:])), Reason: reason})
}

// parse returns the request in wqe, which has at least umrLeast bytes.
func (q *updater) parse(wqe []byte) *keyUpdate {
	c := wqe[segment:][:umrCtrlSize]
	return &keyUpdate{
		updater: q, wqe: wqe, ctrl: c, mkc: wqe[segment+umrCtrlSize:][:ifc.MkcSize],
		key: be.Uint32(wqe[ctrlImm:]), flags: c[0], mask: be.Uint64(c[umrMask:]),
		offset: (int(be.Uint32(c[umrOffsetTop:]))<<16 | int(be.Uint16(c[umrOffset:]))) * octoword,
		size:   int(be.Uint16(c[umrOctowords:])) * octoword,
	}
}

// wellFormed reports whether the QP may post a request.
func (q *updater) wellFormed(wqe []byte) bool {
	if len(wqe) < umrLeast {
		q.record(wqe, "the request is too short")
		return false
	}
	return !q.parse(wqe).refused(malformed)
}

// entries returns the translation entries of a request: from the request itself, or from memory, which
// its data segment names by one of the kernel's physical keys.
func (u *keyUpdate) entries() (list []byte, ok bool) {
	if u.size == 0 || u.flags&umrInline != 0 {
		return u.wqe[umrLeast:][:u.size], true
	}
	at, key, pd := u.wqe[umrLeast:], be.Uint32(u.wqe[umrLeast+4:]), u.pdn
	if u.kernel {
		pd = anyPD
	}
	list = make([]byte, u.size)
	return list, u.keys.physical(key, pd, false) && u.env.mem.ReadAt(list, be.Uint64(at[8:])) == nil
}

// execute executes a well-formed request. The engine's QP is locked.
func (q *updater) execute(wqe []byte) verbs.WCStatus {
	u := q.parse(wqe)
	list, ok := u.entries()
	if !ok {
		q.record(wqe, "the entries cannot be read")
		return verbs.WCLocProtErr
	}
	k, ok := u.keys.Get(u.key >> 8)
	if !ok {
		q.record(wqe, "there is no such key")
		return verbs.WCMWBindErr
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	u.k, u.old, u.next = k, k.context, bytes.Clone(k.context)
	u.free, u.only = ifc.MkcFree.Is(u.old), ifc.MkcQpn.U32(u.old)
	for bit, fields := range umrFields {
		for _, f := range fields {
			if u.mask&bit != 0 {
				f.Copy(u.next, u.mkc)
			}
		}
	}
	if u.refused(conflicts) {
		return verbs.WCMWBindErr
	}
	if len(list) > 0 {
		if !k.grow(u.offset + len(list)) {
			q.record(wqe, "there is no memory for the entries")
			return verbs.WCMWBindErr
		}
		k.flagged = true
		if u.mask == 0 && k.mr != nil {
			if done, ok := k.change(u.offset, list); !ok {
				q.record(wqe, "the entries name no memory")
				return verbs.WCMWBindErr
			} else if done {
				return verbs.WCSuccess
			}
		}
		copy(k.xlt[u.offset:], list)
	}
	k.disable()
	k.context = u.next
	if !ifc.MkcFree.Is(k.context) && k.enable() != ifc.StatusOk {
		q.record(wqe, "the key cannot be enabled")
		ifc.MkcFree.Set(k.context, 1)
		return verbs.WCMWBindErr
	}
	return verbs.WCSuccess
}

// invalidate frees the key that a peer's SEND with Invalidate names. It reports false if the peer may
// not: en_rinval, the QP and the PD decide. The engine's QP is locked.
func (q *updater) invalidate(key uint32) bool {
	k, ok := q.keys.Get(key >> 8)
	if !ok {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	c := k.context
	if only := ifc.MkcQpn.U32(c); k.gone || ifc.MkcFree.Is(c) || !ifc.MkcEnRinval.Is(c) || ifc.MkcMkey70.U32(c) != key&0xff || ifc.MkcPd.U32(c) != q.pdn || only != anyQP && only != q.qpn {
		return false
	}
	k.disable()
	ifc.MkcFree.Set(c, 1)
	return true
}
