//go:build linux

package deaf_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/tests/bench/deaf"
	"github.com/goverbs/verbs/uverbs"
)

// TestPostAndPoll posts requests, writes their completions and polls them, several times around the
// queues.
func TestPostAndPoll(t *testing.T) {
	for _, single := range []bool{false, true} {
		t.Run(fmt.Sprint("SingleThreaded ", single), func(t *testing.T) {
			dev, ctx, err := deaf.Open("deaf0")
			if errors.Is(err, errors.ErrUnsupported) {
				t.Skip(err) // mlx5 does not run on this architecture
			}
			labtest.Check(t, err)
			labtest.Close(t, ctx)
			pd := labtest.Made(ctx.AllocPD())(t)
			cq := labtest.Made(ctx.CreateCQ(uverbs.CQOptions{Depth: 63, SingleThreaded: single}))(t)
			qp := labtest.Made(pd.CreateQP(uverbs.QPOptions{SendCQ: cq, RecvCQ: cq, SingleThreaded: single, Cap: verbs.QPCap{MaxSendWR: 16, MaxRecvWR: 16, MaxInline: 8}}))(t)
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
			if n := testing.AllocsPerRun(100, func() {
				if n := cq.Poll(wcs[:]); n != 0 {
					t.Fatalf("%d completions of an empty CQ", n)
				}
				_, err := qp.PostSend(sends...)
				_, rerr := qp.PostRecv(recvs...)
				if err != nil || rerr != nil {
					t.Fatal(err, rerr)
				}
				dev.CQs[0].Complete(2, deaf.Request, deaf.Send, sent, 0)
				dev.CQs[0].Complete(1, deaf.Receive, 0, received, 8)
				sent, received = sent+2, received+1
				if n := cq.Poll(wcs[:]); n != 3 || wcs[0].ID != 1 || wcs[1].ID != 2 || wcs[2].ID != 3 || wcs[2].ByteLen != 8 {
					t.Fatalf("%d: %+v", n, wcs[:n])
				}
			}); n != 0 {
				t.Errorf("%v allocations", n)
			}
			labtest.Check(t, qp.Close(), cq.Close())
			if n := cq.Poll(wcs[:]); n != 0 {
				t.Errorf("%d completions of a closed CQ", n)
			}
		})
	}
}
