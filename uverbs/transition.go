package uverbs

import (
	"fmt"

	"github.com/goverbs/verbs"
)

// transition has the attributes that a change of state requires and accepts, besides the state
// itself, by transport: the kernel's qp_state_table (drivers/infiniband/core/verbs.c), and for DC
// what mlx5 has in its place (modify_dci_qp_is_ok, mlx5_ib_modify_dct).
type transition struct{ required, optional masks }

type masks map[verbs.QPType]verbs.QPAttrMask

const (
	pathMasks  = verbs.MaskAV | verbs.MaskPathMTU | verbs.MaskDestQPNum | verbs.MaskRQPSN
	retryMasks = verbs.MaskTimeout | verbs.MaskRetryCount | verbs.MaskRNRRetry | verbs.MaskMaxRDAtomic
	altMasks   = verbs.MaskAltPath | verbs.MaskAccess | verbs.MaskPathMigState
)

var (
	initMasks = masks{
		verbs.RC: verbs.MaskPKeyIndex | verbs.MaskPort | verbs.MaskAccess,
		verbs.UC: verbs.MaskPKeyIndex | verbs.MaskPort | verbs.MaskAccess,
		verbs.UD: verbs.MaskPKeyIndex | verbs.MaskPort | verbs.MaskQKey,

		verbs.DCI: verbs.MaskPKeyIndex | verbs.MaskPort,
		verbs.DCT: verbs.MaskPKeyIndex | verbs.MaskPort | verbs.MaskAccess,
	}
	rtsMasks = masks{
		verbs.RC: verbs.MaskCurState | altMasks | verbs.MaskMinRNRTimer,
		verbs.UC: verbs.MaskCurState | altMasks,
		verbs.UD: verbs.MaskCurState | verbs.MaskQKey,

		verbs.DCI: verbs.MaskMinRNRTimer,
	}
	sqdMasks = masks{verbs.RC: verbs.MaskSQDAsyncNotify, verbs.UC: verbs.MaskSQDAsyncNotify, verbs.UD: verbs.MaskSQDAsyncNotify}
)

// transitions contains those that exist, except from any state to RESET, and from any but
// RESET to ERR.
var transitions = map[[2]verbs.QPState]transition{
	{verbs.StateReset, verbs.StateInit}: {required: initMasks},
	{verbs.StateInit, verbs.StateInit}:  {optional: initMasks},
	{verbs.StateInit, verbs.StateRTR}: {
		required: masks{
			verbs.RC: pathMasks | verbs.MaskMaxDestRDAtomic | verbs.MaskMinRNRTimer, verbs.UC: pathMasks,
			verbs.DCI: verbs.MaskPathMTU, verbs.DCT: verbs.MaskPathMTU | verbs.MaskAV | verbs.MaskMinRNRTimer,
		},
		optional: masks{
			verbs.RC: verbs.MaskAltPath | verbs.MaskAccess | verbs.MaskPKeyIndex,
			verbs.UC: verbs.MaskAltPath | verbs.MaskAccess | verbs.MaskPKeyIndex,
			verbs.UD: verbs.MaskPKeyIndex | verbs.MaskQKey,

			verbs.DCI: verbs.MaskPKeyIndex | verbs.MaskAV,
		},
	},
	{verbs.StateRTR, verbs.StateRTS}: {
		required: masks{
			verbs.RC: retryMasks | verbs.MaskSQPSN, verbs.UC: verbs.MaskSQPSN, verbs.UD: verbs.MaskSQPSN,
			verbs.DCI: retryMasks | verbs.MaskSQPSN,
		},
		optional: rtsMasks,
	},
	{verbs.StateRTS, verbs.StateRTS}: {optional: rtsMasks},
	{verbs.StateRTS, verbs.StateSQD}: {optional: sqdMasks},
	{verbs.StateSQD, verbs.StateRTS}: {optional: rtsMasks},
	{verbs.StateSQD, verbs.StateSQD}: {optional: masks{
		verbs.RC: verbs.MaskPort | verbs.MaskAV | retryMasks | verbs.MaskMaxDestRDAtomic | altMasks | verbs.MaskPKeyIndex | verbs.MaskMinRNRTimer,
		verbs.UC: verbs.MaskAV | altMasks | verbs.MaskPKeyIndex,
		verbs.UD: verbs.MaskPKeyIndex | verbs.MaskQKey,
	}},
	{verbs.StateSQE, verbs.StateRTS}: {optional: masks{
		verbs.UC: verbs.MaskCurState | verbs.MaskAccess,
		verbs.UD: verbs.MaskCurState | verbs.MaskQKey,
	}},
}

// explainRefusal returns why the kernel refuses to modify a QP in this way, or "" if the
// reason is not known.
func explainRefusal(typ verbs.QPType, from, to verbs.QPState, mask verbs.QPAttrMask) string {
	t, ok := transitions[[2]verbs.QPState{from, to}]
	if to > verbs.StateRTS && to < verbs.StateErr && typ == verbs.DCI {
		return fmt.Sprintf("a DCI cannot be moved to %v", to)
	}
	if typ == verbs.DCT && (from > verbs.StateInit || to != from+1) {
		return fmt.Sprintf("a DCT in %v cannot be moved to %v: it goes from RESET to INIT and RTR, and stays there until Close", from, to)
	}
	if !ok && to != verbs.StateReset && (to != verbs.StateErr || from == verbs.StateReset) {
		return fmt.Sprintf("a QP in %v cannot be moved to %v", from, to)
	}
	if _, ok := initMasks[typ]; !ok {
		return ""
	}
	missing := t.required[typ] &^ mask
	forbidden := mask &^ (t.required[typ] | t.optional[typ] | verbs.MaskState)
	step := fmt.Sprintf("from %v to %v", from, to)
	switch {
	case missing != 0 && forbidden != 0:
		return fmt.Sprintf("%s, %v QPs need %v and do not take %v", step, typ, missing, forbidden)
	case missing != 0:
		return fmt.Sprintf("%s, %v QPs need %v", step, typ, missing)
	case forbidden != 0:
		return fmt.Sprintf("%s, %v QPs do not take %v", step, typ, forbidden)
	}
	return ""
}
