//go:build linux

package connectx

import (
	"bytes"

	"github.com/goverbs/verbs"
)

// transition is a command that changes a QP's state.
type transition struct {
	from, to verbs.QPState
	any      bool    // from any state
	takes    []field // of the context, always
	takesRC  []field // of RC alone
	optional uint64  // bits of opt_param_mask that it knows
}

// optional are the fields that a bit of opt_param_mask selects.
var optional = map[uint64][]field{
	optparRre: {qpcRre}, optparRae: {qpcRae, qpcAtomicMode}, optparRwe: {qpcRwe},
	optparPkeyIndex: {inPath(adsPkeyIndex)}, optparQKey: {qpcQKey}, optparRnrTimeout: {qpcMinRnrNak},
	optparPrimaryAddrPath: {qpcPrimaryAddressPath}, optparAltAddrPath: {qpcSecondaryAddressPath},
	optparSraMax: {qpcLogSraMax}, optparRraMax: {qpcLogRraMax}, optparPmState: {qpcPmState},
	optparRetryCount: {qpcRetryCount}, optparRnrRetry: {qpcRnrRetry}, optparAckTimeout: {inPath(adsAckTimeout)},
	optparPriPort: {inPath(adsVhcaPortNum)}, optparCounterSetId: {qpcCounterSetId},
	optparLagTxAff: {qpcLagTxPortAffinity}, optparPpIndex: {qpcPacketPacingRateLimitIndex},
}

const (
	optparRights = optparRre | optparRae | optparRwe
	optparUsual  = optparRights | optparPmState | optparRnrTimeout | optparAltAddrPath | optparQKey | optparCounterSetId | optparLagTxAff | optparPpIndex
)

// inPath returns the place in the context of a field of its primary path.
func inPath(f field) field { return field(uint32(qpcPrimaryAddressPath)&^0xffff + uint32(f)) }

// transitions are the commands, with what the kernel's __mlx5_ib_modify_qp gives them.
var transitions = map[uint16]transition{
	opRst2initQp: {
		from: verbs.StateReset, to: verbs.StateInit, optional: optparUsual | optparPkeyIndex | optparPriPort,
		takes: []field{qpcPmState, inPath(adsPkeyIndex), inPath(adsVhcaPortNum), qpcQKey, qpcRre, qpcRwe, qpcRae, qpcAtomicMode, qpcCounterSetId},
	},
	opInit2initQp: {from: verbs.StateInit, to: verbs.StateInit, optional: optparUsual | optparPkeyIndex | optparPriPort},
	opInit2rtrQp: {
		from: verbs.StateInit, to: verbs.StateRTR, optional: optparUsual | optparPkeyIndex | optparRraMax,
		takes: []field{
			inPath(adsGrh), inPath(adsMlid), inPath(adsRlid), inPath(adsSrcAddrIndex), inPath(adsStatRate), inPath(adsHopLimit),
			inPath(adsTclass), inPath(adsFlowLabel), inPath(adsRgidRip), inPath(adsDscp), inPath(adsUdpSport), inPath(adsEthPrio), inPath(adsSl),
			inPath(adsRmac4732), inPath(adsRmac310), qpcMtu, qpcLogMsgMax, qpcRemoteQpn, qpcNextRcvPsn,
		},
		takesRC: []field{qpcLogRraMax, qpcMinRnrNak},
	},
	opRtr2rtsQp: {
		from: verbs.StateRTR, to: verbs.StateRTS, optional: optparUsual | optparSraMax | optparRetryCount | optparRnrRetry | optparAckTimeout,
		takes:   []field{qpcNextSendPsn},
		takesRC: []field{qpcLogSraMax, qpcRetryCount, qpcRnrRetry, qpcLogAckReqFreq, inPath(adsAckTimeout)},
	},
	opRts2rtsQp:   {from: verbs.StateRTS, to: verbs.StateRTS, optional: optparUsual},
	opSqerr2rtsQp: {from: verbs.StateSQE, to: verbs.StateRTS, optional: optparUsual},
	op2errQp:      {any: true, to: verbs.StateErr},
	op2rstQp:      {any: true, to: verbs.StateReset},
}

var transitionCommands = func() map[uint16]func(*qpTable, *call) status {
	all := map[uint16]func(*qpTable, *call) status{}
	for op := range transitions { // all have the QP's number at the same place
		all[op] = on(qps, rst2initQpInQpn, (*qp).modify)
	}
	return all
}()

// modify executes a transition. All of them have the mask and the context at the same places; those
// to the error and reset states have neither.
func (q *qp) modify(c *call) status {
	t := transitions[c.op]
	now := q.e.Query().State
	if !t.any && now != t.from || t.to == verbs.StateErr && now == verbs.StateReset {
		return statusBadQpStateErr
	}
	next := bytes.Clone(q.context)
	var mask uint64
	if !t.any {
		in := rst2initQpInQpc.at(c.in)
		mask = rst2initQpInOptParamMask.get(c.in)
		if mask&^t.optional != 0 {
			return statusBadParamErr
		}
		fields := t.takes
		if q.st == qpTypeRc {
			fields = append(fields[:len(fields):len(fields)], t.takesRC...)
		}
		for bit, f := range optional {
			if mask&bit != 0 {
				fields = append(fields[:len(fields):len(fields)], f...)
			}
		}
		for _, f := range fields {
			f.copy(next, in)
		}
	}
	attr, known := q.attributes(next, t, mask)
	q.sq.qkey.Store(attr.QKey)
	if err := q.e.Modify(attr, known); err != nil {
		return statusBadParamErr
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
	return statusOk
}

var qpRights = rights{qpcRre: verbs.AccessRemoteRead, qpcRwe: verbs.AccessRemoteWrite, qpcRae: verbs.AccessRemoteAtomic}

// attributes returns what a transition changes, as the engine has it.
func (q *qp) attributes(ctx []byte, t transition, mask uint64) (*verbs.QPAttr, verbs.QPAttrMask) {
	path := qpcPrimaryAddressPath.at(ctx)
	a := &verbs.QPAttr{
		State: t.to, Port: 1, QKey: qpcQKey.u32(ctx), PathMTU: verbs.MTU(qpcMtu.get(ctx)),
		DestQPNum: qpcRemoteQpn.u32(ctx), RQPSN: qpcNextRcvPsn.u32(ctx), SQPSN: qpcNextSendPsn.u32(ctx),
		MaxDestRDAtomic: 1 << qpcLogRraMax.get(ctx), MaxRDAtomic: 1 << qpcLogSraMax.get(ctx),
		MinRNRTimer: uint8(qpcMinRnrNak.get(ctx)), RetryCount: uint8(qpcRetryCount.get(ctx)), RNRRetry: uint8(qpcRnrRetry.get(ctx)),
		Timeout: uint8(adsAckTimeout.get(path)), Access: qpRights.of(ctx),
	}
	if q.st == qpTypeQp1 {
		a.QKey = gsiQKey
	}
	known := verbs.MaskState
	if t.any {
		return a, known
	}
	rc, ud := q.st == qpTypeRc, engineTypes[q.st] == verbs.UD
	if !ud && mask&optparRights != 0 {
		known |= verbs.MaskAccess
	}
	if rc && mask&optparRnrTimeout != 0 && t.from != verbs.StateInit {
		known |= verbs.MaskMinRNRTimer
	}
	if ud && mask&optparQKey != 0 {
		known |= verbs.MaskQKey
	}
	switch {
	case t.to == verbs.StateInit && ud:
		known |= verbs.MaskPKeyIndex | verbs.MaskPort | verbs.MaskQKey
	case t.to == verbs.StateInit:
		known |= verbs.MaskPKeyIndex | verbs.MaskPort | verbs.MaskAccess
	case t.to == verbs.StateRTR && !ud:
		a.AV = q.t.paths.vector(adsRgidRip.at(path), uint16(adsRlid.get(path)), adsGrh.is(path), uint8(adsSrcAddrIndex.get(path)), uint8(adsTclass.get(path)), uint8(adsHopLimit.get(path)))
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
