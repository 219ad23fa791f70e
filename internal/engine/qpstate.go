package engine

import "github.com/goverbs/verbs"

// masks are attributes by type of the QP.
type masks struct{ ud, uc, rc verbs.QPAttrMask }

func (m *masks) of(t verbs.QPType) verbs.QPAttrMask {
	switch t {
	case verbs.UD:
		return m.ud
	case verbs.UC:
		return m.uc
	}
	return m.rc
}

type states struct{ from, to verbs.QPState }

const (
	maskPath  = verbs.MaskAltPath | verbs.MaskAccess | verbs.MaskPathMigState
	maskInit  = verbs.MaskPKeyIndex | verbs.MaskPort | verbs.MaskAccess
	maskUD    = verbs.MaskPKeyIndex | verbs.MaskPort | verbs.MaskQKey
	maskRTR   = verbs.MaskAV | verbs.MaskPathMTU | verbs.MaskDestQPNum | verbs.MaskRQPSN
	maskToRTR = verbs.MaskAltPath | verbs.MaskAccess | verbs.MaskPKeyIndex
)

// transitions has the attributes that a change of state requires and allows: the kernel's
// qp_state_table (drivers/infiniband/core/verbs.c), except the transitions to RESET and ERR, which
// need none.
//
//	RESET ─► INIT ─► RTR ─────► RTS ◄─► SQD         SQE ─► RTS
//	                 receives   sends    drains      of UC and UD, after a send that failed
var transitions = map[states]struct{ required, optional masks }{
	{verbs.StateReset, verbs.StateInit}: {required: masks{maskUD, maskInit, maskInit}},
	{verbs.StateInit, verbs.StateInit}:  {optional: masks{maskUD, maskInit, maskInit}},
	{verbs.StateInit, verbs.StateRTR}: {
		required: masks{0, maskRTR, maskRTR | verbs.MaskMaxDestRDAtomic | verbs.MaskMinRNRTimer},
		optional: masks{verbs.MaskPKeyIndex | verbs.MaskQKey, maskToRTR, maskToRTR},
	},
	{verbs.StateRTR, verbs.StateRTS}: {
		required: masks{
			verbs.MaskSQPSN, verbs.MaskSQPSN,
			verbs.MaskTimeout | verbs.MaskRetryCount | verbs.MaskRNRRetry | verbs.MaskSQPSN | verbs.MaskMaxRDAtomic,
		},
		optional: running,
	},
	{verbs.StateRTS, verbs.StateRTS}: {optional: running},
	{verbs.StateRTS, verbs.StateSQD}: {optional: masks{verbs.MaskSQDAsyncNotify, verbs.MaskSQDAsyncNotify, verbs.MaskSQDAsyncNotify}},
	{verbs.StateSQD, verbs.StateRTS}: {optional: running},
	{verbs.StateSQD, verbs.StateSQD}: {optional: masks{
		verbs.MaskPKeyIndex | verbs.MaskQKey,
		verbs.MaskAV | verbs.MaskPKeyIndex | maskPath,
		verbs.MaskPort | verbs.MaskAV | verbs.MaskTimeout | verbs.MaskRetryCount | verbs.MaskRNRRetry |
			verbs.MaskMaxRDAtomic | verbs.MaskMaxDestRDAtomic | verbs.MaskPKeyIndex | verbs.MaskMinRNRTimer | maskPath,
	}},
	{verbs.StateSQE, verbs.StateRTS}: {
		optional: masks{ud: verbs.MaskCurState | verbs.MaskQKey, uc: verbs.MaskCurState | verbs.MaskAccess},
	},
}

// running are the attributes that the transitions to RTS allow.
var running = masks{
	verbs.MaskCurState | verbs.MaskQKey,
	verbs.MaskCurState | maskPath,
	verbs.MaskCurState | maskPath | verbs.MaskMinRNRTimer,
}

// transitionAllowed is ib_modify_qp_is_ok.
func transitionAllowed(from, to verbs.QPState, typ verbs.QPType, mask verbs.QPAttrMask) bool {
	if mask&verbs.MaskCurState != 0 && (from < verbs.StateRTR || from > verbs.StateSQE) {
		return false
	}
	t, ok := transitions[states{from, to}]
	ends := to == verbs.StateReset || to == verbs.StateErr && from != verbs.StateReset
	if !ok && (!ends || from > verbs.StateErr) {
		return false
	}
	required, optional := t.required.of(typ), t.optional.of(typ)
	return mask&required == required && mask&^(required|optional|verbs.MaskState) == 0
}
