//go:build linux

package uverbs_test

import (
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

// TestFencedAgain makes rxe send fenced requests again, because the peer does not accept
// any yet. It would let a fenced READ or atomic wait for itself.
func TestFencedAgain(t *testing.T) {
	labtest.RequireBoth(t)
	rxe := labtest.OpenDevice(t, labtest.RXE)
	for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMARead, verbs.OpFetchAdd, verbs.OpCompareSwap} {
		a, b := labtest.NewPair(t, labtest.PairOptions{Device: labtest.RXE})
		here, there := labtest.Must(a.QP.Addr(1))(t), labtest.Must(b.QP.Addr(1))(t)
		for _, s := range []*labtest.Side{a, b} {
			if err := s.QP.Modify(verbs.QPAttr{State: verbs.StateReset}, verbs.MaskState); err != nil {
				t.Fatal(err)
			}
		}
		if err := a.QP.Connect(here, there, uverbs.ConnectOptions{Access: verbs.AccessAll}); err != nil {
			t.Fatal(err)
		}
		for id := range uint64(2) { // the second waits for the first
			_, err := a.QP.PostSend(verbs.SendWR{
				ID: id, Opcode: op, Flags: verbs.SendSignaled | verbs.SendFence,
				SGL: []verbs.SGE{a.MR.SGE(0, 8)}, RemoteAddr: b.MR.Addr(), RKey: b.MR.RKey(),
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		for before := retries(t, rxe); retries(t, rxe) == before; time.Sleep(10 * time.Millisecond) {
		}
		if err := b.QP.Connect(there, here, uverbs.ConnectOptions{Access: verbs.AccessAll}); err != nil {
			t.Fatal(err)
		}
		for id := range uint64(2) {
			if wc := next(t, a.SendCQ); wc.ID != id {
				t.Errorf("%v: completion %+v, want %d", op, wc, id)
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
