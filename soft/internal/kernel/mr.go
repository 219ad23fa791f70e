package kernel

import (
	"syscall"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/engine"
	"github.com/goverbs/verbs/mmap"
)

func pdRef(handle uint32) ref { return ref{abi.UVERBS_OBJECT_PD, handle} }

func pdOf(o *object) *engine.PD { return o.value.(*engine.PD) }

func allocPD(c command, _ abi.IbUverbsAllocPd) syscall.Errno {
	return create(c.file, abi.UVERBS_OBJECT_PD, nil, func(*object, []*object) (*engine.PD, error) {
		return c.file.device.engine.AllocPD()
	}, func(_ *object, _ *engine.PD, handle uint32) syscall.Errno {
		return respond(c, &abi.IbUverbsAllocPdResp{PdHandle: handle})
	})
}

func regMR(c command, req abi.IbUverbsRegMr) syscall.Errno {
	if req.Start%pageSize != req.HcaVa%pageSize {
		return syscall.EINVAL
	}
	return create(c.file, abi.UVERBS_OBJECT_MR, []ref{pdRef(req.PdHandle)}, func(_ *object, of []*object) (*engine.MR, error) {
		return pdOf(of[0]).RegisterMR(req.Start, req.Length, req.HcaVa, verbs.Access(req.AccessFlags))
	}, func(_ *object, m *engine.MR, handle uint32) syscall.Errno {
		return respond(c, &abi.IbUverbsRegMrResp{MrHandle: handle, Lkey: m.LKey(), Rkey: m.RKey()})
	})
}

// reregMR is the write command REREG_MR, for another PD or other access.
func reregMR(c command, req abi.IbUverbsReregMr) syscall.Errno {
	const trans, otherPD, access = 1, 2, 4 // enum ib_mr_rereg_flags
	switch {
	case req.Flags == 0:
		return syscall.EINVAL
	case req.Flags&^(trans|otherPD|access) != 0:
		return syscall.EOPNOTSUPP
	case req.Flags&trans != 0 && req.Start%pageSize != req.HcaVa%pageSize:
		return syscall.EINVAL
	}
	m, errno := get[*engine.MR](c.file, abi.UVERBS_OBJECT_MR, req.MrHandle)
	if errno != 0 {
		return errno
	}
	if req.Flags&trans != 0 {
		return syscall.EOPNOTSUPP
	}
	var newAccess *verbs.Access
	if req.Flags&access != 0 {
		a := verbs.Access(req.AccessFlags)
		newAccess = &a
	}
	if req.Flags&otherPD == 0 {
		errno = errnoOf(m.Rereg(nil, newAccess))
	} else {
		errno = c.file.moveMR(m, req.MrHandle, req.PdHandle, newAccess)
	}
	if errno != 0 {
		return errno
	}
	return respond(c, &abi.IbUverbsReregMrResp{Lkey: m.LKey(), Rkey: m.RKey()})
}

func (f *file) moveMR(m *engine.MR, handle, pd uint32, access *verbs.Access) syscall.Errno {
	held, errno := f.hold([]ref{pdRef(pd), {abi.UVERBS_OBJECT_MR, handle}})
	if errno != 0 {
		return errno
	}
	o := held[1]
	errno = errnoOf(m.Rereg(pdOf(held[0]), access))
	f.mu.Lock()
	defer f.mu.Unlock()
	o.users--
	if errno != 0 {
		f.unhold(held[:1])
		return errno
	}
	f.unhold(o.parents)
	o.parents = held[:1]
	return 0
}

func allocMW(c command, req abi.IbUverbsAllocMw) syscall.Errno {
	typ := verbs.MWType(req.MwType)
	return create(c.file, abi.UVERBS_OBJECT_MW, []ref{pdRef(req.PdHandle)}, func(_ *object, of []*object) (*engine.MW, error) {
		if typ != verbs.MWType1 && typ != verbs.MWType2 {
			return nil, syscall.EINVAL
		}
		return pdOf(of[0]).AllocMW(typ)
	}, func(_ *object, m *engine.MW, handle uint32) syscall.Errno {
		return respond(c, &abi.IbUverbsAllocMwResp{MwHandle: handle, Rkey: m.RKey()})
	})
}

var mrMethods = map[methodID]method{
	{abi.UVERBS_OBJECT_MR, abi.UVERBS_METHOD_QUERY_MR}: {run: queryMR, specs: []spec{
		{id: abi.UVERBS_ATTR_QUERY_MR_HANDLE, kind: handleIn},
		{id: abi.UVERBS_ATTR_QUERY_MR_RESP_RKEY, kind: bytesOut, size: 4},
		{id: abi.UVERBS_ATTR_QUERY_MR_RESP_LKEY, kind: bytesOut, size: 4},
		{id: abi.UVERBS_ATTR_QUERY_MR_RESP_LENGTH, kind: bytesOut, size: 8},
		{id: abi.UVERBS_ATTR_QUERY_MR_RESP_IOVA, kind: bytesOut, size: 8, optional: true},
	}},
	{abi.UVERBS_OBJECT_MR, abi.UVERBS_METHOD_ADVISE_MR}: {run: unsupportedOfPD(abi.UVERBS_ATTR_ADVISE_MR_PD_HANDLE), specs: []spec{
		{id: abi.UVERBS_ATTR_ADVISE_MR_PD_HANDLE, kind: handleIn},
		{id: abi.UVERBS_ATTR_ADVISE_MR_ADVICE, kind: constIn},
		{id: abi.UVERBS_ATTR_ADVISE_MR_FLAGS, kind: constIn},
		{id: abi.UVERBS_ATTR_ADVISE_MR_SGE_LIST, kind: bytesIn},
	}},
	{abi.UVERBS_OBJECT_MR, abi.UVERBS_METHOD_REG_DMABUF_MR}: {run: unsupportedOfPD(abi.UVERBS_ATTR_REG_DMABUF_MR_PD_HANDLE), specs: []spec{
		{id: abi.UVERBS_ATTR_REG_DMABUF_MR_HANDLE, kind: handleOut},
		{id: abi.UVERBS_ATTR_REG_DMABUF_MR_PD_HANDLE, kind: handleIn},
		{id: abi.UVERBS_ATTR_REG_DMABUF_MR_OFFSET, kind: bytesIn, size: 8},
		{id: abi.UVERBS_ATTR_REG_DMABUF_MR_LENGTH, kind: bytesIn, size: 8},
		{id: abi.UVERBS_ATTR_REG_DMABUF_MR_IOVA, kind: bytesIn, size: 8},
		{id: abi.UVERBS_ATTR_REG_DMABUF_MR_FD, kind: bytesIn, size: 4},
		{id: abi.UVERBS_ATTR_REG_DMABUF_MR_ACCESS_FLAGS, kind: constIn},
		{id: abi.UVERBS_ATTR_REG_DMABUF_MR_RESP_LKEY, kind: bytesOut, size: 4},
		{id: abi.UVERBS_ATTR_REG_DMABUF_MR_RESP_RKEY, kind: bytesOut, size: 4},
	}},
}

func queryMR(c *call) syscall.Errno {
	m, errno := get[*engine.MR](c.file, abi.UVERBS_OBJECT_MR, c.handle(abi.UVERBS_ATTR_QUERY_MR_HANDLE))
	if errno != 0 {
		return errno
	}
	lkey, rkey, length, iova := m.LKey(), m.RKey(), m.Length(), m.IOVA()
	return first(
		c.put(abi.UVERBS_ATTR_QUERY_MR_RESP_LKEY, mmap.Bytes(&lkey)),
		c.put(abi.UVERBS_ATTR_QUERY_MR_RESP_RKEY, mmap.Bytes(&rkey)),
		c.put(abi.UVERBS_ATTR_QUERY_MR_RESP_LENGTH, mmap.Bytes(&length)),
		c.put(abi.UVERBS_ATTR_QUERY_MR_RESP_IOVA, mmap.Bytes(&iova)),
	)
}

// unsupportedOfPD returns the handler of a method on a PD that rxe does not support.
func unsupportedOfPD(pd uint16) func(*call) syscall.Errno {
	return func(c *call) syscall.Errno {
		if _, errno := get[*engine.PD](c.file, abi.UVERBS_OBJECT_PD, c.handle(pd)); errno != 0 {
			return errno
		}
		return syscall.EOPNOTSUPP
	}
}
