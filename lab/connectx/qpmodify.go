//go:build linux

package connectx

import (
	"bytes"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/lab/connectx/internal/ifc"
)

// transition is a command that changes a QP's state.
type transition struct {
	from, to verbs.QPState
	any      bool        // from any state
	takes    []ifc.Field // fields of the context that it always sets
	takesRC  []ifc.Field // and those that it sets for RC alone
	optional uint64      // bits of opt_param_mask that it accepts
}

// optional are the fields that each bit of opt_param_mask selects.
var optional = map[uint64][]ifc.Field{
	ifc.OptparRre: {ifc.QpcRre}, ifc.OptparRae: {ifc.QpcRae, ifc.QpcAtomicMode}, ifc.OptparRwe: {ifc.QpcRwe},
	ifc.OptparPkeyIndex: {inPath(ifc.AdsPkeyIndex)}, ifc.OptparQKey: {ifc.QpcQKey}, ifc.OptparRnrTimeout: {ifc.QpcMinRnrNak},
	ifc.OptparPrimaryAddrPath: {ifc.QpcPrimaryAddressPath}, ifc.OptparAltAddrPath: {ifc.QpcSecondaryAddressPath},
	ifc.OptparSraMax: {ifc.QpcLogSraMax}, ifc.OptparRraMax: {ifc.QpcLogRraMax}, ifc.OptparPmState: {ifc.QpcPmState},
	ifc.OptparRetryCount: {ifc.QpcRetryCount}, ifc.OptparRnrRetry: {ifc.QpcRnrRetry}, ifc.OptparAckTimeout: {inPath(ifc.AdsAckTimeout)},
	ifc.OptparPriPort: {inPath(ifc.AdsVhcaPortNum)}, ifc.OptparCounterSetId: {ifc.QpcCounterSetId},
	ifc.OptparLagTxAff: {ifc.QpcLagTxPortAffinity}, ifc.OptparPpIndex: {ifc.QpcPacketPacingRateLimitIndex},
}

const (
	optparRights = ifc.OptparRre | ifc.OptparRae | ifc.OptparRwe
	optparUsual  = optparRights | ifc.OptparPmState | ifc.OptparRnrTimeout | ifc.OptparAltAddrPath | ifc.OptparQKey | ifc.OptparCounterSetId | ifc.OptparLagTxAff | ifc.OptparPpIndex
)

// inPath returns the place in the context of a field of its primary path, struct mlx5_ifc_ads_bits.
func inPath(f ifc.Field) ifc.Field {
	return f.In(ifc.QpcPrimaryAddressPath)
}

// transitions are the commands. They take the fields that the InfiniBand Architecture requires and
// allows for each transition (vol. 1, Modify Queue Pair), which mlx5_ib's __mlx5_ib_modify_qp fills in:
// its opt_mask has the optional ones.
var transitions = map[uint16]transition{
	ifc.OpRst2initQp: {
		from: verbs.StateReset, to: verbs.StateInit, optional: optparUsual | ifc.OptparPkeyIndex | ifc.OptparPriPort,
		takes: []ifc.Field{ifc.QpcPmState, inPath(ifc.AdsPkeyIndex), inPath(ifc.AdsVhcaPortNum), ifc.QpcQKey, ifc.QpcRre, ifc.QpcRwe, ifc.QpcRae, ifc.QpcAtomicMode, ifc.QpcCounterSetId},
	},
	ifc.OpInit2initQp: {from: verbs.StateInit, to: verbs.StateInit, optional: optparUsual | ifc.OptparPkeyIndex | ifc.OptparPriPort},
	ifc.OpInit2rtrQp: {
		from: verbs.StateInit, to: verbs.StateRTR, optional: optparUsual | ifc.OptparPkeyIndex | ifc.OptparRraMax,
		takes: []ifc.Field{
			inPath(ifc.AdsGrh), inPath(ifc.AdsMlid), inPath(ifc.AdsRlid), inPath(ifc.AdsSrcAddrIndex), inPath(ifc.AdsStatRate), inPath(ifc.AdsHopLimit),
			inPath(ifc.AdsTclass), inPath(ifc.AdsFlowLabel), inPath(ifc.AdsRgidRip), inPath(ifc.AdsDscp), inPath(ifc.AdsUdpSport), inPath(ifc.AdsEthPrio), inPath(ifc.AdsSl),
			inPath(ifc.AdsRmac4732), inPath(ifc.AdsRmac310), ifc.QpcMtu, ifc.QpcLogMsgMax, ifc.QpcRemoteQpn, ifc.QpcNextRcvPsn,
		},
		takesRC: []ifc.Field{ifc.QpcLogRraMax, ifc.QpcMinRnrNak},
	},
	ifc.OpRtr2rtsQp: {
		from: verbs.StateRTR, to: verbs.StateRTS, optional: optparUsual | ifc.OptparSraMax | ifc.OptparRetryCount | ifc.OptparRnrRetry | ifc.OptparAckTimeout,
		takes:   []ifc.Field{ifc.QpcNextSendPsn},
		takesRC: []ifc.Field{ifc.QpcLogSraMax, ifc.QpcRetryCount, ifc.QpcRnrRetry, ifc.QpcLogAckReqFreq, inPath(ifc.AdsAckTimeout)},
	},
	ifc.OpRts2rtsQp:   {from: verbs.StateRTS, to: verbs.StateRTS, optional: optparUsual},
	ifc.OpSqerr2rtsQp: {from: verbs.StateSQE, to: verbs.StateRTS, optional: optparUsual},
	ifc.Op2errQp:      {any: true, to: verbs.StateErr},
	ifc.Op2rstQp:      {any: true, to: verbs.StateReset},
}

var transitionCommands = func() map[uint16]func(*qpTable, *call) ifc.Status {
	all := map[uint16]func(*qpTable, *call) ifc.Status{}
	for op := range transitions { // which all have the QP's number at one place
		all[op] = on((*qpTable).table, ifc.Rst2initQpInQpn, (*qp).modify)
	}
	return all
}()

// modify executes a transition. All commands have the mask and the context at the same places, but
// those to the error and reset states have neither.
func (q *qp) modify(c *call) ifc.Status {
	t := transitions[c.op]
	now := q.e.Query().State
	if !t.any && now != t.from || t.to == verbs.StateErr && now == verbs.StateReset {
		return ifc.StatusBadQpStateErr
	}
	next := bytes.Clone(q.context)
	var mask uint64
	if !t.any {
		in := ifc.Rst2initQpInQpc.At(c.in)
		mask = ifc.Rst2initQpInOptParamMask.Get(c.in)
		if mask&^t.optional != 0 {
			return ifc.StatusBadParamErr
		}
		fields := t.takes
		if engineTypes[q.st] == verbs.RC {
			fields = append(fields[:len(fields):len(fields)], t.takesRC...)
		}
		for bit, f := range optional {
			if mask&bit != 0 {
				fields = append(fields[:len(fields):len(fields)], f...)
			}
		}
		for _, f := range fields {
			f.Copy(next, in)
		}
	}
	// What the peer offers comes with any of these commands, at the same place: librdmacm agrees when
	// it makes the QP or, as a client, before INIT2INIT; ibv_set_ece(3) says before RTR.
	if !t.any && ifc.Rst2initQpInEce.Is(c.in) {
		ifc.Rst2initQpOutEce.Set(c.out, ifc.Rst2initQpInEce.Get(c.in)&extensions)
	}
	attr, known := q.attributes(next, t, mask)
	q.sq.qkey.Store(attr.QKey)
	if err := q.e.Modify(attr, known); err != nil {
		return ifc.StatusBadParamErr
	}
	q.context = next
	switch t.to {
	case verbs.StateReset:
		q.sq.reset()
		q.rq.taken = 0
		q.overrun.Store(false)
	case verbs.StateErr:
		q.failed()
	}
	return ifc.StatusOk
}

var qpRights = rights{ifc.QpcRre: verbs.AccessRemoteRead, ifc.QpcRwe: verbs.AccessRemoteWrite, ifc.QpcRae: verbs.AccessRemoteAtomic}

// attributes returns the attributes that a transition changes, as the engine has them.
func (q *qp) attributes(ctx []byte, t transition, mask uint64) (*verbs.QPAttr, verbs.QPAttrMask) {
	path := ifc.QpcPrimaryAddressPath.At(ctx)
	a := &verbs.QPAttr{
		State: t.to, Port: 1, QKey: ifc.QpcQKey.U32(ctx), PathMTU: verbs.MTU(ifc.QpcMtu.Get(ctx)),
		DestQPNum: ifc.QpcRemoteQpn.U32(ctx), RQPSN: ifc.QpcNextRcvPsn.U32(ctx), SQPSN: ifc.QpcNextSendPsn.U32(ctx),
		MaxDestRDAtomic: 1 << ifc.QpcLogRraMax.Get(ctx), MaxRDAtomic: 1 << ifc.QpcLogSraMax.Get(ctx),
		MinRNRTimer: uint8(ifc.QpcMinRnrNak.Get(ctx)), RetryCount: uint8(ifc.QpcRetryCount.Get(ctx)), RNRRetry: uint8(ifc.QpcRnrRetry.Get(ctx)),
		Timeout: uint8(ifc.AdsAckTimeout.Get(path)), Access: qpRights.of(ctx),
	}
	if q.st == ifc.QpTypeQp1 {
		a.QKey = gsiQKey
	}
	// The engine checks that a transition has the attributes that the InfiniBand Architecture requires.
	// The driver's mask names the optional ones alone.
	known := verbs.MaskState
	if t.any {
		return a, known
	}
	rc, ud := engineTypes[q.st] == verbs.RC, engineTypes[q.st] == verbs.UD
	if !ud && mask&optparRights != 0 {
		known |= verbs.MaskAccess
	}
	if rc && mask&ifc.OptparRnrTimeout != 0 && t.from != verbs.StateInit {
		known |= verbs.MaskMinRNRTimer
	}
	if ud && mask&ifc.OptparQKey != 0 {
		known |= verbs.MaskQKey
	}
	switch {
	case t.to == verbs.StateInit && ud:
		known |= verbs.MaskPKeyIndex | verbs.MaskPort | verbs.MaskQKey
	case t.to == verbs.StateInit:
		known |= verbs.MaskPKeyIndex | verbs.MaskPort | verbs.MaskAccess
	case t.to == verbs.StateRTR && q.st == ifc.QpTypeDci: // it has a path when it sends
		known |= verbs.MaskPathMTU | verbs.MaskMaxDestRDAtomic | verbs.MaskMinRNRTimer
	case t.to == verbs.StateRTR && !ud:
		a.AV = q.t.paths.vector(ifc.AdsRgidRip.At(path), uint16(ifc.AdsRlid.Get(path)), ifc.AdsGrh.Is(path), uint8(ifc.AdsSrcAddrIndex.Get(path)), uint8(ifc.AdsTclass.Get(path)), uint8(ifc.AdsHopLimit.Get(path)))
		known |= verbs.MaskAV | verbs.MaskPathMTU | verbs.MaskDestQPNum | verbs.MaskRQPSN
		if rc {
			known |= verbs.MaskMaxDestRDAtomic | verbs.MaskMinRNRTimer
		}
	case t.from == verbs.StateRTR:
		known |= verbs.MaskSQPSN
		if rc {
			known |= verbs.MaskTimeout | verbs.MaskRetryCount | verbs.MaskRNRRetry | verbs.MaskMaxRDAtomic
		}
	}
	return a, known
}
