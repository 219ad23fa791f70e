package uverbs

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/sys"
	"github.com/goverbs/verbs/mmap"
)

// ReregOptions say what [MR.Rereg] changes. What is not set stays.
type ReregOptions struct {
	PD     *PD
	Access *Access
	// Memory is other memory of the caller's, as [PD.RegisterMR] takes it.
	Memory []byte
}

// Rereg changes a region without destroying it (ibv_rereg_mr(3)). Its keys may
// be others afterwards. Nobody may be using the region, nor calling its
// methods, meanwhile.
func (m *MR) Rereg(opt ReregOptions) error {
	const op = "reregister"
	const trans, pd, access = 1, 2, 4 // enum ib_mr_rereg_flags
	if opt.PD != nil && opt.PD.ctx != m.pd.ctx {
		return m.obj.fail(op, fmt.Errorf("PD of another context: %w", unix.EINVAL))
	}
	objects := []*object{m.obj}
	req := abi.IbUverbsReregMr{MrHandle: m.life.handle}
	if opt.PD != nil {
		req.Flags |= pd
		req.PdHandle = opt.PD.handle
		objects = append(objects, opt.PD.obj)
	}
	if opt.Access != nil {
		req.Flags |= access
		req.AccessFlags = uint32(*opt.Access)
	}
	exit, err := enterAll(op, objects...)
	if err != nil {
		return err
	}
	defer exit()
	unpin := func() error { return nil }
	if opt.Memory != nil {
		req.Flags |= trans
		var addr uint64
		addr, unpin = pin(opt.Memory)
		req.Start, req.HcaVa, req.Length = addr, addr, uint64(len(opt.Memory))
	}
	var resp abi.IbUverbsReregMrResp
	err = m.pd.ctx.file.Invoke(abi.IB_USER_VERBS_CMD_REREG_MR, mmap.Bytes(&req), mmap.Bytes(&resp)[:8], nil, nil)
	if err != nil {
		unpin()
		return m.obj.fail(op, err)
	}
	m.lkey, m.rkey = resp.Lkey, resp.Rkey
	if opt.PD != nil {
		m.obj.move(m.pd.obj, opt.PD.obj)
		m.pd = opt.PD
	}
	if opt.Memory != nil {
		err = m.life.free()
		m.mem, m.size, m.addr, m.life.free = opt.Memory, len(opt.Memory), req.Start, unpin
	}
	return err
}

// RegisterDMABuf makes a region of size bytes, from offset, of the memory
// behind a DMA-BUF file, named by iova (ibv_reg_dmabuf_mr(3)). The memory is
// that of some device; [MR.Bytes] is nil.
func (p *PD) RegisterDMABuf(fd int, offset, size int, iova uint64, access Access) (*MR, error) {
	const op = "register DMA-BUF in"
	if err := p.obj.enter(op); err != nil {
		return nil, err
	}
	defer p.obj.exit()
	off, length, file := uint64(offset), uint64(size), uint32(fd)
	m := &MR{pd: p, size: size, addr: iova}
	var handle uint32
	err := p.ctx.file.Ioctl(sys.Call{Object: abi.UVERBS_OBJECT_MR, Method: abi.UVERBS_METHOD_REG_DMABUF_MR, Attrs: []sys.Attr{
		sys.New(abi.UVERBS_ATTR_REG_DMABUF_MR_HANDLE, &handle),
		sys.Handle(abi.UVERBS_ATTR_REG_DMABUF_MR_PD_HANDLE, p.handle),
		sys.In(abi.UVERBS_ATTR_REG_DMABUF_MR_OFFSET, &off),
		sys.In(abi.UVERBS_ATTR_REG_DMABUF_MR_LENGTH, &length),
		sys.In(abi.UVERBS_ATTR_REG_DMABUF_MR_IOVA, &iova),
		sys.In(abi.UVERBS_ATTR_REG_DMABUF_MR_FD, &file),
		sys.Const(abi.UVERBS_ATTR_REG_DMABUF_MR_ACCESS_FLAGS, uint64(access)),
		sys.Out(abi.UVERBS_ATTR_REG_DMABUF_MR_RESP_LKEY, &m.lkey),
		sys.Out(abi.UVERBS_ATTR_REG_DMABUF_MR_RESP_RKEY, &m.rkey),
	}})
	if err != nil {
		return nil, p.obj.fail(op, err)
	}
	m.own(handle, func() error { return nil })
	return m, nil
}

// Advice is what a program is about to do with memory. Values are the kernel's
// (enum ib_uverbs_advise_mr_advice).
type Advice uint32

const (
	AdvisePrefetch        Advice = abi.IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH
	AdvisePrefetchWrite   Advice = abi.IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE
	AdvisePrefetchNoFault Advice = abi.IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT
)

// Advise tells the kernel about parts of regions registered with
// AccessOnDemand (ibv_advise_mr(3)); with wait it returns when that is done.
func (p *PD) Advise(advice Advice, wait bool, sgl ...SGE) error {
	const op = "advise MRs of"
	if err := p.obj.enter(op); err != nil {
		return err
	}
	defer p.obj.exit()
	var flags uint64
	if wait {
		flags = abi.IB_UVERBS_ADVISE_MR_FLAG_FLUSH
	}
	if len(sgl) == 0 {
		return p.obj.fail(op, fmt.Errorf("no SGEs: %w", unix.EINVAL))
	}
	list := make([]byte, 0, len(sgl)*len(mmap.Bytes(&sgl[0])))
	for i := range sgl {
		list = append(list, mmap.Bytes(&sgl[i])...)
	}
	err := p.ctx.file.Ioctl(sys.Call{Object: abi.UVERBS_OBJECT_MR, Method: abi.UVERBS_METHOD_ADVISE_MR, Attrs: []sys.Attr{
		sys.Handle(abi.UVERBS_ATTR_ADVISE_MR_PD_HANDLE, p.handle),
		sys.Const(abi.UVERBS_ATTR_ADVISE_MR_ADVICE, uint64(advice)),
		sys.Const(abi.UVERBS_ATTR_ADVISE_MR_FLAGS, flags),
		sys.InBytes(abi.UVERBS_ATTR_ADVISE_MR_SGE_LIST, list),
	}})
	if err != nil {
		return p.obj.fail(op, err)
	}
	return nil
}
