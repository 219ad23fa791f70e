package uverbs

import (
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
)

func TestRefusal(t *testing.T) {
	const s = verbs.MaskState
	for _, test := range []struct {
		typ      verbs.QPType
		from, to verbs.QPState
		mask     verbs.QPAttrMask
		want     string
	}{
		{verbs.RC, verbs.StateReset, verbs.StateInit, s | initMasks[verbs.RC], ""},
		{verbs.RC, verbs.StateReset, verbs.StateInit, s | verbs.MaskPKeyIndex | verbs.MaskAccess, "from RESET to INIT, RC QPs need Port"},
		{verbs.UD, verbs.StateReset, verbs.StateInit, s | initMasks[verbs.RC], "from RESET to INIT, UD QPs need QKey and do not take Access"},
		{abi.IB_UVERBS_QPT_RAW_PACKET, verbs.StateReset, verbs.StateInit, s | verbs.MaskPort, ""}, // what these need is in no table
		{verbs.RC, verbs.StateReset, verbs.StateRTS, s, "a QP in RESET cannot be moved to RTS"},
		{verbs.RC, verbs.StateReset, verbs.StateErr, s, "a QP in RESET cannot be moved to ERR"},
		{verbs.RC, verbs.StateRTS, verbs.StateErr, s, ""},
		{verbs.RC, verbs.StateErr, verbs.StateReset, s | verbs.MaskPort, "from ERR to RESET, RC QPs do not take Port"},
		{verbs.RC, verbs.StateRTS, verbs.StateRTS, verbs.MaskAccess, ""},
		{verbs.RC, verbs.StateSQE, verbs.StateRTS, s | verbs.MaskAccess, "from SQE to RTS, RC QPs do not take Access"},
	} {
		if got := explainRefusal(test.typ, test.from, test.to, test.mask); got != test.want {
			t.Errorf("%v from %v to %v with %v: %q, not %q", test.typ, test.from, test.to, test.mask, got, test.want)
		}
	}
}
