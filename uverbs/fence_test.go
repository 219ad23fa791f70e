//go:build linux

package uverbs_test

import (
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rdmatest"
	"github.com/goverbs/verbs/uverbs"
)

// TestFencedAgain makes rxe send fenced requests again, because the peer does not accept
// any yet. It would let a fenced READ or atomic wait for itself.
func TestFencedAgain(t *testing.T) {
	labtest.RequireBoth(t)
	rxe := labtest.OpenDevice(t, labtest.RXE)
	type pair struct {
		op          verbs.Opcode
		a, b        *rdmatest.Endpoint
		here, there verbs.QPAddr
	}
	var pairs []pair
	// A retry takes more than a second, the last of 7 a machine that is busy.
	opt := uverbs.ConnectOptions{Access: verbs.AccessAll, Timeout: 18, RetryCount: 7}
	before := retries(t, rxe)
	for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMARead, verbs.OpFetchAdd, verbs.OpCompareSwap} {
		a, b := labtest.NewPair(t, labtest.RXE, rdmatest.PairOptions{})
		p := pair{op, a, b, labtest.Must(a.QP.Addr(1))(t), labtest.Must(b.QP.Addr(1))(t)}
		for _, s := range []*rdmatest.Endpoint{a, b} {
			labtest.Check(t, s.QP.Modify(verbs.QPAttr{State: verbs.StateReset}, verbs.MaskState))
		}
		labtest.Check(t, a.QP.Connect(p.here, p.there, opt))
		for id := range uint64(2) { // the second waits for the first
			_, err := a.QP.PostSend(verbs.SendWR{
				ID: id, Opcode: op, Flags: verbs.SendSignaled | verbs.SendFence,
				SGL: []verbs.SGE{a.MR.SGE(0, 8)}, RemoteAddr: b.MR.Addr(), RKey: b.MR.RKey(),
			})
			labtest.Check(t, err)
		}
		pairs = append(pairs, p)
	}
	labtest.Until(t, "each to be sent again", func() bool { return retries(t, rxe) >= before+uint64(len(pairs)) })
	for _, p := range pairs {
		labtest.Check(t, p.b.QP.Connect(p.there, p.here, opt))
	}
	for _, p := range pairs {
		for id := range uint64(2) {
			if wc := next(t, p.a.SendCQ); wc.ID != id {
				t.Errorf("%v: completion %+v, want %d", p.op, wc, id)
			}
		}
	}
}

// retries returns how often rxe got no answer in time.
func retries(t *testing.T, rxe *uverbs.Context) uint64 {
	c, err := rxe.Counters(1)
	if err != nil {
		t.Fatal(err)
	}
	n, ok := c["completer_retry_err"]
	if !ok {
		t.Fatalf("no such counter in %v", c)
	}
	return n
}
