//go:build linux

package uverbs

import (
	"errors"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/provider"
)

// TestDoorbellRefused posts to a QP that, as only the kernel knows, accepts no requests:
// they count as posted and complete as flushed.
func TestDoorbellRefused(t *testing.T) {
	qp, _ := newDoorbellQP(t)
	if _, ok := qp.send.(provider.Flusher); !ok {
		t.Skip("siw takes requests back")
	}
	for _, req := range []abi.IbUverbsModifyQp{
		{AttrMask: uint32(verbs.MaskState), QpState: uint8(verbs.StateReset)},
		{AttrMask: uint32(verbs.MaskState | verbs.MaskPKeyIndex | verbs.MaskPort | verbs.MaskAccess), QpState: uint8(verbs.StateInit), PortNum: 1},
	} {
		req.QpHandle = qp.handle
		if err := qp.pd.ctx.file.Invoke(abi.IB_USER_VERBS_CMD_MODIFY_QP, mmap.Bytes(&req), nil, nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	wrs := []verbs.SendWR{{ID: 1, Opcode: verbs.OpSend}, {ID: 2, Opcode: verbs.OpSend}}
	for round := range 2 {
		if n, err := qp.PostSend(wrs...); n != len(wrs) || err != nil {
			t.Fatalf("round %d: posted %d: %v", round, n, err)
		}
		for i, deadline := 0, time.Now().Add(10*time.Second); i < len(wrs); {
			var wc [1]verbs.WC
			if qp.sendCQ.Poll(wc[:]) == 0 {
				if time.Now().After(deadline) {
					t.Fatalf("round %d: %d completions, not %d", round, i, len(wrs))
				}
				continue
			}
			if err := wc[0].Err(); wc[0].ID != wrs[i].ID || !errors.Is(err, verbs.WCFlushErr) {
				t.Errorf("round %d: request %d completed as %d: %v", round, wrs[i].ID, wc[0].ID, err)
			}
			i++
		}
	}
}
