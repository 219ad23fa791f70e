//go:build linux

package uverbs_test

import (
	"context"
	"errors"
	"flag"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rdmatest"
)

var completions = flag.Int("completions", 100_000, "how many requests TestManyGoroutines completes on each device")

// TestManyGoroutines posts numbered requests to one QP from 8 goroutines and polls its CQ
// from 4: each number must complete exactly once.
func TestManyGoroutines(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		const posters, pollers = 8, 4
		a, b := labtest.NewPair(t, device, rdmatest.PairOptions{Events: true, Cap: verbs.QPCap{
			MaxSendWR: 256, MaxRecvWR: 16, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: 16,
		}})
		total := uint64(*completions)
		seen := make([]atomic.Uint32, total)
		var next, done atomic.Uint64
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute)
		defer cancel()
		// No more requests are in flight than the CQ holds.
		credits := make(chan struct{}, a.SendCQ.Cap())
		for range cap(credits) {
			credits <- struct{}{}
		}
		var wg sync.WaitGroup
		for range posters {
			wg.Go(func() {
				for {
					id := next.Add(1) - 1
					if id >= total {
						return
					}
					select {
					case <-credits:
					case <-ctx.Done():
						return
					}
					wr := verbs.SendWR{ID: id, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, RemoteAddr: b.MR.Addr(), RKey: b.MR.RKey(), Inline: []byte{byte(id)}}
					for {
						_, err := a.QP.PostSend(wr)
						if err == nil {
							break
						}
						if !errors.Is(err, verbs.ErrQueueFull) {
							t.Error(err)
							cancel()
							return
						}
						runtime.Gosched()
					}
				}
			})
		}
		for range pollers {
			wg.Go(func() {
				var wcs [16]verbs.WC
				for {
					n, err := a.SendCQ.PollWait(ctx, wcs[:])
					if err != nil {
						return // all done, or out of time
					}
					for _, wc := range wcs[:n] {
						if wc.Err() != nil || wc.ID >= total || wc.QPNum != a.QP.Num() {
							t.Errorf("%+v", wc)
							cancel()
							return
						}
						seen[wc.ID].Add(1)
						credits <- struct{}{}
					}
					if done.Add(uint64(n)) >= total {
						cancel()
					}
				}
			})
		}
		wg.Wait()
		for id := range seen {
			if n := seen[id].Load(); n != 1 {
				t.Fatalf("completion %d of %d came %d times", id, total, n)
			}
		}
	})
}
