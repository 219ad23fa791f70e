package uverbs

import (
	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/provider"
)

// PD is a protection domain: QPs and the memory regions that they may use. Objects made from it are
// closed before it.
type PD struct {
	ctx      *Context
	obj      *object
	handle   uint32
	driverPD provider.Object // the driver's, or nil
}

// AllocPD makes a protection domain (ibv_alloc_pd(3)).
func (c *Context) AllocPD() (*PD, error) {
	const op = "allocate PD"
	if err := c.obj.enter(op); err != nil {
		return nil, err
	}
	defer c.obj.exit()
	var req abi.IbUverbsAllocPd
	var resp abi.IbUverbsAllocPdResp
	core, created := c.contextCore, false
	part, err := core.driverContext.AllocPD(core.invokeFunc(abi.IB_USER_VERBS_CMD_ALLOC_PD, mmap.Bytes(&req), mmap.Bytes(&resp), &created))
	handle := resp.PdHandle
	if err != nil {
		if created {
			core.destroy(kindPD, handle)
		}
		return nil, c.obj.failSize(op, err, "MaxPD", core.dev.Attr.MaxPD)
	}
	p := &PD{ctx: c, handle: handle, driverPD: part}
	p.obj = newObject(c.device.Name, objectName{"PD %d", handle}, withRelease(func() error { return core.destroy(kindPD, handle) }, part), c.obj)
	addCleanup(p, p.obj)
	return p, nil
}

// Context returns the Context that the PD was made from.
func (p *PD) Context() *Context { return p.ctx }

// Close releases the PD. It fails while objects made from it are open.
func (p *PD) Close() error {
	if p == nil {
		return verbs.ErrClosed
	}
	return p.obj.close()
}
