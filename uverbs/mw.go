package uverbs

import (
	"fmt"
	"sync"
	"syscall"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
)

// MW is a memory window: a key to part of a region that work requests grant and revoke. It belongs
// to a [PD] and lives as a region does, see [MR]. The kernel's rxe (6.1 to 7.2) checks its access
// and key, but not its bounds: peers can access the whole region.
type MW struct {
	pd  *PD
	obj *object
	typ verbs.MWType

	mu   sync.Mutex
	rkey uint32
}

// AllocMW makes a memory window that is not bound (ibv_alloc_mw(3)).
func (p *PD) AllocMW(typ verbs.MWType) (*MW, error) {
	const op = "allocate MW in"
	if err := p.obj.enter(op); err != nil {
		return nil, err
	}
	defer p.obj.exit()
	core := p.ctx.contextCore
	req := abi.IbUverbsAllocMw{PdHandle: p.handle, MwType: uint8(typ)}
	var resp abi.IbUverbsAllocMwResp
	if err := core.file.Invoke(abi.IB_USER_VERBS_CMD_ALLOC_MW, mmap.Bytes(&req), mmap.Bytes(&resp), nil, nil); err != nil {
		return nil, p.obj.failSize(op, err, "MaxMW", core.dev.Attr.MaxMW)
	}
	m := &MW{pd: p, typ: typ, rkey: resp.Rkey}
	m.obj = newObject(p.obj.device, objectName{"MW %#x", resp.Rkey}, func() error {
		return core.destroy(kindMW, resp.MwHandle)
	}, p.obj)
	m.obj.pinned = true // as a region: a peer may have its key
	return m, nil
}

// RKey returns the window's key for peers, which each binding changes.
func (m *MW) RKey() uint32 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.rkey
}

// Close frees the window. Its key becomes invalid.
func (m *MW) Close() error {
	if m == nil {
		return verbs.ErrClosed
	}
	return m.obj.close()
}

// BindOptions contains options for [QP.BindMW].
type BindOptions struct {
	ID     uint64 // of the work request
	Flags  verbs.SendFlags
	MR     *MR // with AccessMWBind; nil unbinds a type 1 window
	Offset int // into MR
	Length int
	Access verbs.Access
}

// BindMW posts the request that binds a window to part of a region with a new key, and returns it.
// It is valid on completion (ibv_bind_mw(3)). If the request completes with an error, as when it is
// flushed, the window keeps its former key and no longer takes the keys of later calls: close it, and
// allocate another.
func (q *QP) BindMW(mw *MW, opt BindOptions) (rkey uint32, err error) {
	const op = "bind MW on"
	bind := verbs.MWBind{Type: mw.typ, Access: opt.Access}
	if opt.MR != nil {
		if opt.Offset < 0 || opt.Length < 0 || opt.Offset > opt.MR.Len()-opt.Length {
			return 0, q.obj.fail(op, fmt.Errorf("[%d:%d+%d] of %d bytes: %w", opt.Offset, opt.Offset, opt.Length, opt.MR.Len(), verbs.ErrRange))
		}
		bind.LKey, bind.Addr, bind.Length = opt.MR.LKey(), opt.MR.Addr()+uint64(opt.Offset), uint64(opt.Length)
	} else if mw.typ == verbs.MWType2 {
		return 0, q.obj.fail(op, fmt.Errorf("a type 2 window needs an MR: invalidate it with OpLocalInv: %w", syscall.EINVAL))
	}
	objects := []*object{mw.obj} // a request with the key of one that is closed would move the QP to the error state
	if opt.MR != nil {
		objects = append(objects, opt.MR.obj)
	}
	if err := enterAll("bind", objects); err != nil {
		return 0, err
	}
	defer exitAll(objects)
	mw.mu.Lock()
	defer mw.mu.Unlock()
	bind.RKey, bind.NewRKey = mw.rkey, verbs.NextRKey(mw.rkey)
	if _, err := q.PostSend(verbs.SendWR{ID: opt.ID, Opcode: verbs.OpBindMW, Flags: opt.Flags, Args: &verbs.SendArgs{Bind: &bind}}); err != nil {
		return 0, err
	}
	mw.rkey = bind.NewRKey
	return mw.rkey, nil
}
