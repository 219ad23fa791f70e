package kernel

import (
	"slices"
	"sync"
	"syscall"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/attr"
	"github.com/goverbs/verbs/internal/engine"
	"github.com/goverbs/verbs/mmap"
)

// qp is a QP with its multicast groups.
type qp struct {
	*engine.QP
	typ verbs.QPType

	mu     sync.Mutex
	groups []group
	ending bool // detachAll has been called: nothing can be attached
}

type group struct {
	gid  verbs.GID
	mlid uint16
}

var qpMethods = map[methodID]method{
	{abi.UVERBS_OBJECT_QP, abi.UVERBS_METHOD_QP_CREATE}: {run: createQP, specs: withUHW(
		spec{id: abi.UVERBS_ATTR_CREATE_QP_HANDLE, kind: handleOut},
		spec{id: abi.UVERBS_ATTR_CREATE_QP_PD_HANDLE, kind: handleIn, optional: true},
		spec{id: abi.UVERBS_ATTR_CREATE_QP_SRQ_HANDLE, kind: handleIn, optional: true},
		spec{id: abi.UVERBS_ATTR_CREATE_QP_SEND_CQ_HANDLE, kind: handleIn, optional: true},
		spec{id: abi.UVERBS_ATTR_CREATE_QP_RECV_CQ_HANDLE, kind: handleIn, optional: true},
		spec{id: abi.UVERBS_ATTR_CREATE_QP_USER_HANDLE, kind: bytesIn, size: 8},
		spec{id: abi.UVERBS_ATTR_CREATE_QP_CAP, kind: bytesIn, size: sizeOf[abi.IbUverbsQpCap]()},
		spec{id: abi.UVERBS_ATTR_CREATE_QP_TYPE, kind: constIn},
		spec{id: abi.UVERBS_ATTR_CREATE_QP_FLAGS, kind: constIn, optional: true},
		spec{id: abi.UVERBS_ATTR_CREATE_QP_EVENT_FD, kind: handleIn, optional: true},
		spec{id: abi.UVERBS_ATTR_CREATE_QP_RESP_CAP, kind: bytesOut, size: sizeOf[abi.IbUverbsQpCap]()},
		spec{id: abi.UVERBS_ATTR_CREATE_QP_RESP_QP_NUM, kind: bytesOut, size: 4},
	)},
	{abi.UVERBS_OBJECT_QP, abi.UVERBS_METHOD_QP_DESTROY}: destroyMethod(abi.UVERBS_OBJECT_QP,
		abi.UVERBS_ATTR_DESTROY_QP_HANDLE, abi.UVERBS_ATTR_DESTROY_QP_RESP, func(o *object) []byte {
			return mmap.Bytes(&abi.IbUverbsDestroyQpResp{EventsReported: o.async.end()})
		}),
}

// checkQP checks the type and the flags of a new QP, as uverbs and rxe do.
func checkQP(typ, flags uint64) syscall.Errno {
	const allFlags = abi.IB_UVERBS_QP_CREATE_BLOCK_MULTICAST_LOOPBACK | abi.IB_UVERBS_QP_CREATE_SCATTER_FCS |
		abi.IB_UVERBS_QP_CREATE_CVLAN_STRIPPING | abi.IB_UVERBS_QP_CREATE_PCI_WRITE_END_PADDING | abi.IB_UVERBS_QP_CREATE_SQ_SIG_ALL
	switch typ {
	case abi.IB_UVERBS_QPT_RC, abi.IB_UVERBS_QPT_UC, abi.IB_UVERBS_QPT_UD:
	case abi.IB_UVERBS_QPT_RAW_PACKET, abi.IB_UVERBS_QPT_XRC_INI, abi.IB_UVERBS_QPT_XRC_TGT, abi.IB_UVERBS_QPT_DRIVER:
		return syscall.EOPNOTSUPP
	default:
		return syscall.EINVAL
	}
	switch {
	case flags&^allFlags != 0:
		return syscall.EINVAL
	case flags&^abi.IB_UVERBS_QP_CREATE_SQ_SIG_ALL != 0:
		return syscall.EOPNOTSUPP
	}
	return 0
}

func createQP(c *call) syscall.Errno {
	f := c.file
	var refs []ref // PD, send CQ, receive CQ, SRQ
	for _, r := range []struct{ kind, id uint16 }{
		{abi.UVERBS_OBJECT_PD, abi.UVERBS_ATTR_CREATE_QP_PD_HANDLE},
		{abi.UVERBS_OBJECT_CQ, abi.UVERBS_ATTR_CREATE_QP_SEND_CQ_HANDLE},
		{abi.UVERBS_OBJECT_CQ, abi.UVERBS_ATTR_CREATE_QP_RECV_CQ_HANDLE},
		{abi.UVERBS_OBJECT_SRQ, abi.UVERBS_ATTR_CREATE_QP_SRQ_HANDLE},
	} {
		switch {
		case c.attr(r.id) != nil:
			refs = append(refs, c.ref(r.kind, r.id))
		case r.kind != abi.UVERBS_OBJECT_SRQ:
			return syscall.ENOENT
		}
	}
	size, errno := c.in(abi.UVERBS_ATTR_CREATE_QP_CAP)
	if errno != 0 {
		return errno
	}
	var want abi.IbUverbsQpCap
	copy(mmap.Bytes(&want), size)
	async, errno := f.asyncFile(c, abi.UVERBS_ATTR_CREATE_QP_EVENT_FD)
	if errno != 0 {
		return errno
	}
	typ, flags := c.constant(abi.UVERBS_ATTR_CREATE_QP_TYPE), c.constant(abi.UVERBS_ATTR_CREATE_QP_FLAGS)
	driver := c.out(abi.UVERBS_ATTR_UHW_OUT)
	return create(f, abi.UVERBS_OBJECT_QP, refs, func(o *object, of []*object) (*qp, error) {
		if errno := checkQP(typ, flags); errno != 0 {
			return nil, errno
		}
		if driver.size < sizeOf[abi.RxeCreateQpResp]() {
			return nil, syscall.EINVAL
		}
		o.async = eventSource{file: async, userHandle: number[uint64](c, abi.UVERBS_ATTR_CREATE_QP_USER_HANDLE)}
		init := engine.QPInit{
			Type: verbs.QPType(typ), SendCQ: of[1].value.(*engine.CQ), RecvCQ: of[2].value.(*engine.CQ),
			Cap: verbs.QPCap{
				MaxSendWR: int(want.MaxSendWr), MaxRecvWR: int(want.MaxRecvWr),
				MaxSendSGE: int(want.MaxSendSge), MaxRecvSGE: int(want.MaxRecvSge), MaxInline: int(want.MaxInlineData),
			},
			SignalAll: flags&abi.IB_UVERBS_QP_CREATE_SQ_SIG_ALL != 0, Event: o.async.raise,
		}
		if len(of) > 3 {
			init.SRQ = of[3].value.(*engine.SRQ)
		}
		e, err := pdOf(of[0]).CreateQP(init)
		return &qp{QP: e, typ: init.Type}, err
	}, func(o *object, q *qp, handle uint32) syscall.Errno {
		got, num := capOf(q.Cap()), q.Num()
		resp := abi.RxeCreateQpResp{SqMi: f.offer(o, q.SendRing())}
		if r := q.RecvRing(); r != nil {
			resp.RqMi = f.offer(o, r)
		}
		c.setHandle(abi.UVERBS_ATTR_CREATE_QP_HANDLE, handle)
		return first(
			driver.write(mmap.Bytes(&resp)),
			c.put(abi.UVERBS_ATTR_CREATE_QP_RESP_CAP, mmap.Bytes(&got)),
			c.put(abi.UVERBS_ATTR_CREATE_QP_RESP_QP_NUM, mmap.Bytes(&num)),
		)
	})
}

func capOf(c verbs.QPCap) abi.IbUverbsQpCap {
	return abi.IbUverbsQpCap{
		MaxSendWr: uint32(c.MaxSendWR), MaxRecvWr: uint32(c.MaxRecvWR),
		MaxSendSge: uint32(c.MaxSendSGE), MaxRecvSge: uint32(c.MaxRecvSGE), MaxInlineData: uint32(c.MaxInline),
	}
}

// Destroy fails with EBUSY while the QP is attached to multicast groups (uverbs_free_qp).
func (q *qp) Destroy() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.groups) > 0 {
		return syscall.EBUSY
	}
	return q.QP.Destroy()
}

// detachAll detaches the QP from all groups for good, so that Destroy does not fail.
func (q *qp) detachAll() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ending = true
	for _, g := range q.groups {
		q.DetachMulticast(g.gid)
	}
	q.groups = nil
}

// modifyQP is the write command MODIFY_QP. It makes uverbs' checks (modify_qp of uverbs_cmd.c); the
// engine makes rxe's.
func modifyQP(c command, req abi.IbUverbsModifyQp) syscall.Errno {
	const standard = 1<<21 - 1 // IB_QP_ATTR_STANDARD_BITS
	if req.AttrMask&^standard != 0 {
		return syscall.EOPNOTSUPP
	}
	q, errno := get[*qp](c.file, abi.UVERBS_OBJECT_QP, req.QpHandle)
	if errno != 0 {
		return errno
	}
	mask := verbs.QPAttrMask(req.AttrMask)
	has := func(m verbs.QPAttrMask) bool { return mask&m != 0 }
	toRTR := has(verbs.MaskState) && verbs.QPState(req.QpState) == verbs.StateRTR
	switch {
	case has(verbs.MaskPort) && req.PortNum != 1,
		has(verbs.MaskAV) && req.Dest.PortNum != 1,
		has(verbs.MaskAV) && toRTR && req.Dest.PortNum != q.Query().Port,
		has(verbs.MaskAltPath) && (req.AltPortNum != 1 || req.AltDest.PortNum != 1),
		has(verbs.MaskCurState) && verbs.QPState(req.CurQpState) > verbs.StateErr,
		has(verbs.MaskState) && verbs.QPState(req.QpState) > verbs.StateErr:
		return syscall.EINVAL
	case has(verbs.MaskQKey) && req.Qkey&(1<<31) != 0:
		return syscall.EPERM // a privileged Q_Key
	}
	if has(verbs.MaskAV) && !toRTR && !has(verbs.MaskPort) {
		mask |= verbs.MaskPort
		req.PortNum = req.Dest.PortNum
	}
	a := verbs.QPAttr{
		State: verbs.QPState(req.QpState), CurState: verbs.QPState(req.CurQpState), PathMTU: verbs.MTU(req.PathMtu),
		PathMigState: verbs.PathMigState(req.PathMigState), QKey: req.Qkey, RQPSN: req.RqPsn, SQPSN: req.SqPsn, DestQPNum: req.DestQpNum,
		Access: verbs.Access(req.QpAccessFlags), AV: attr.OfDest(&req.Dest), AltAV: attr.OfDest(&req.AltDest),
		PKeyIndex: req.PkeyIndex, AltPKeyIndex: req.AltPkeyIndex, SQDAsyncNotify: req.EnSqdAsyncNotify != 0,
		MaxRDAtomic: req.MaxRdAtomic, MaxDestRDAtomic: req.MaxDestRdAtomic, MinRNRTimer: req.MinRnrTimer,
		Port: req.PortNum, AltPort: req.AltPortNum, Timeout: req.Timeout, AltTimeout: req.AltTimeout,
		RetryCount: req.RetryCnt, RNRRetry: req.RnrRetry,
	}
	return errnoOf(q.Modify(&a, mask))
}

func queryQP(c command, req abi.IbUverbsQueryQp) syscall.Errno {
	q, errno := get[*qp](c.file, abi.UVERBS_OBJECT_QP, req.QpHandle)
	if errno != 0 {
		return errno
	}
	a := q.Query()
	size := capOf(a.Cap)
	flag := func(b bool) uint8 {
		if b {
			return 1
		}
		return 0
	}
	return respond(c, &abi.IbUverbsQueryQpResp{
		Dest: attr.Dest(&a.AV), AltDest: attr.Dest(&a.AltAV),
		MaxSendWr: size.MaxSendWr, MaxRecvWr: size.MaxRecvWr, MaxSendSge: size.MaxSendSge, MaxRecvSge: size.MaxRecvSge,
		MaxInlineData: size.MaxInlineData,
		Qkey:          a.QKey, RqPsn: a.RQPSN, SqPsn: a.SQPSN, DestQpNum: a.DestQPNum, QpAccessFlags: uint32(a.Access),
		PkeyIndex: a.PKeyIndex, AltPkeyIndex: a.AltPKeyIndex, QpState: uint8(a.State), CurQpState: uint8(a.CurState),
		PathMtu: uint8(a.PathMTU), PathMigState: uint8(a.PathMigState), SqDraining: flag(a.SQDraining),
		MaxRdAtomic: a.MaxRDAtomic, MaxDestRdAtomic: a.MaxDestRDAtomic, MinRnrTimer: a.MinRNRTimer,
		PortNum: a.Port, Timeout: a.Timeout, RetryCnt: a.RetryCount, RnrRetry: a.RNRRetry,
		AltPortNum: a.AltPort, AltTimeout: a.AltTimeout, SqSigAll: flag(a.SignalAll),
	})
}

// postSend is the doorbell (POST_SEND). As rxe, it ignores work requests in the command, because a
// user's QP has them in its queue.
func postSend(c command) syscall.Errno {
	var req abi.IbUverbsPostSend
	copy(mmap.Bytes(&req), c.request)
	if int(req.WqeSize) < sizeOf[abi.IbUverbsSendWr]() {
		return syscall.EINVAL
	}
	q, errno := get[*qp](c.file, abi.UVERBS_OBJECT_QP, req.QpHandle)
	if errno != 0 {
		return errno
	}
	errno = errnoOf(q.Doorbell())
	if rerrno := respond(c, &abi.IbUverbsPostSendResp{}); rerrno != 0 {
		errno = rerrno
	}
	return errno
}

func attachMulticast(c command, req abi.IbUverbsAttachMcast) syscall.Errno {
	q, g, errno := groupOf(c, req)
	if errno != 0 {
		return errno
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ending {
		return syscall.EIO
	}
	if slices.Contains(q.groups, g) {
		return 0
	}
	if !isMulticast(g.gid) || q.typ != verbs.UD {
		return syscall.EINVAL
	}
	if err := q.AttachMulticast(g.gid); err != nil {
		return errnoOf(err)
	}
	q.groups = append(q.groups, g)
	return 0
}

func detachMulticast(c command, req abi.IbUverbsAttachMcast) syscall.Errno {
	q, g, errno := groupOf(c, req)
	if errno != 0 {
		return errno
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	i := slices.Index(q.groups, g)
	if i < 0 {
		return syscall.EINVAL
	}
	q.groups = slices.Delete(q.groups, i, i+1)
	if slices.ContainsFunc(q.groups, func(o group) bool { return o.gid == g.gid }) {
		return 0
	}
	return errnoOf(q.DetachMulticast(g.gid))
}

func groupOf(c command, req abi.IbUverbsAttachMcast) (*qp, group, syscall.Errno) {
	q, errno := get[*qp](c.file, abi.UVERBS_OBJECT_QP, req.QpHandle)
	return q, group{req.Gid, req.Mlid}, errno
}

func isMulticast(g verbs.GID) bool { return g.Addr().IsMulticast() }

func createAH(c command, req abi.IbUverbsCreateAh) syscall.Errno {
	if req.Attr.PortNum != 1 {
		return syscall.EINVAL
	}
	return create(c.file, abi.UVERBS_OBJECT_AH, []ref{pdRef(req.PdHandle)}, func(_ *object, of []*object) (*engine.AH, error) {
		return pdOf(of[0]).CreateAH(attr.OfAH(&req.Attr))
	}, func(_ *object, ah *engine.AH, handle uint32) syscall.Errno {
		driver := abi.RxeCreateAhResp{AhNum: ah.Num()}
		return first(c.driverOut.write(mmap.Bytes(&driver)), respond(c, &abi.IbUverbsCreateAhResp{AhHandle: handle}))
	})
}
