//go:build linux

package uverbs_test

import (
	"errors"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rdmatest"
	"github.com/goverbs/verbs/uverbs"
)

// TestFlush posts requests to a QP before and after it is moved to the error state: all
// are flushed, in order, so that a program can wait for the last.
func TestFlush(t *testing.T) {
	labtest.RequireBoth(t)
	labtest.Each(t, func(t *testing.T, device string) {
		a, _ := labtest.NewPair(t, device, rdmatest.PairOptions{})
		post := func(id uint64) {
			t.Helper()
			if _, err := a.PostRecv(verbs.RecvWR{ID: id, SGL: []verbs.SGE{a.MR.SGE(0, 64)}}); err != nil {
				t.Fatal(err)
			}
		}
		post(0)
		if err := a.QP.Modify(verbs.QPAttr{State: verbs.StateErr}, verbs.MaskState); err != nil {
			t.Fatal(err)
		}
		post(1)
		if _, err := a.QP.PostSend(verbs.SendWR{ID: 2, Opcode: verbs.OpSend, Inline: []byte("late")}); err != nil {
			t.Fatal(err)
		}
		post(3)
		for _, step := range []struct {
			cq *uverbs.CQ
			id uint64
		}{{a.RecvCQ, 0}, {a.RecvCQ, 1}, {a.RecvCQ, 3}, {a.SendCQ, 2}} {
			if wc := nextAny(t, step.cq); wc.ID != step.id || !errors.Is(wc.Err(), verbs.WCFlushErr) {
				t.Errorf("%+v, want request %d flushed", wc, step.id)
			}
		}
	})
}
