package ibcm

import (
	"syscall"

	"github.com/goverbs/verbs"
)

// QPAttr returns the attributes with which the connection's QP moves to a state, INIT, RTR or RTS.
// It fails with EINVAL (ib_cm_init_qp_attr). RTR needs the peer's QP and first PSN, so the active
// side can leave INIT only after the REP; RTS needs this side's first PSN.
func (id *ID) QPAttr(state verbs.QPState) (verbs.QPAttr, verbs.QPAttrMask, error) {
	requested := id.state == RequestSent || id.state == MRARequestRcvd
	if !requested && (id.state < RequestRcvd || id.state > Established) {
		return verbs.QPAttr{}, 0, syscall.EINVAL
	}
	attr := verbs.QPAttr{State: state}
	switch {
	case state == verbs.StateInit:
		attr.Port = 1
		// A QP that serves no READs and atomics grants no right to them.
		attr.Access = verbs.AccessRemoteWrite
		if id.responderResources > 0 {
			attr.Access |= verbs.AccessRemoteRead | verbs.AccessRemoteAtomic
			if id.device.flush {
				attr.Access |= verbs.AccessFlushGlobal | verbs.AccessFlushPersistent
			}
		}
		return attr, verbs.MaskState | verbs.MaskAccess | verbs.MaskPKeyIndex | verbs.MaskPort, nil
	case state == verbs.StateRTR && !requested:
		attr.AV, attr.PathMTU, attr.DestQPNum, attr.RQPSN = id.av.AddressVector, id.mtu, id.peerQP, id.rqPSN
		mask := verbs.MaskState | verbs.MaskAV | verbs.MaskPathMTU | verbs.MaskDestQPNum | verbs.MaskRQPSN
		if id.qpType == verbs.RC {
			attr.MaxDestRDAtomic = id.responderResources
			mask |= verbs.MaskMaxDestRDAtomic | verbs.MaskMinRNRTimer
		}
		return attr, mask, nil
	case state == verbs.StateRTS && !requested:
		attr.SQPSN = id.sqPSN
		mask := verbs.MaskState | verbs.MaskSQPSN
		if id.qpType == verbs.RC {
			attr.RetryCount, attr.RNRRetry, attr.MaxRDAtomic = id.retryCount, id.rnrRetryCount, id.initiatorDepth
			attr.Timeout = id.av.timeout
			mask |= verbs.MaskRetryCount | verbs.MaskRNRRetry | verbs.MaskMaxRDAtomic | verbs.MaskTimeout
		}
		return attr, mask, nil
	}
	return verbs.QPAttr{}, 0, syscall.EINVAL
}
