package uverbs

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
)

// ReregOptions contains the changes of [MR.Rereg]. Nil fields change nothing.
type ReregOptions struct {
	PD     *PD
	Access *verbs.Access
	Memory []byte // as for [PD.RegisterMR]
}

// Rereg changes a region that is not in use (ibv_rereg_mr(3)). Its keys may change. No other method
// may be called meanwhile.
func (m *MR) Rereg(opt ReregOptions) error {
	const op = "reregister"
	const trans, pd, access = 1, 2, 4 // enum ib_mr_rereg_flags
	if opt.PD != nil && opt.PD.ctx != m.pd.ctx {
		return m.obj.fail(op, fmt.Errorf("PD of another context: %w", syscall.EINVAL))
	}
	if opt.Memory != nil && m.imported { // its creator has pinned, and unpins, what the region has
		return m.obj.fail(op, fmt.Errorf("memory of an imported region: %w: let its creator reregister it", errors.ErrUnsupported))
	}
	objects := []*object{m.obj}
	req := abi.IbUverbsReregMr{MrHandle: m.state.handle}
	if opt.PD != nil {
		req.Flags |= pd
		req.PdHandle = opt.PD.handle
		objects = append(objects, opt.PD.obj)
	}
	if opt.Access != nil {
		req.Flags |= access
		req.AccessFlags = uint32(*opt.Access)
	}
	if err := enterAll(op, objects); err != nil {
		return err
	}
	defer exitAll(objects)
	if m.state.gone.Load() {
		return m.obj.fail(op, verbs.ErrClosed)
	}
	unpin := func() error { return nil }
	if opt.Memory != nil {
		req.Flags |= trans
		var addr uint64
		addr, unpin = pin(opt.Memory)
		req.Start, req.HcaVa, req.Length = addr, addr, uint64(len(opt.Memory))
	}
	var resp abi.IbUverbsReregMrResp
	err := m.pd.ctx.file.Invoke(abi.IB_USER_VERBS_CMD_REREG_MR, mmap.Bytes(&req), mmap.Bytes(&resp)[:8], nil, nil)
	if err != nil {
		unpin()
		access := verbs.AccessLocalWrite // the kernel checks only what is replaced
		if opt.Access != nil {
			access = *opt.Access
		}
		return m.pd.ctx.failMemory(m.obj, op, err, req.Start, req.Length, access)
	}
	m.lkey, m.rkey = resp.Lkey, resp.Rkey
	m.obj.renumber(m.lkey)
	if opt.PD != nil {
		m.obj.reparent(m.pd.obj, opt.PD.obj)
		m.pd = opt.PD
	}
	if opt.Memory != nil {
		err = m.state.free()
		m.mem, m.size, m.addr, m.state.free = opt.Memory, len(opt.Memory), req.Start, unpin
	}
	return err
}
