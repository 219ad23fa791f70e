package uverbs

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/provider"
)

// checkDC checks the options of a QP as far as they belong to the dynamically connected transport, and
// sets the CQ that such a QP does not need to that which it has.
func (opt *QPOptions) checkDC() error {
	switch opt.Type {
	case verbs.DCI:
		if opt.SRQ != nil {
			return fmt.Errorf("a DCI receives nothing, and has an SRQ: give it to a DCT: %w", syscall.EINVAL)
		}
		if opt.RecvCQ == nil {
			opt.RecvCQ = opt.SendCQ
		}
		opt.Cap.MaxRecvWR, opt.Cap.MaxRecvSGE = -1, -1
	case verbs.DCT:
		if opt.SRQ == nil {
			return fmt.Errorf("a DCT receives from an SRQ, and has none: set SRQ: %w", syscall.EINVAL)
		}
		if opt.SendCQ == nil {
			opt.SendCQ = opt.RecvCQ
		}
		opt.Cap.MaxSendWR, opt.Cap.MaxSendSGE, opt.Cap.MaxInline = -1, -1, -1
	default:
		if opt.DCKey != 0 {
			return fmt.Errorf("DCKey %#x for a QP of type %v: only DCI and DCT have one: %w", opt.DCKey, opt.Type, syscall.EINVAL)
		}
	}
	return nil
}

// explainDC adds to the error of a device without DC what has it.
func explainDC(t verbs.QPType, err error) error {
	if kernelType(t) == t || !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	return fmt.Errorf("a %v is dynamically connected, as ConnectX adapters can be (mlx5): %w", t, err)
}

// kernelType returns the kernel's type of a QP. Types that a driver alone has are one for the
// kernel, and the driver's part tells them.
func kernelType(t verbs.QPType) verbs.QPType {
	if t == verbs.DCI || t == verbs.DCT {
		return abi.IB_UVERBS_QPT_DRIVER
	}
	return t
}

// nameOfQP returns a QP's name for errors. A DCT has no number yet, nor one of its own while it is closed.
func nameOfQP(t verbs.QPType, num uint32) objectName {
	if t == verbs.DCT {
		return objectName{format: "DCT"}
	}
	return objectName{"QP %d", num}
}

// checkTarget refuses what a DCT does not take. The kernel would, and warn in its log
// (mlx5_ib_modify_dct).
func (q *QP) checkTarget(a *verbs.QPAttr, mask verbs.QPAttrMask) error {
	if q.typ != verbs.DCT {
		return nil
	}
	from := verbs.QPState(q.state.Load())
	to := from
	if mask&verbs.MaskState != 0 {
		to = a.State
	}
	if why := explainRefusal(q.typ, from, to, mask); why != "" {
		return fmt.Errorf("%s: %w", why, syscall.EINVAL)
	}
	return nil
}

// moved notes what a QP has become with Modify: its state, and the number of a DCT.
func (q *QP) moved(s verbs.QPState, mask verbs.QPAttrMask) {
	if n, ok := q.send.(provider.Numberer); ok {
		if num := n.QPNum(); num != 0 {
			q.num.Store(num)
		}
	}
	if mask&verbs.MaskState != 0 {
		q.state.Store(uint32(s))
	}
}

// queryMask returns the attributes that a query asks for: for a DCT those that the kernel has
// (mlx5_ib_dct_query_qp).
func (q *QP) queryMask() verbs.QPAttrMask {
	if q.typ == verbs.DCT {
		return verbs.MaskState | verbs.MaskAccess | verbs.MaskPort | verbs.MaskMinRNRTimer | verbs.MaskAV | verbs.MaskPathMTU | verbs.MaskPKeyIndex
	}
	return verbs.MaskDestQPNum<<1 - 1
}

// StartDC moves a DCI from RESET to RTS, or a DCT from RESET to RTR, on the port of a GID.
//
// A DCT then has its number, [QP.Num]. A program that sends to it needs its [QP.Addr], of which the
// PSN has no meaning, and the key that the DCT was made with, and posts to a DCI:
//
//	ah, err := pd.CreateAH(target.PathFrom(local))
//	wr.To = ah.To(target.QPNum, 0)
//
// Of opt, a DCI has Timeout, RetryCount, RNRRetry and MaxRDAtomic, by default as in
// [ConnectOptions]; SL, TrafficClass, FlowLabel and HopLimit of what it sends are those of the AH.
// A DCT has Access, MinRNRTimer, and SL, TrafficClass, FlowLabel and HopLimit of its answers. Both
// have PathMTU and PKeyIndex; the DCI's PathMTU is that of the messages.
//
// A request to a target that does not exist, has another key, or has been closed completes with
// [verbs.WCRetryExcErr] after Timeout and RetryCount. As with any error, all requests behind it
// are flushed, whichever target they are for. The DCI works again after Modify to RESET, and
// another StartDC. A DCT has no way back: close it.
func (q *QP) StartDC(gid verbs.GIDEntry, opt ConnectOptions) error {
	const op = "start"
	if err := q.obj.enter(op); err != nil {
		return err
	}
	q.obj.exit()
	if q.typ != verbs.DCI && q.typ != verbs.DCT {
		return q.obj.fail(op, fmt.Errorf("a QP of type %v is neither DCI nor DCT: %w", q.typ, syscall.EINVAL))
	}
	port, err := q.pd.ctx.QueryPort(gid.Port)
	if err != nil {
		return err
	}
	if opt.PathMTU == 0 {
		opt.PathMTU = port.ActiveMTU
	}
	// The path of a DCT has no destination, which is different for each initiator. The kernel
	// checks one nevertheless: the DCT's own.
	local := verbs.QPAddr{GID: gid.GID, GIDIndex: gid.Index, Port: gid.Port, LID: port.LID}
	a, err := opt.attrs(local.PathFrom(local))
	if err != nil {
		return q.obj.fail(op, err)
	}
	a.Port, a.SQPSN = uint8(gid.Port), randomPSN()
	if q.typ == verbs.DCT {
		return q.advance(a, verbs.MaskPKeyIndex|verbs.MaskPort|verbs.MaskAccess, verbs.MaskPathMTU|verbs.MaskAV|verbs.MaskMinRNRTimer)
	}
	return q.advance(a, verbs.MaskPKeyIndex|verbs.MaskPort, verbs.MaskPathMTU, retryMasks|verbs.MaskSQPSN)
}
