package mlx5

import (
	"errors"
	"fmt"
	"syscall"
	"unsafe"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/provider"
)

// A UMR request changes a key: it binds a memory window, or invalidates it. Its control segment,
// whose last word names the key, is followed by struct mlx5_wqe_umr_ctrl_seg, with the fields to
// change and the state that the key must have, and in the next block by struct mlx5_mkey_seg with
// the new values. A third block is the list of the memory: one struct mlx5_klm, then nothing
// (qp.h).
const (
	unbindSize = 2 * block
	bindSize   = 3 * block

	umrOctowords = ctrlSize + 4 // klm_octowords, in units of 16 bytes
	umrMask      = ctrlSize + 8 // mkey_mask

	keyFree   = block      // status
	keyAccess = block + 2  // flags
	keyQPN    = block + 4  // qpn_mkey7_0
	keyStart  = block + 16 // start_addr
	keyLength = block + 24 // len
	keyIsFree = 1 << 6     // MLX5_MKEY_STATUS_FREE
	anyQP     = 0xffffff
)

// Flags of struct mlx5_wqe_umr_ctrl_seg (MLX5_UMR_*).
const (
	umrCheckQP   = 1 << 3 // the key must be bound to this QP
	umrOffset    = 1 << 4 // MLX5_UMR_TRANSLATION_OFFSET_EN
	umrCheckFree = 1 << 5 // the key must be free
	umrInline    = 1 << 7 // the list is in the request
)

// Fields of a key that a request changes (MLX5_MKEY_MASK_*).
const (
	changeKey   = 1<<13 | 1<<29                               // its last byte, and whether it is free
	changeQP    = 1 << 14                                     // who may use it
	changeRange = 1<<0 | 1<<6 | 1<<18 | 1<<19 | 1<<20 | 1<<21 // length, start, and access
)

// rights has the bit of each right in keyAccess.
var rights = [...]struct {
	access verbs.Access
	bit    uint8
}{{verbs.AccessLocalWrite, 1 << 3}, {verbs.AccessRemoteRead, 1 << 4}, {verbs.AccessRemoteWrite, 1 << 5}, {verbs.AccessRemoteAtomic, 1 << 6}}

const maxWindow uint64 = 1 << 31 // bytes of a memory window: struct mlx5_klm has 32 bits for them

// errRare is encode's error for requests that postRare posts.
var errRare = errors.New("rare request")

// postRare is the rest of Post from the first request on that is UMR, or that follows one. Other
// requests are never checked for either.
func (q *sendQueue) postRare(wrs []verbs.SendWR, n int, put, first uint32) (_ int, err error) {
	copied := false
	defer func() {
		if !copied { // the inline data may be unmapped; the last request posted may be UMR
			q.accepts = 0
			q.Unlock()
		}
	}()
	q.known = q.tail.Load()
	head := q.head.Load()
	for ; n < len(wrs); n++ {
		wr, number := &wrs[n], head+uint32(n)
		if isUMR(wr, q.Type) {
			number += min((umrBlocks(wr)+q.size-1)/q.size, q.most) - 1 // alone, it fits in any queue, see planQP
		}
		if number-q.known >= q.most {
			break
		}
		var blocks uint32
		if blocks, err = q.encodeRare(put, wr, number); err != nil {
			break
		}
		head = number - uint32(n)
		first = put
		put += blocks
	}
	copied = true
	mmap.StoreRelease(&q.head, head) // finish adds n
	return q.finish(wrs, n, put, first, err)
}

// isUMR reports whether a request is UMR.
func isUMR(wr *verbs.SendWR, t verbs.QPType) bool {
	return (wr.Opcode == verbs.OpBindMW || wr.Opcode == verbs.OpLocalInv) && t != verbs.UD
}

// umrBlocks returns how many blocks a UMR request takes.
func umrBlocks(wr *verbs.SendWR) uint32 {
	if b := provider.Args(wr).Bind; b != nil && b.Length > 0 && wr.Opcode == verbs.OpBindMW {
		return bindSize / block
	}
	return unbindSize / block
}

// encodeRare encodes a request of any kind, and records its number in sent.
func (q *sendQueue) encodeRare(put uint32, wr *verbs.SendWR, number uint32) (blocks uint32, err error) {
	behind, umr := q.accepts == 0, isUMR(wr, q.Type)
	q.accepts = typeBit(q.Type)
	if umr {
		if number += bindMark; wr.Opcode == verbs.OpLocalInv {
			number += invalidateMark - bindMark
		}
		blocks, err = q.encodeUMR(put, wr)
	} else if blocks, err = q.encode(put, wr); err == errRare {
		err = provider.RefuseOpcode(wr.Opcode)
	}
	if umr && err == nil || behind && err != nil {
		q.accepts = 0
	}
	if err != nil {
		return 0, err
	}
	if flags := (*uint8)(unsafe.Add(q.base, uintptr(put&q.mask)*block+ctrlFlags)); behind && *flags&flagsFence == 0 {
		*flags |= flagAfterUMR
	}
	q.sent[put&q.mask] = sent{wr.ID, number}
	return blocks, nil
}

// encodeUMR writes a UMR request at block put, as mlx5_bind_mw and set_bind_wr of libmlx5 do.
func (q *sendQueue) encodeUMR(put uint32, wr *verbs.SendWR) (blocks uint32, err error) {
	b := &verbs.MWBind{RKey: wr.RKey}
	if wr.Opcode == verbs.OpBindMW {
		b = provider.Args(wr).Bind
	}
	switch {
	case len(wr.SGL) > 0:
		return 0, verbs.ErrTooManySGEs
	case provider.HasInline(wr):
		return 0, verbs.ErrInlineOp
	case b == nil:
		return 0, verbs.ErrBind
	case b.Length > maxWindow:
		return 0, fmt.Errorf("memory window of %d bytes: mlx5 binds at most %d: %w", b.Length, maxWindow, errors.ErrUnsupported)
	case b.Access&verbs.AccessZeroBased != 0 && b.Type == verbs.MWType1:
		return 0, fmt.Errorf("a type 1 window cannot begin at address 0: use type 2: %w", syscall.EINVAL)
	case b.Length == 0 && b.Type != verbs.MWType1 && wr.Opcode == verbs.OpBindMW:
		return 0, fmt.Errorf("a type 2 window cannot be bound to 0 bytes: invalidate it with OpLocalInv: %w", syscall.EINVAL)
	}
	var wqe [bindSize]byte
	p := unsafe.Pointer(&wqe)
	umr, mask, qpn, size := uint8(umrInline|umrOffset), uint64(changeKey), uint32(anyQP), umrBlocks(wr)
	if b.Type != verbs.MWType1 {
		mask |= changeQP
		umr |= umrCheckQP
	}
	if b.Length == 0 {
		wqe[keyFree] = keyIsFree
	} else {
		if b.Type != verbs.MWType1 {
			umr, qpn = umr&^umrCheckQP|umrCheckFree, q.Num
		}
		mask |= changeRange
		wqe[umrOctowords+1] = block / unit
		for _, r := range rights {
			if b.Access&r.access != 0 {
				wqe[keyAccess] |= r.bit
			}
		}
		if b.Access&verbs.AccessZeroBased == 0 {
			put64(unsafe.Add(p, keyStart), b.Addr)
		}
		put64(unsafe.Add(p, keyLength), b.Length)
		put64(unsafe.Add(p, unbindSize), b.Length<<32|uint64(b.LKey))
		put64(unsafe.Add(p, unbindSize+8), b.Addr)
	}
	wqe[ctrlSize] = umr
	put64(unsafe.Add(p, umrMask), mask)
	put32(unsafe.Add(p, keyQPN), qpn<<8|b.NewRKey&0xff)
	putControl(p, opUMR, uint16(put), q.Num, int(size*block/unit), q.flags(wr.Flags), b.RKey)
	for i := range size {
		*(*[block]byte)(unsafe.Add(q.base, uintptr((put+i)&q.mask)*block)) = [block]byte(wqe[i*block:])
	}
	return size, nil
}

// Numbers of UMR requests in sent have one of these added. It tells what they are, and hides them
// from complete, which need not check for them.
const (
	bindMark       = 1 << 30
	invalidateMark = 1 << 31
)

// inFlight reports whether the request is between tail and head, and returns its number and, of a
// UMR request, its operation.
func (s *sent) inFlight(head, tail uint32) (number uint32, op verbs.WCOpcode, ok bool) {
	switch n := head - tail; {
	case s.number-tail < n:
		return s.number, 0, true
	case s.number-bindMark-tail < n:
		return s.number - bindMark, verbs.WCBindMW, true
	case s.number-invalidateMark-tail < n:
		return s.number - invalidateMark, verbs.WCLocalInv, true
	}
	return 0, 0, false
}

// completeUMR is complete for UMR requests: it sets ID and Opcode of wc.
func (q *sendQueue) completeUMR(counter uint16, wc *verbs.WC) (ok bool) {
	i := int(uint32(counter) & q.mask)
	if i >= len(q.sent) {
		return false
	}
	number, op, ok := q.sent[i].inFlight(q.head.Load(), q.tail.Load())
	if ok {
		wc.ID, wc.Opcode = q.sent[i].id, op
		mmap.StoreRelease(&q.tail, number+1)
	}
	return ok
}
