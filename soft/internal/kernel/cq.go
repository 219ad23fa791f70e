package kernel

import (
	"syscall"

	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/engine"
	"github.com/goverbs/verbs/internal/host"
	"github.com/goverbs/verbs/mmap"
)

var cqMethods = map[methodID]method{
	{abi.UVERBS_OBJECT_CQ, abi.UVERBS_METHOD_CQ_CREATE}: {run: createCQ, specs: withUHW(
		spec{id: abi.UVERBS_ATTR_CREATE_CQ_HANDLE, kind: handleOut},
		spec{id: abi.UVERBS_ATTR_CREATE_CQ_CQE, kind: bytesIn, size: 4},
		spec{id: abi.UVERBS_ATTR_CREATE_CQ_USER_HANDLE, kind: bytesIn, size: 8},
		spec{id: abi.UVERBS_ATTR_CREATE_CQ_COMP_CHANNEL, kind: handleIn, optional: true},
		spec{id: abi.UVERBS_ATTR_CREATE_CQ_COMP_VECTOR, kind: bytesIn, size: 4},
		spec{id: abi.UVERBS_ATTR_CREATE_CQ_FLAGS, kind: constIn, optional: true},
		spec{id: abi.UVERBS_ATTR_CREATE_CQ_RESP_CQE, kind: bytesOut, size: 4},
		spec{id: abi.UVERBS_ATTR_CREATE_CQ_EVENT_FD, kind: handleIn, optional: true},
	)},
	{abi.UVERBS_OBJECT_CQ, abi.UVERBS_METHOD_CQ_DESTROY}: destroyMethod(abi.UVERBS_OBJECT_CQ,
		abi.UVERBS_ATTR_DESTROY_CQ_HANDLE, abi.UVERBS_ATTR_DESTROY_CQ_RESP, func(o *object) []byte {
			return mmap.Bytes(&abi.IbUverbsDestroyCqResp{CompEventsReported: o.comp.end(), AsyncEventsReported: o.async.end()})
		}),
}

func createCompChannel(c command, _ abi.IbUverbsCreateCompChannel) syscall.Errno {
	fd, errno := c.file.newEventFile(compEventSize)
	if errno != 0 {
		return errno
	}
	errno = respond(c, &abi.IbUverbsCreateCompChannelResp{Fd: uint32(fd)})
	if errno != 0 {
		host.Close(fd)
	}
	return errno
}

func createCQ(c *call) syscall.Errno {
	f := c.file
	entries, vector := number[uint32](c, abi.UVERBS_ATTR_CREATE_CQ_CQE), number[uint32](c, abi.UVERBS_ATTR_CREATE_CQ_COMP_VECTOR)
	userHandle := number[uint64](c, abi.UVERBS_ATTR_CREATE_CQ_USER_HANDLE)
	flags := c.constant(abi.UVERBS_ATTR_CREATE_CQ_FLAGS)
	const knownFlags = abi.IB_UVERBS_CQ_FLAGS_TIMESTAMP_COMPLETION | abi.IB_UVERBS_CQ_FLAGS_IGNORE_OVERRUN
	comp, async := eventSource{userHandle: userHandle}, eventSource{userHandle: userHandle}
	var errno syscall.Errno
	if c.attr(abi.UVERBS_ATTR_CREATE_CQ_COMP_CHANNEL) != nil {
		if comp.file, errno = f.eventFileAt(int(c.handle(abi.UVERBS_ATTR_CREATE_CQ_COMP_CHANNEL)), compEventSize); errno != 0 {
			return errno
		}
	}
	if async.file, errno = f.asyncFile(c, abi.UVERBS_ATTR_CREATE_CQ_EVENT_FD); errno != 0 {
		return errno
	}
	driver := c.out(abi.UVERBS_ATTR_UHW_OUT)
	switch {
	case flags&^knownFlags != 0, vector >= compVectors(), driver.size < sizeOf[abi.RxeCreateCqResp]():
		return syscall.EINVAL
	case flags != 0:
		return syscall.EOPNOTSUPP
	}
	return create(f, abi.UVERBS_OBJECT_CQ, nil, func(o *object, _ []*object) (*engine.CQ, error) {
		o.comp, o.async = comp, async
		init := engine.CQInit{Entries: int(int32(entries)), Event: o.async.raise}
		if comp.file != nil {
			init.Notify = o.comp.complete
		}
		return f.device.engine.CreateCQ(init)
	}, func(o *object, cq *engine.CQ, handle uint32) syscall.Errno {
		ring := cq.Ring()
		resp := abi.RxeCreateCqResp{Mi: f.offer(o, ring)}
		got := uint32(ring.Cap())
		c.setHandle(abi.UVERBS_ATTR_CREATE_CQ_HANDLE, handle)
		return first(
			driver.write(mmap.Bytes(&resp)),
			c.put(abi.UVERBS_ATTR_CREATE_CQ_RESP_CQE, mmap.Bytes(&got)),
		)
	})
}

// first returns the first error number that is not 0.
func first(all ...syscall.Errno) syscall.Errno {
	for _, errno := range all {
		if errno != 0 {
			return errno
		}
	}
	return 0
}

func resizeCQ(c command, req abi.IbUverbsResizeCq) syscall.Errno {
	f := c.file
	if c.driverOut.size < sizeOf[abi.RxeResizeCqResp]() {
		return syscall.EINVAL
	}
	held, errno := f.hold([]ref{{abi.UVERBS_OBJECT_CQ, req.CqHandle}})
	if errno != 0 {
		return errno
	}
	defer f.releaseHeld(held)
	o := held[0]
	cq := o.value.(*engine.CQ)
	if err := cq.Resize(int(int32(req.Cqe))); err != nil {
		return errnoOf(err)
	}
	ring := cq.Ring()
	resp := abi.RxeResizeCqResp{Mi: f.offer(o, ring)}
	return first(c.driverOut.write(mmap.Bytes(&resp)), respond(c, &abi.IbUverbsResizeCqResp{Cqe: uint32(ring.Cap())}))
}

func (f *file) releaseHeld(held []*object) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.unhold(held)
}

func reqNotifyCQ(c command, req abi.IbUverbsReqNotifyCq) syscall.Errno {
	cq, errno := get[*engine.CQ](c.file, abi.UVERBS_OBJECT_CQ, req.CqHandle)
	if errno != 0 {
		return errno
	}
	return errnoOf(cq.Arm(req.SolicitedOnly != 0))
}
