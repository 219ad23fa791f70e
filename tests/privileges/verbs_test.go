package privileges

import (
	"context"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rdmatest"
	"github.com/goverbs/verbs/uverbs"
)

// TestVerbs uses objects created before a change of credentials, with events, and creates
// and destroys others afterwards.
func TestVerbs(t *testing.T) {
	inChild(t, func(t *testing.T, device string) {
		a, b := labtest.NewPair(t, device, rdmatest.PairOptions{Events: true})
		exchange(t, a, b)
		dropPrivileges(t)
		for range 3 {
			for range 20 {
				exchange(t, a, b)
			}
			t.Run("more", func(t *testing.T) {
				c, d := labtest.NewPair(t, device, rdmatest.PairOptions{Events: true, SRQ: labtest.Has(t, device, uverbs.FeatureSRQ)})
				exchange(t, c, d)
			})
			setCredentials(t)
		}
	})
}

// exchange sends a message and waits for the events of both completions.
func exchange(t *testing.T, a, b *rdmatest.Endpoint) {
	t.Helper()
	for _, cq := range []*uverbs.CQ{a.SendCQ, b.RecvCQ} {
		labtest.Check(t, cq.Arm(false))
	}
	labtest.Must(b.PostRecv(verbs.RecvWR{SGL: []verbs.SGE{b.MR.SGE(0, 16)}}))(t)
	labtest.Must(a.QP.PostSend(verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled, SGL: []verbs.SGE{a.MR.SGE(0, 16)}}))(t)
	for _, cq := range []*uverbs.CQ{a.SendCQ, b.RecvCQ} {
		next(t, within(t), cq)
	}
}

// next waits for the event of an armed CQ and polls its completion.
func next(t *testing.T, ctx context.Context, cq *uverbs.CQ) {
	t.Helper()
	labtest.Check(t, cq.Wait(ctx))
	var wc [1]verbs.WC
	if n := cq.Poll(wc[:]); n != 1 || wc[0].Err() != nil {
		t.Fatal(n, wc[0].Err())
	}
}
