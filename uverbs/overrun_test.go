//go:build linux

package uverbs_test

import (
	"errors"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rdmatest"
	"github.com/goverbs/verbs/uverbs"
)

// TestOverrun overflows a CQ by the flushed receives of a QP: whoever waits gets an error when it
// has got the completions that were kept, and the program one event.
func TestOverrun(t *testing.T) {
	labtest.RequireBoth(t)
	labtest.Each(t, func(t *testing.T, device string) {
		labtest.NeedsOverflow(t, device)
		wait := labtest.Within(t, 20*time.Second)
		ctx := labtest.OpenDevice(t, device)
		pd := labtest.Made(ctx.AllocPD())(t)
		ch := labtest.Made(ctx.CreateCompChannel())(t)
		cq := labtest.Made(ctx.CreateCQ(uverbs.CQOptions{Depth: 3, Channel: ch}))(t)
		qp := labtest.Made(pd.CreateQP(uverbs.QPOptions{SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxRecvWR: 100, MaxRecvSGE: 1}}))(t)
		labtest.Check(t, qp.Modify(verbs.QPAttr{State: verbs.StateInit, Port: 1}, verbs.MaskState|verbs.MaskPort|verbs.MaskPKeyIndex|verbs.MaskAccess))
		waits := make(chan error, 2)
		for range cap(waits) {
			go func() { waits <- cq.Wait(wait) }()
		}
		recv(t, qp, make([]verbs.RecvWR, 50)...)
		labtest.Check(t, qp.Modify(verbs.QPAttr{State: verbs.StateErr}, verbs.MaskState))
		for range cap(waits) {
			if err := <-waits; !errors.Is(err, verbs.ErrQueueFailed) {
				t.Errorf("Wait: %v", err)
			}
		}
		got := 0
		for {
			var wcs [4]verbs.WC
			n, err := cq.PollWait(wait, wcs[:])
			if got += n; err != nil {
				if !errors.Is(err, verbs.ErrQueueFailed) || got == 0 {
					t.Errorf("PollWait after %d completions: %v", got, err)
				}
				break
			}
		}
		if _, err := cq.Next(wait); !errors.Is(err, verbs.ErrQueueFailed) {
			t.Errorf("Next: %v", err)
		}
		e, err := ctx.NextAsyncEvent(wait)
		for ; err == nil && e.Type != verbs.EventCQErr; e, err = ctx.NextAsyncEvent(wait) {
		}
		if err != nil || e.CQ != cq {
			t.Errorf("event %+v, %v", e, err)
		}
	})
}

// TestRoomyPair checks that CQs of a pair hold the completions of all that its queues take, to
// whatever their drivers round these.
func TestRoomyPair(t *testing.T) {
	labtest.RequireBoth(t)
	for _, sizes := range [][2]int{{8, 1}, {1, 8}, {64, 33}} {
		a, _ := labtest.NewPair(t, "", rdmatest.PairOptions{OneCQ: true, SRQ: true, Cap: verbs.QPCap{MaxSendWR: sizes[0], MaxRecvWR: sizes[1], MaxSendSGE: 1, MaxRecvSGE: 1}})
		if all := a.QP.Cap().MaxSendWR + a.SRQ.Cap(); all > a.SendCQ.Cap() {
			t.Errorf("%d: %d requests, room for %d completions", sizes, all, a.SendCQ.Cap())
		}
	}
}
