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
	var numbers [3]uint32 // requests, SGEs, limit
	for i, id := range []uint16{abi.UVERBS_ATTR_CREATE_SRQ_MAX_WR, abi.UVERBS_ATTR_CREATE_SRQ_MAX_SGE, abi.UVERBS_ATTR_CREATE_SRQ_LIMIT} {
		var errno syscall.Errno
		if numbers[i], errno = value[uint32](c, id); errno != 0 {
			return errno
		}
	}
	userHandle, errno := value[uint64](c, abi.UVERBS_ATTR_CREATE_SRQ_USER_HANDLE)
	if errno != 0 {
		return errno
	}
	async, errno := f.asyncFile(c, abi.UVERBS_ATTR_CREATE_SRQ_EVENT_FD)
	if errno != 0 {
		return errno
	}
	driver := c.out(abi.UVERBS_ATTR_UHW_OUT)
	pd := c.ref(abi.UVERBS_OBJECT_PD, abi.UVERBS_ATTR_CREATE_SRQ_PD_HANDLE)
	handle, o, errno := f.create(abi.UVERBS_OBJECT_SRQ, []ref{pd}, func(o *object, of []*object) error {
		switch typ := c.constant(abi.UVERBS_ATTR_CREATE_SRQ_TYPE); {
		case typ != abi.IB_UVERBS_SRQT_BASIC && typ != abi.IB_UVERBS_SRQT_TM, driver.size < sizeOf[abi.RxeCreateSrqResp]():
			return syscall.EINVAL
		case typ == abi.IB_UVERBS_SRQT_TM:
			return syscall.EOPNOTSUPP
		}
		o.async = eventSource{file: async, userHandle: userHandle}
		s, err := pdOf(of[0]).CreateSRQ(engine.SRQInit{
			MaxWR: int(numbers[0]), MaxSGE: int(numbers[1]), Limit: int(numbers[2]), Event: o.async.raise,
		})
		if err == nil {
			o.value, o.destroy = s, s.Destroy
		}
		return err
	})
	if errno != 0 {
		return errno
	}
	s := o.value.(*engine.SRQ)
	maxWR, maxSGE, _ := s.Query()
	numbers[0], numbers[1] = uint32(maxWR), uint32(maxSGE)
	resp := abi.RxeCreateSrqResp{Mi: f.offer(o, s.Ring()), SrqNum: s.Num()}
	c.setHandle(abi.UVERBS_ATTR_CREATE_SRQ_HANDLE, handle)
	return f.finish(o, handle, first(
		driver.write(mmap.Bytes(&resp)),
		c.put(abi.UVERBS_ATTR_CREATE_SRQ_RESP_MAX_WR, mmap.Bytes(&numbers[0])),
		c.put(abi.UVERBS_ATTR_CREATE_SRQ_RESP_MAX_SGE, mmap.Bytes(&numbers[1])),
	))
}

// modifySRQ is the write command MODIFY_SRQ. The driver's part has the address at which rxe
// returns the new queue.
func modifySRQ(c command) syscall.Errno {
	const maxWR, limit = 1, 2 // enum ib_srq_attr_mask
	f := c.file
	req, errno := requestOf[abi.IbUverbsModifySrq](c)
	if errno != 0 {
		return errno
	}
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

// querySRQ is the write command QUERY_SRQ.
func querySRQ(c command) syscall.Errno {
	req, errno := requestOf[abi.IbUverbsQuerySrq](c)
	if errno != 0 {
		return errno
	}
	s, errno := get[*engine.SRQ](c.file, abi.UVERBS_OBJECT_SRQ, req.SrqHandle)
	if errno != 0 {
		return errno
	}
	maxWR, maxSGE, limit := s.Query()
	return respond(c, &abi.IbUverbsQuerySrqResp{MaxWr: uint32(maxWR), MaxSge: uint32(maxSGE), SrqLimit: uint32(limit)})
}
