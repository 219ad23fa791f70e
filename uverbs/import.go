package uverbs

import (
	"fmt"
	"path/filepath"
	"slices"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/host"
	"github.com/goverbs/verbs/internal/sys"
)

// ImportContext makes a Context of another Context's descriptor, which it duplicates
// (ibv_import_device(3)). The objects of a device file belong to all processes that have it open,
// and live until the last one closes it.
func ImportContext(fd int) (*Context, error) {
	fail := func(err error) (*Context, error) {
		return nil, &verbs.Error{Op: "import", Object: fmt.Sprintf("file %d", fd), Err: err}
	}
	node, err := host.PathOf(fd)
	if err != nil {
		return fail(err)
	}
	devs, err := Devices()
	if err != nil {
		return fail(err)
	}
	// The node may have been opened by another path.
	i := slices.IndexFunc(devs, func(d Device) bool { return filepath.Base(d.Node) == filepath.Base(node) })
	if i < 0 {
		return fail(fmt.Errorf("%s: %w", node, verbs.ErrNoDevice))
	}
	own, err := host.Dup(fd, 0)
	if err != nil {
		return fail(err)
	}
	c, err := devs[i].open(own, true)
	if err != nil {
		return fail(err)
	}
	return c, nil
}

// FD returns the device's file descriptor for [ImportContext], which another process may call with
// a descriptor received over a socket. It is valid until Close.
func (c *Context) FD() int { return c.file.FD }

// Handle returns the kernel's handle of the PD, for [Context.ImportPD]. Keep the PD until the
// importer has closed its own.
func (p *PD) Handle() uint32 { return p.handle }

// ImportPD makes a PD of a PD that another Context of the same file made (ibv_import_pd(3)). Close
// leaves the kernel's PD to its creator.
func (c *Context) ImportPD(handle uint32) (*PD, error) {
	const op = "import PD to"
	if err := c.obj.enter(op); err != nil {
		return nil, err
	}
	defer c.obj.exit()
	p := &PD{ctx: c, handle: handle}
	p.obj = newObject(c.device.Name, objectName{"imported PD %d", handle}, func() error { return nil }, c.obj)
	addCleanup(p, p.obj)
	return p, nil
}

// Handle returns the kernel's handle of the MR, for [PD.ImportMR].
func (m *MR) Handle() uint32 { return m.state.handle }

// ImportMR makes an MR of a region that another Context of the same file registered in the PD
// (ibv_import_mr(3)). Its memory may be another process's, so [MR.Bytes] returns nil. Close leaves
// the kernel's MR to its creator, and [MR.Rereg] its memory.
func (p *PD) ImportMR(handle uint32) (*MR, error) {
	const op = "import MR to"
	if err := p.obj.enter(op); err != nil {
		return nil, err
	}
	defer p.obj.exit()
	m := &MR{pd: p, imported: true, state: &mrState{handle: handle, free: func() error { return nil }}}
	var length uint64
	err := p.ctx.file.Ioctl(sys.Call{Object: abi.UVERBS_OBJECT_MR, Method: abi.UVERBS_METHOD_QUERY_MR, Attrs: []sys.Attr{
		sys.Handle(abi.UVERBS_ATTR_QUERY_MR_HANDLE, handle),
		sys.Out(abi.UVERBS_ATTR_QUERY_MR_RESP_LKEY, &m.lkey),
		sys.Out(abi.UVERBS_ATTR_QUERY_MR_RESP_RKEY, &m.rkey),
		sys.Out(abi.UVERBS_ATTR_QUERY_MR_RESP_LENGTH, &length),
		sys.Out(abi.UVERBS_ATTR_QUERY_MR_RESP_IOVA, &m.addr),
	}})
	if err != nil {
		return nil, p.obj.fail(op, err)
	}
	m.size = int(length)
	m.obj = newObject(p.obj.device, objectName{"imported MR %#x", m.lkey}, func() error { return nil }, p.obj)
	m.obj.pinned = true
	return m, nil
}
