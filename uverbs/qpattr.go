package uverbs

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/attr"
	"github.com/goverbs/verbs/mmap"
)

// Modify changes the attributes in mask. With [verbs.MaskState] it moves the QP, by the table of
// ibv_modify_qp(3). RESET discards all requests. From RTR on the QP lives until Close, or until
// Modify moves it to RESET or ERR, even if the program has no pointer to it: its peer may use it.
func (q *QP) Modify(a verbs.QPAttr, mask verbs.QPAttrMask) error {
	const op = "modify"
	if err := q.obj.enter(op); err != nil {
		return err
	}
	defer q.obj.exit()
	err := q.checkAttr(&a, mask)
	if err == nil {
		err = q.checkTarget(&a, mask)
	}
	if err != nil {
		return q.obj.fail(op, err)
	}
	var m struct { // one allocation
		req   abi.IbUverbsModifyQp
		moved bool // whether the kernel moved the QP
	}
	m.req = abi.IbUverbsModifyQp{
		Dest: attr.Dest(&a.AV), AltDest: attr.Dest(&a.AltAV),
		QpHandle: q.handle, AttrMask: uint32(mask),
		Qkey: a.QKey, RqPsn: a.RQPSN, SqPsn: a.SQPSN, DestQpNum: a.DestQPNum,
		QpAccessFlags: uint32(a.Access), PkeyIndex: a.PKeyIndex, AltPkeyIndex: a.AltPKeyIndex,
		QpState: uint8(a.State), CurQpState: uint8(a.CurState), PathMtu: uint8(a.PathMTU),
		PathMigState: uint8(a.PathMigState), MaxRdAtomic: a.MaxRDAtomic, MaxDestRdAtomic: a.MaxDestRDAtomic,
		MinRnrTimer: a.MinRNRTimer, PortNum: a.Port, Timeout: a.Timeout, RetryCnt: a.RetryCount,
		RnrRetry: a.RNRRetry, AltPortNum: a.AltPort, AltTimeout: a.AltTimeout,
	}
	if a.SQDAsyncNotify {
		m.req.EnSqdAsyncNotify = 1
	}
	if mask&verbs.MaskState != 0 { // nobody posts until the queues know the new state
		if q.recv != nil {
			q.recv.Suspend()
			defer func() { q.recv.Settle(a.State, m.moved) }()
		}
		q.send.Suspend()
		defer func() { q.send.Settle(a.State, m.moved) }()
	}
	err = q.send.Modify(a, mask, q.pd.ctx.invokeFunc(abi.IB_USER_VERBS_CMD_MODIFY_QP, mmap.Bytes(&m.req), nil, &m.moved))
	if err == nil {
		q.moved(a.State, mask)
		if mask&verbs.MaskState != 0 {
			q.pd.ctx.registry.hold(q.id, q, q.reachable(a.State))
		}
		return nil
	}
	// Drivers answer EINVAL to any mask that ib_modify_qp_is_ok refuses; iWARP's have other rules.
	if errors.Is(err, syscall.EINVAL) && !q.pd.ctx.device.IWARP() {
		if now, qerr := q.query(); qerr == nil {
			to := now.State
			if mask&verbs.MaskState != 0 {
				to = a.State
			}
			if why := explainRefusal(q.typ, now.State, to, mask); why != "" {
				err = fmt.Errorf("%s: %w", why, err)
			}
		}
	}
	if mask&verbs.MaskAV != 0 {
		err = q.pd.ctx.explainVector(&a.AV, err)
	}
	if errors.Is(err, syscall.EINVAL) {
		var limits []limit
		if mask&verbs.MaskMaxRDAtomic != 0 {
			limits = append(limits, limit{"MaxRDAtomic", int(a.MaxRDAtomic), q.pd.ctx.dev.Attr.MaxQPInitRDAtomic})
		}
		if mask&verbs.MaskMaxDestRDAtomic != 0 {
			limits = append(limits, limit{"MaxDestRDAtomic", int(a.MaxDestRDAtomic), q.pd.ctx.dev.Attr.MaxQPRDAtomic})
		}
		err = nameLimits(limits, err)
	}
	return q.obj.fail(op, err)
}

// reachable reports whether a peer can use the QP in a state. On iWARP a QP in INIT may become
// connected without a call: the kernel's connection manager knows it by its number, and moves it
// on.
func (q *QP) reachable(s verbs.QPState) bool {
	return s >= verbs.StateRTR && s != verbs.StateErr || s == verbs.StateInit && q.pd.ctx.device.IWARP()
}

// wrapNoRoute adds the GIDs to the error of a RoCE peer whose MAC address the kernel cannot resolve
// (rdma_resolve_ip). The peer's GID may belong to another network than the local one, or be gone.
func wrapNoRoute(av *verbs.AddressVector, err error) error {
	if av.Global && (errors.Is(err, syscall.ETIMEDOUT) || errors.Is(err, syscall.ENETUNREACH) || errors.Is(err, syscall.EHOSTUNREACH)) {
		return fmt.Errorf("no route to GID %v from GID %d of port %d: %w", av.DGID, av.SGIDIndex, av.Port, err)
	}
	return err
}

// Query returns all attributes of the QP (ibv_query_qp(3)).
func (q *QP) Query() (verbs.QPAttr, error) { return get(q.obj, "query", q.query) }

func (q *QP) query() (verbs.QPAttr, error) {
	if q.typ == verbs.DCT && q.Num() == 0 { // the kernel refuses: there is nothing in the device
		return verbs.QPAttr{State: verbs.QPState(q.state.Load())}, nil
	}
	req := abi.IbUverbsQueryQp{QpHandle: q.handle, AttrMask: uint32(q.queryMask())}
	var r abi.IbUverbsQueryQpResp
	if err := q.pd.ctx.file.Invoke(abi.IB_USER_VERBS_CMD_QUERY_QP, mmap.Bytes(&req), mmap.Bytes(&r), nil, nil); err != nil {
		return verbs.QPAttr{}, err
	}
	return verbs.QPAttr{
		State: verbs.QPState(r.QpState), CurState: verbs.QPState(r.CurQpState), PathMTU: verbs.MTU(r.PathMtu),
		PathMigState: verbs.PathMigState(r.PathMigState), QKey: r.Qkey, RQPSN: r.RqPsn, SQPSN: r.SqPsn,
		DestQPNum: r.DestQpNum, Access: verbs.Access(r.QpAccessFlags),
		AV: attr.OfDest(&r.Dest), AltAV: attr.OfDest(&r.AltDest),
		PKeyIndex: r.PkeyIndex, AltPKeyIndex: r.AltPkeyIndex, SQDraining: r.SqDraining != 0,
		MaxRDAtomic: r.MaxRdAtomic, MaxDestRDAtomic: r.MaxDestRdAtomic, MinRNRTimer: r.MinRnrTimer,
		Port: r.PortNum, AltPort: r.AltPortNum, Timeout: r.Timeout, AltTimeout: r.AltTimeout,
		RetryCount: r.RetryCnt, RNRRetry: r.RnrRetry,
		Cap:       q.cap, // the kernel's mlx5 does not report the sizes of programs' send queues
		SignalAll: r.SqSigAll != 0,
	}, nil
}
