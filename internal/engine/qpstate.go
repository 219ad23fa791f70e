package engine

import "github.com/goverbs/verbs"

// transition describes which attributes a change of state requires and allows, by type of
// the QP.
type transition struct {
	required, optional map[verbs.QPType]verbs.QPAttrMask
}

type states struct{ from, to verbs.QPState }

const (
	maskPath = verbs.MaskAltPath | verbs.MaskAccess | verbs.MaskPathMigState
	maskInit = verbs.MaskPKeyIndex | verbs.MaskPort | verbs.MaskAccess
	maskUD   = verbs.MaskPKeyIndex | verbs.MaskPort | verbs.MaskQKey
	maskRTR  = verbs.MaskAV | verbs.MaskPathMTU | verbs.MaskDestQPNum | verbs.MaskRQPSN
)

// transitions is the kernel's qp_state_table (drivers/infiniband/core/verbs.c), except the
// transitions to RESET and ERR, which all states but those allow without attributes.
//
//	RESET ─► INIT ─► RTR ─────► RTS ◄─► SQD         SQE ─► RTS
//	                 receives   sends    drains      of UC and UD, after a send that failed
var transitions = map[states]transition{
	{verbs.StateReset, verbs.StateInit}: {
		required: map[verbs.QPType]verbs.QPAttrMask{verbs.UD: maskUD, verbs.UC: maskInit, verbs.RC: maskInit},
	},
	{verbs.StateInit, verbs.StateInit}: {
		optional: map[verbs.QPType]verbs.QPAttrMask{verbs.UD: maskUD, verbs.UC: maskInit, verbs.RC: maskInit},
	},
	{verbs.StateInit, verbs.StateRTR}: {
		required: map[verbs.QPType]verbs.QPAttrMask{
			verbs.UC: maskRTR,
			verbs.RC: maskRTR | verbs.MaskMaxDestRDAtomic | verbs.MaskMinRNRTimer,
		},
		optional: map[verbs.QPType]verbs.QPAttrMask{
			verbs.UD: verbs.MaskPKeyIndex | verbs.MaskQKey,
			verbs.UC: verbs.MaskAltPath | verbs.MaskAccess | verbs.MaskPKeyIndex,
			verbs.RC: verbs.MaskAltPath | verbs.MaskAccess | verbs.MaskPKeyIndex,
		},
	},
	{verbs.StateRTR, verbs.StateRTS}: {
		required: map[verbs.QPType]verbs.QPAttrMask{
			verbs.UD: verbs.MaskSQPSN,
			verbs.UC: verbs.MaskSQPSN,
			verbs.RC: verbs.MaskTimeout | verbs.MaskRetryCount | verbs.MaskRNRRetry | verbs.MaskSQPSN | verbs.MaskMaxRDAtomic,
		},
		optional: running,
	},
	{verbs.StateRTS, verbs.StateRTS}: {optional: running},
	{verbs.StateRTS, verbs.StateSQD}: {
		optional: map[verbs.QPType]verbs.QPAttrMask{
			verbs.UD: verbs.MaskSQDAsyncNotify, verbs.UC: verbs.MaskSQDAsyncNotify, verbs.RC: verbs.MaskSQDAsyncNotify,
		},
	},
	{verbs.StateSQD, verbs.StateRTS}: {optional: running},
	{verbs.StateSQD, verbs.StateSQD}: {
		optional: map[verbs.QPType]verbs.QPAttrMask{
			verbs.UD: verbs.MaskPKeyIndex | verbs.MaskQKey,
			verbs.UC: verbs.MaskAV | verbs.MaskPKeyIndex | maskPath,
			verbs.RC: verbs.MaskPort | verbs.MaskAV | verbs.MaskTimeout | verbs.MaskRetryCount | verbs.MaskRNRRetry |
				verbs.MaskMaxRDAtomic | verbs.MaskMaxDestRDAtomic | verbs.MaskPKeyIndex | verbs.MaskMinRNRTimer | maskPath,
		},
	},
	{verbs.StateSQE, verbs.StateRTS}: {
		optional: map[verbs.QPType]verbs.QPAttrMask{
			verbs.UD: verbs.MaskCurState | verbs.MaskQKey,
			verbs.UC: verbs.MaskCurState | verbs.MaskAccess,
		},
	},
}

// running contains what the transitions to RTS allow.
var running = map[verbs.QPType]verbs.QPAttrMask{
	verbs.UD: verbs.MaskCurState | verbs.MaskQKey,
	verbs.UC: verbs.MaskCurState | maskPath,
	verbs.RC: verbs.MaskCurState | maskPath | verbs.MaskMinRNRTimer,
}

// transitionAllowed is ib_modify_qp_is_ok.
func transitionAllowed(from, to verbs.QPState, typ verbs.QPType, mask verbs.QPAttrMask) bool {
	if mask&verbs.MaskCurState != 0 && (from < verbs.StateRTR || from > verbs.StateSQE) {
		return false
	}
	var t transition
	switch {
	case to == verbs.StateReset && from <= verbs.StateErr, to == verbs.StateErr && from <= verbs.StateErr && from != verbs.StateReset:
	default:
		var ok bool
		if t, ok = transitions[states{from, to}]; !ok {
			return false
		}
	}
	required, optional := t.required[typ], t.optional[typ]
	return mask&required == required && mask&^(required|optional|verbs.MaskState) == 0
}
