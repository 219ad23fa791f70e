//go:build linux

package connectx

import (
	"bytes"

	"github.com/goverbs/verbs"
)

// A UMR request configures an mkey: it registers memory, binds a memory window or invalidates either.
// Behind the control segment, whose last word names the key, it has
//
//	struct mlx5_wqe_umr_ctrl_seg   what to change, and in which state the key must be
//	struct mkc                     new values of the fields that the mask selects
//	translation entries, or a data segment that says where they are
//
// as mlx5_ib's umr.c and wr.c and libmlx5's set_bind_wr post them.
const (
	umrCtrlSize = 48
	umrLeast    = segment + umrCtrlSize + mkcSize

	umrOctowords = 4  // of entries
	umrOffset    = 6  // of the first one, in octowords: the lower 16 bits
	umrMask      = 8  // mkeyMask*
	umrOffsetTop = 16 // the upper 32 bits
	umrReserved  = 20
)

// Flags of the first byte.
const (
	umrCheckQPN     = 1 << 3 // the key must be bound to this QP
	umrOffsetValid  = 1 << 4
	umrCheckNotFree = 1 << 5 // fails if the key is not free
	umrCheckFree    = 2 << 5 // fails if it is
	umrInline       = 1 << 7 // the entries are in the request
)

// umrFields are the fields that a bit of the mask selects.
var umrFields = map[uint64][]field{
	mkeyMaskLen: {mkcLen, mkcLength64}, mkeyMaskPageSize: {mkcLogPageSize}, mkeyMaskStartAddr: {mkcStartAddr}, mkeyMaskPd: {mkcPd},
	mkeyMaskEnRinval: {mkcEnRinval}, mkeyMaskKey: {mkcMkey70}, mkeyMaskQpn: {mkcQpn}, mkeyMaskLr: {mkcLr}, mkeyMaskLw: {mkcLw},
	mkeyMaskRr: {mkcRr}, mkeyMaskRw: {mkcRw}, mkeyMaskA: {mkcA}, mkeyMaskSmallFence: {mkcSmallFenceOnRdmaReadResponse},
	mkeyMaskFree: {mkcFree},
}

// umrKnown are all bits of the mask.
var umrKnown = func() (all uint64) {
	for bit := range umrFields {
		all |= bit
	}
	return all
}()

// updater executes the UMR requests of a QP.
type updater struct {
	env      *env
	keys     *keyTable
	qpn, pdn uint32
	kernel   bool // the kernel's own QP of such requests, which has no PD
	datagram bool // of UD, which has none
	fastReg  bool // may load lists of pages, qpc.fre
}

// wellFormed reports whether a request is one that the QP may make. Page lists are for the
// kernel's queues (qpc.fre), and so is another PD for its own QP of such requests: with these a
// program would reach all memory.
func (q *updater) wellFormed(wqe []byte) bool {
	if len(wqe) < umrLeast || q.datagram {
		return false
	}
	c := wqe[segment:][:umrCtrlSize]
	mask, octwords := be.Uint64(c[umrMask:]), int(be.Uint16(c[umrOctowords:]))
	offset := c[umrOffset] | c[umrOffset+1] | c[umrOffsetTop] | c[umrOffsetTop+1] | c[umrOffsetTop+2] | c[umrOffsetTop+3]
	switch {
	case c[0]&^(umrCheckQPN|umrOffsetValid|umrCheckNotFree|umrCheckFree|umrInline) != 0, c[0]&(umrCheckFree|umrCheckNotFree) == umrCheckFree|umrCheckNotFree,
		c[1]|c[2]|c[3] != 0, !field(umrReserved*8<<16 | (umrCtrlSize-umrReserved)*8).zero(c), offset != 0 && c[0]&umrOffsetValid == 0,
		mask&^umrKnown != 0, octwords%4 != 0,
		mask&mkeyMaskPd != 0 && !q.kernel, mask&mkeyMaskPageSize != 0 && !q.fastReg:
		return false
	case octwords == 0:
		return true
	case c[0]&umrInline != 0:
		return len(wqe)-umrLeast >= octwords*octoword
	}
	return len(wqe) == umrLeast+segment && int64(be.Uint32(wqe[umrLeast:])) >= int64(octwords*octoword)
}

// entries returns the translation entries of a request.
func (q *updater) entries(wqe []byte) (list []byte, ok bool) {
	size := int(be.Uint16(wqe[segment+umrOctowords:])) * octoword
	if size == 0 || wqe[segment]&umrInline != 0 {
		return wqe[umrLeast:][:size], true
	}
	at, key, pd := wqe[umrLeast:], be.Uint32(wqe[umrLeast+4:]), q.pdn
	if q.kernel { // it has none
		pd = anyPD
	}
	list = make([]byte, size)
	return list, q.keys.physical(key, pd, false) && q.env.mem.ReadAt(list, be.Uint64(at[8:])) == nil
}

// execute executes a request that is well-formed. The engine's QP is locked.
func (q *updater) execute(wqe []byte) verbs.WCStatus {
	c, in, key := wqe[segment:][:umrCtrlSize], wqe[segment+umrCtrlSize:][:mkcSize], be.Uint32(wqe[ctrlImm:])
	list, ok := q.entries(wqe)
	if !ok {
		return verbs.WCLocProtErr
	}
	k, ok := q.keys.get(key >> 8)
	if !ok {
		return verbs.WCMWBindErr
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	mask, flags, old := be.Uint64(c[umrMask:]), c[0], k.context
	next := bytes.Clone(old)
	for bit, fields := range umrFields {
		for _, f := range fields {
			if mask&bit != 0 {
				f.set(next, f.get(in))
			}
		}
	}
	free, only := mkcFree.is(old), mkcQpn.u32(old)
	offset := (int(be.Uint32(c[umrOffsetTop:]))<<16 | int(be.Uint16(c[umrOffset:]))) * octoword
	mode := mkeyMode(old)
	switch {
	case k.gone, !mkcUmrEn.is(old), !q.kernel && mkcPd.u32(old) != q.pdn,
		flags&umrCheckNotFree != 0 && !free, flags&umrCheckFree != 0 && free, flags&umrCheckQPN != 0 && only != q.qpn,
		only != anyQP && only != q.qpn && !free, mask&mkeyMaskQpn != 0 && mkcQpn.u32(next) != anyQP && mkcQpn.u32(next) != q.qpn,
		// A key that gets a new variant is named by either.
		(mask&mkeyMaskKey == 0 || mkcFree.is(next)) && mkcMkey70.u32(old) != key&0xff,
		len(list) > 0 && mode != mkcModeKlms && (mode != mkcModeMtt || !q.fastReg),
		len(list) > 0 && offset+len(list) > (int(mkcTranslationsOctwordSize.u32(old))+3)&^3*octoword: // updates have units of 64 bytes
		return verbs.WCMWBindErr
	}
	if len(list) > 0 {
		if !k.grow(offset + len(list)) {
			return verbs.WCMWBindErr
		}
		copy(k.xlt[offset:], list)
	}
	k.disable()
	k.context = next
	if !mkcFree.is(next) && k.enable() != statusOk {
		mkcFree.set(next, 1)
		return verbs.WCMWBindErr
	}
	return verbs.WCSuccess
}

// invalidate makes a key free, which a peer's SEND names. The engine's QP is locked.
func (q *updater) invalidate(key uint32) bool {
	k, ok := q.keys.get(key >> 8)
	if !ok {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	c := k.context
	if only := mkcQpn.u32(c); k.gone || mkcFree.is(c) || !mkcEnRinval.is(c) || mkcMkey70.u32(c) != key&0xff || mkcPd.u32(c) != q.pdn || only != anyQP && only != q.qpn {
		return false
	}
	k.disable()
	mkcFree.set(c, 1)
	return true
}
