package kernel

import (
	"syscall"

	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/engine"
	"github.com/goverbs/verbs/mmap"
)

var srqMethods = map[methodID]method{
	{abi.UVERBS_OBJECT_SRQ, abi.UVERBS_METHOD_SRQ_CREATE}: {run: createSRQ, specs: withUHW(
		spec{id: abi.UVERBS_ATTR_CREATE_SRQ_HANDLE, kind: handleOut},
		spec{id: abi.UVERBS_ATTR_CREATE_SRQ_PD_HANDLE, kind: handleIn},
		spec{id: abi.UVERBS_ATTR_CREATE_SRQ_TYPE, kind: constIn},
		spec{id: abi.UVERBS_ATTR_CREATE_SRQ_USER_HANDLE, kind: bytesIn, size: 8},
		spec{id: abi.UVERBS_ATTR_CREATE_SRQ_MAX_WR, kind: bytesIn, size: 4},
		spec{id: abi.UVERBS_ATTR_CREATE_SRQ_MAX_SGE, kind: bytesIn, size: 4},
		spec{id: abi.UVERBS_ATTR_CREATE_SRQ_LIMIT, kind: bytesIn, size: 4},
		spec{id: abi.UVERBS_ATTR_CREATE_SRQ_XRCD_HANDLE, kind: handleIn, optional: true},
		spec{id: abi.UVERBS_ATTR_CREATE_SRQ_CQ_HANDLE, kind: handleIn, optional: true},
		spec{id: abi.UVERBS_ATTR_CREATE_SRQ_MAX_NUM_TAGS, kind: bytesIn, size: 4, optional: true},
		spec{id: abi.UVERBS_ATTR_CREATE_SRQ_EVENT_FD, kind: handleIn, optional: true},
		spec{id: abi.UVERBS_ATTR_CREATE_SRQ_RESP_MAX_WR, kind: bytesOut, size: 4},
		spec{id: abi.UVERBS_ATTR_CREATE_SRQ_RESP_MAX_SGE, kind: bytesOut, size: 4},
		spec{id: abi.UVERBS_ATTR_CREATE_SRQ_RESP_SRQ_NUM, kind: bytesOut, size: 4, optional: true},
	)},
	{abi.UVERBS_OBJECT_SRQ, abi.UVERBS_METHOD_SRQ_DESTROY}: destroyMethod(abi.UVERBS_OBJECT_SRQ,
		abi.UVERBS_ATTR_DESTROY_SRQ_HANDLE, abi.UVERBS_ATTR_DESTROY_SRQ_RESP, func(o *object) []byte {
			return mmap.Bytes(&abi.IbUverbsDestroySrqResp{EventsReported: o.async.end()})
		}),
}

func createSRQ(c *call) syscall.Errno {
	f := c.file
	init := engine.SRQInit{
		MaxWR:  int(number[uint32](c, abi.UVERBS_ATTR_CREATE_SRQ_MAX_WR)),
		MaxSGE: int(number[uint32](c, abi.UVERBS_ATTR_CREATE_SRQ_MAX_SGE)),
		Limit:  int(number[uint32](c, abi.UVERBS_ATTR_CREATE_SRQ_LIMIT)),
	}
	async, errno := f.asyncFile(c, abi.UVERBS_ATTR_CREATE_SRQ_EVENT_FD)
	if errno != 0 {
		return errno
	}
	driver := c.out(abi.UVERBS_ATTR_UHW_OUT)
	pd := c.ref(abi.UVERBS_OBJECT_PD, abi.UVERBS_ATTR_CREATE_SRQ_PD_HANDLE)
	return create(f, abi.UVERBS_OBJECT_SRQ, []ref{pd}, func(o *object, of []*object) (*engine.SRQ, error) {
		switch typ := c.constant(abi.UVERBS_ATTR_CREATE_SRQ_TYPE); {
		case typ != abi.IB_UVERBS_SRQT_BASIC && typ != abi.IB_UVERBS_SRQT_TM, driver.size < sizeOf[abi.RxeCreateSrqResp]():
			return nil, syscall.EINVAL
		case typ == abi.IB_UVERBS_SRQT_TM:
			return nil, syscall.EOPNOTSUPP
		}
		o.async = eventSource{file: async, userHandle: number[uint64](c, abi.UVERBS_ATTR_CREATE_SRQ_USER_HANDLE)}
		init.Event = o.async.raise
		return pdOf(of[0]).CreateSRQ(init)
	}, func(o *object, s *engine.SRQ, handle uint32) syscall.Errno {
		maxWR, maxSGE, _ := s.Query()
		gotWR, gotSGE := uint32(maxWR), uint32(maxSGE)
		resp := abi.RxeCreateSrqResp{Mi: f.offer(o, s.Ring()), SrqNum: s.Num()}
		c.setHandle(abi.UVERBS_ATTR_CREATE_SRQ_HANDLE, handle)
		return first(
			driver.write(mmap.Bytes(&resp)),
			c.put(abi.UVERBS_ATTR_CREATE_SRQ_RESP_MAX_WR, mmap.Bytes(&gotWR)),
			c.put(abi.UVERBS_ATTR_CREATE_SRQ_RESP_MAX_SGE, mmap.Bytes(&gotSGE)),
		)
	})
}

// modifySRQ is the write command MODIFY_SRQ. The driver's part has the address at which rxe
// returns the new queue.
func modifySRQ(c command, req abi.IbUverbsModifySrq) syscall.Errno {
	const maxWR, limit = 1, 2 // enum ib_srq_attr_mask
	f := c.file
	var driver abi.RxeModifySrqCmd
	if copy(mmap.Bytes(&driver), c.driverIn) < sizeOf[abi.RxeModifySrqCmd]() {
		return syscall.EINVAL
	}
	held, errno := f.hold([]ref{{abi.UVERBS_OBJECT_SRQ, req.SrqHandle}})
	if errno != 0 {
		return errno
	}
	defer f.releaseHeld(held)
	o := held[0]
	s := o.value.(*engine.SRQ)
	if req.AttrMask&maxWR != 0 {
		if err := s.Resize(int(req.MaxWr)); err != nil {
			return errnoOf(err)
		}
		info := f.offer(o, s.Ring())
		if errno := (user{driver.MmapInfoAddr, sizeOf[abi.Mminfo]()}).write(mmap.Bytes(&info)); errno != 0 {
			return errno
		}
	}
	if req.AttrMask&limit != 0 {
		return errnoOf(s.SetLimit(int(req.SrqLimit)))
	}
	return 0
}

func querySRQ(c command, req abi.IbUverbsQuerySrq) syscall.Errno {
	s, errno := get[*engine.SRQ](c.file, abi.UVERBS_OBJECT_SRQ, req.SrqHandle)
	if errno != 0 {
		return errno
	}
	maxWR, maxSGE, limit := s.Query()
	return respond(c, &abi.IbUverbsQuerySrqResp{MaxWr: uint32(maxWR), MaxSge: uint32(maxSGE), SrqLimit: uint32(limit)})
}
