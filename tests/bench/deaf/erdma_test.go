//go:build linux

package deaf_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/tests/bench/deaf"
	"github.com/goverbs/verbs/uverbs"
)

// TestErdma posts requests, writes their completions and polls them, several times around the queues.
// With the defaults of package uverbs, the QP has the one SGE of receives that the device has.
func TestErdma(t *testing.T) {
	dev, ctx, err := deaf.OpenErdma("deaf1")
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err) // erdma does not run on this architecture
	}
	labtest.Check(t, err)
	labtest.Close(t, ctx)
	pd := labtest.Made(ctx.AllocPD())(t)
	cq := labtest.Made(ctx.CreateCQ(uverbs.CQOptions{Depth: 64}))(t)
	_, err = pd.CreateQP(uverbs.QPOptions{SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendSGE: 7, MaxRecvSGE: 2}})
	if err == nil || !strings.Contains(err.Error(), "MaxSendSGE 7 of at most 6, MaxRecvSGE 2 of at most 1") {
		t.Error(err)
	}
	qp := labtest.Made(pd.CreateQP(uverbs.QPOptions{SendCQ: cq, RecvCQ: cq}))(t)
	if got := qp.Cap(); got != (verbs.QPCap{MaxSendWR: 64, MaxRecvWR: 64, MaxSendSGE: 2, MaxRecvSGE: 1, MaxInline: 64}) {
		t.Errorf("%+v", got)
	}
	for s := verbs.StateInit; s <= verbs.StateRTS; s++ {
		labtest.Check(t, qp.Modify(verbs.QPAttr{State: s}, verbs.MaskState))
	}
	sends := []verbs.SendWR{
		{ID: 1, Opcode: verbs.OpSend, Flags: verbs.SendSignaled, Inline: make([]byte, 8)},
		{ID: 2, Opcode: verbs.OpSend, Flags: verbs.SendSignaled, SGL: []verbs.SGE{{Length: 8}}},
	}
	recvs := []verbs.RecvWR{{ID: 3, SGL: []verbs.SGE{{Length: 8}}}}
	var wcs [4]verbs.WC
	var sent, received uint16
	if n := testing.AllocsPerRun(300, func() {
		if n := cq.Poll(wcs[:]); n != 0 {
			t.Fatalf("%d completions of an empty CQ", n)
		}
		_, err := qp.PostSend(sends...)
		_, rerr := qp.PostRecv(recvs...)
		if err != nil || rerr != nil {
			t.Fatal(err, rerr)
		}
		dev.CQs[0].Complete(2, false, deaf.ErdmaSend, sent, 1, 0)
		dev.CQs[0].Complete(1, true, deaf.ErdmaRecv, received, 1, 8)
		sent, received = sent+2, received+1
		if n := cq.Poll(wcs[:]); n != 3 || wcs[0].ID != 1 || wcs[1].ID != 2 || wcs[2].ID != 3 || wcs[2].ByteLen != 8 {
			t.Fatalf("%d: %+v", n, wcs[:n])
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	labtest.Check(t, qp.Close(), cq.Close())
}
