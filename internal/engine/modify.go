package engine

import (
	"syscall"
	"time"

	"github.com/goverbs/verbs"
)

// accessQP contains the rights that rxe supports for QPs.
const accessQP = accessMR

// tick is the granularity of the acknowledgement timeout, of kernel timers with HZ=250. Shorter
// timeouts would expire when the machine is busy.
const tick = 4 * time.Millisecond

// Modify changes attributes, as rxe_modify_qp with the checks of ib_modify_qp_is_ok. It makes
// connections: the program, or the connection manager, gives both QPs the number, the address and
// the first PSN of the other, and moves them from INIT over RTR, where they receive, to RTS, where
// they also send (IBA, 10.3.1).
func (qp *QP) Modify(attr *verbs.QPAttr, mask verbs.QPAttrMask) error {
	if err := qp.dev.usable(); err != nil {
		return err
	}
	if mask >= verbs.MaskDestQPNum<<1 {
		return syscall.EOPNOTSUPP
	}
	err := qp.apply(attr, mask)
	qp.dev.drain()
	return err
}

// apply is Modify without the work that it causes for other QPs.
func (qp *QP) apply(attr *verbs.QPAttr, mask verbs.QPAttrMask) error {
	p, err := qp.checkAttr(attr, mask)
	if err != nil {
		return err
	}
	qp.lock()
	defer qp.unlock()
	return qp.set(attr, mask, p)
}

// checkAttr is rxe_qp_chk_attr with the checks of the kernel's _ib_modify_qp. It returns the
// path for the address vector.
func (qp *QP) checkAttr(attr *verbs.QPAttr, mask verbs.QPAttrMask) (p *path, err error) {
	if mask&verbs.MaskAV != 0 {
		if p, err = qp.dev.newPath(attr.AV); err != nil {
			return nil, err
		}
	}
	rights := attr.Access &^ accessQP
	switch {
	case mask&verbs.MaskAltPath != 0, // not for RoCE
		mask&verbs.MaskPort != 0 && attr.Port != 1,
		mask&verbs.MaskCap != 0 && checkCap(attr.Cap, qp.init.SRQ != nil, qp.init.RefillSend != nil) != nil,
		mask&verbs.MaskAccess != 0 && (qp.init.Type == verbs.UD || rights != 0),
		mask&verbs.MaskPathMTU != 0 && attr.PathMTU.Bytes() == 0,
		mask&verbs.MaskMaxRDAtomic != 0 && attr.MaxRDAtomic > maxRDAtomic,
		mask&verbs.MaskMaxDestRDAtomic != 0 && attr.MaxDestRDAtomic > maxRDAtomic,
		mask&verbs.MaskTimeout != 0 && attr.Timeout > 31:
		return nil, syscall.EINVAL
	}
	return p, nil
}

// settable are the attributes that Modify stores, by their bits of the mask. requester.set and
// responder.set do the rest.
var settable = []struct {
	bit verbs.QPAttrMask
	set func(to, from *verbs.QPAttr)
}{
	{verbs.MaskMaxRDAtomic, func(to, from *verbs.QPAttr) { to.MaxRDAtomic = roundUp(from.MaxRDAtomic) }},
	{verbs.MaskMaxDestRDAtomic, func(to, from *verbs.QPAttr) { to.MaxDestRDAtomic = roundUp(from.MaxDestRDAtomic) }},
	{verbs.MaskSQDAsyncNotify, func(to, from *verbs.QPAttr) { to.SQDAsyncNotify = from.SQDAsyncNotify }},
	{verbs.MaskAccess, func(to, from *verbs.QPAttr) { to.Access = from.Access }},
	{verbs.MaskPKeyIndex, func(to, from *verbs.QPAttr) { to.PKeyIndex = from.PKeyIndex }},
	{verbs.MaskPort, func(to, from *verbs.QPAttr) { to.Port = from.Port }},
	{verbs.MaskQKey, func(to, from *verbs.QPAttr) { to.QKey = from.QKey }},
	{verbs.MaskAV, func(to, from *verbs.QPAttr) { to.AV = from.AV }},
	{verbs.MaskPathMTU, func(to, from *verbs.QPAttr) { to.PathMTU = from.PathMTU }},
	{verbs.MaskTimeout, func(to, from *verbs.QPAttr) { to.Timeout = from.Timeout }},
	{verbs.MaskRetryCount, func(to, from *verbs.QPAttr) { to.RetryCount = from.RetryCount }},
	{verbs.MaskRNRRetry, func(to, from *verbs.QPAttr) { to.RNRRetry = from.RNRRetry }},
	{verbs.MaskMinRNRTimer, func(to, from *verbs.QPAttr) { to.MinRNRTimer = from.MinRNRTimer }},
	{verbs.MaskPathMigState, func(to, from *verbs.QPAttr) { to.PathMigState = from.PathMigState }},
	{verbs.MaskDestQPNum, func(to, from *verbs.QPAttr) { to.DestQPNum = from.DestQPNum }},
}

// set is rxe_qp_from_attr.
func (qp *QP) set(attr *verbs.QPAttr, mask verbs.QPAttrMask, p *path) error {
	if qp.ended {
		return syscall.EINVAL
	}
	if mask&verbs.MaskState != 0 {
		if err := qp.checkTransition(attr, mask); err != nil {
			return err
		}
	} else if mask&(maskRTR|verbs.MaskSQPSN|verbs.MaskMaxRDAtomic|verbs.MaskMaxDestRDAtomic) != 0 && qp.state >= verbs.StateRTR {
		return syscall.EINVAL // requests in progress have been cut and numbered by them
	}
	for _, f := range settable {
		if mask&f.bit != 0 {
			f.set(&qp.attr, attr)
		}
	}
	if mask&verbs.MaskAV != 0 {
		qp.path = p
	}
	qp.mtu = qp.attr.PathMTU.Bytes()
	qp.requester.set(attr, mask)
	qp.responder.set(attr, mask)
	if mask&verbs.MaskState != 0 { // last: it may send
		qp.enter(attr.State)
	}
	return nil
}

// checkTransition is __qp_chk_state. It refuses to run a QP that has never had a path, and one that is
// in another state than the caller states, which the kernel trusts: requests in progress would be
// numbered anew.
func (qp *QP) checkTransition(attr *verbs.QPAttr, mask verbs.QPAttrMask) error {
	cur := qp.state
	if mask&verbs.MaskCurState != 0 && attr.CurState != cur {
		return syscall.EINVAL
	}
	if qp.init.Dynamic && attr.State == verbs.StateRTR { // it has a peer when it connects to one
		mask |= verbs.MaskAV | verbs.MaskDestQPNum | verbs.MaskRQPSN
	}
	runs := attr.State >= verbs.StateRTR && attr.State <= verbs.StateSQE
	if runs && qp.init.Type != verbs.UD && !qp.init.Dynamic && qp.path == nil && mask&verbs.MaskAV == 0 {
		return syscall.EINVAL
	}
	if !transitionAllowed(cur, attr.State, qp.init.Type, mask) ||
		cur == verbs.StateSQD && qp.attr.SQDraining && attr.State != verbs.StateErr {
		return syscall.EINVAL
	}
	return nil
}

func (qp *QP) enter(s verbs.QPState) {
	switch s {
	case verbs.StateReset:
		qp.responder.sendAck() // the peer would report requests that have been executed as failed
		qp.state = s
		qp.reset()
	// All requests complete as flushed, also those that are posted later; only a reset leaves the
	// state.
	case verbs.StateErr:
		if qp.state == verbs.StateErr { // flush requests posted since
			qp.requester.flush()
			qp.responder.flush()
			return
		}
		qp.setError()
	case verbs.StateSQD:
		qp.state = s
		// The requester reports when it has ended the messages that it has begun.
		qp.attr.SQDraining = true
		qp.requester.run()
	default:
		qp.state = s
		qp.requester.run()
	}
}

// Query returns all attributes.
func (qp *QP) Query() verbs.QPAttr {
	qp.mu.Lock()
	defer qp.mu.Unlock()
	a := qp.attr
	a.State, a.CurState = qp.state, qp.state
	a.RQPSN, a.SQPSN = uint32(qp.responder.psn), uint32(qp.requester.psn)
	a.Cap, a.SignalAll = qp.init.Cap, qp.init.SignalAll
	return a
}
