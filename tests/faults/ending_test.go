package faults

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

// TestEndWhilePosting has a peer end a connection, at any moment, of one who
// posts without pause: each request that was posted completes, once, and none
// else does.
func TestEndWhilePosting(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		rounds := map[string]int{labtest.RXE: 10, labtest.SIW: 150}[device] // rxe's peers do not say that they end
		for range rounds {
			t.Run("round", func(t *testing.T) {
				a, b := labtest.NewPair(t, labtest.PairOptions{Device: device, RC: uverbs.ConnectOptions{Timeout: 8, RetryCount: 1}})
				go func() {
					time.Sleep(rand.N(3 * time.Millisecond))
					if err := b.QP.Modify(verbs.QPAttr{State: verbs.StateErr}, verbs.MaskState); err != nil {
						t.Error(err)
					}
				}()
				postUntilTheEnd(t, a, b)
			})
		}
	})
}

func postUntilTheEnd(t *testing.T, a, b *labtest.Side) {
	var posted, completed uint64
	failed := false
	poll := func() {
		var wcs [16]verbs.WC
		for _, wc := range wcs[:a.SendCQ.Poll(wcs[:])] {
			if wc.ID != completed {
				t.Fatalf("request %d completes (%v), %d is next", wc.ID, wc.Status, completed)
			}
			completed++
			failed = failed || wc.Err() != nil
		}
	}
	for deadline := time.Now().Add(20 * time.Second); !failed && time.Now().Before(deadline); poll() {
		wrs := make([]verbs.SendWR, 1+rand.IntN(4))
		for i := range wrs {
			wrs[i] = verbs.SendWR{ID: posted + uint64(i), Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, Inline: []byte("12345678"), RemoteAddr: b.MR.Addr(), RKey: b.MR.RKey()}
		}
		n, err := a.QP.PostSend(wrs...)
		posted += uint64(n)
		bad, is := errors.AsType[*verbs.PostError](err)
		switch {
		case err == nil && n == len(wrs), errors.Is(err, verbs.ErrQueueFull) && n < len(wrs):
		case errors.Is(err, verbs.ErrState) && is && bad.Index == n && n < len(wrs) && bad.ID == wrs[n].ID:
			failed = true
		default:
			t.Fatalf("posted %d of %d: %v", n, len(wrs), err)
		}
	}
	if !failed {
		t.Fatal("the connection goes on")
	}
	labtest.Check(t, a.QP.Modify(verbs.QPAttr{State: verbs.StateErr}, verbs.MaskState))
	for range 1000 {
		if poll(); completed == posted {
			break
		}
		time.Sleep(time.Millisecond)
	}
	poll()
	if completed != posted {
		t.Errorf("%d requests posted, %d completed", posted, completed)
	}
}
