//go:build linux

package uverbs_test

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/bridge"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rdmatest"
)

// TestSleep checks that events, Wake and deadlines end a sleep, and that none is lost.
func TestSleep(t *testing.T) {
	labtest.RequireBoth(t)
	labtest.Each(t, func(t *testing.T, device string) {
		a, b := labtest.NewPair(t, device, rdmatest.PairOptions{Events: true})
		sleep := func(until time.Time, events bool, want error) {
			t.Helper()
			if n, err := bridge.Sleep(b.RecvCQ, t.Context(), until); (n > 0) != events || !errors.Is(err, want) {
				t.Fatalf("%d events, %v", n, err)
			}
		}
		send := func() {
			if _, err := b.PostRecv(verbs.RecvWR{}); err != nil {
				t.Error(err)
			}
			if _, err := a.QP.PostSend(verbs.SendWR{Opcode: verbs.OpSend}); err != nil {
				t.Error(err)
			}
		}
		poll := func() {
			t.Helper()
			var wcs [1]verbs.WC
			if b.RecvCQ.Poll(wcs[:]) != 1 || wcs[0].Err() != nil {
				t.Fatal("no message", wcs[0].Err())
			}
		}
		past, never := time.Unix(2, 0), time.Time{}
		sleep(past, false, os.ErrDeadlineExceeded)
		bridge.Wake(b.RecvCQ)
		sleep(never, false, nil)
		for _, until := range []time.Time{never, time.Now().Add(time.Hour), never} {
			if err := b.RecvCQ.Arm(false); err != nil {
				t.Fatal(err)
			}
			go send()
			sleep(until, true, nil)
			poll()
			go func() {
				defer bridge.Wake(b.RecvCQ)
				labtest.UntilBlocked(t, 1, "(*channel).sleep")
			}()
			sleep(until, false, nil)
			sleep(time.Now().Add(10*time.Millisecond), false, os.ErrDeadlineExceeded)
		}
		// Requests that are flushed without the kernel cause an event as well.
		if _, err := b.PostRecv(verbs.RecvWR{}); err != nil {
			t.Fatal(err)
		}
		if err := b.RecvCQ.Arm(false); err != nil {
			t.Fatal(err)
		}
		go b.QP.Modify(verbs.QPAttr{State: verbs.StateErr}, verbs.MaskState)
		sleep(never, true, nil)
		if allocs := testing.AllocsPerRun(100, func() { bridge.Wake(b.RecvCQ); bridge.Sleep(b.RecvCQ, t.Context(), never) }); allocs != 0 {
			t.Errorf("%v allocations", allocs)
		}
	})
}
