package uverbs

import (
	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/sys"
)

// RegisterDMABuf registers a part of a DMA-BUF file, a device's memory, which SGEs and peers name
// by iova (ibv_reg_dmabuf_mr(3)). [MR.Bytes] returns nil.
func (p *PD) RegisterDMABuf(fd int, offset, size int, iova uint64, access verbs.Access) (*MR, error) {
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
	m.initObject(handle, nil, func() error { return nil })
	return m, nil
}
