//go:build linux

package rxe_test

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/provider/rxe"
	"github.com/goverbs/verbs/rdmatest"
)

// TestPostYieldsProcessor posts requests whose data the kernel sends in the doorbell, and
// measures how long another goroutine, which needs the only processor, is stopped
// meanwhile, as a garbage collection would be.
func TestPostYieldsProcessor(t *testing.T) {
	labtest.RequireKernel(t)
	if !rxe.SendsInDoorbell() {
		t.Skip("this kernel queues requests")
	}
	a, b := labtest.NewPair(t, labtest.RXE, rdmatest.PairOptions{Memory: 4 << 20})
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	// On a busy machine it is stopped for other reasons as well, but not always.
	part := 0
	for range 5 {
		if part = measureStall(t, a, b); part <= 60 {
			return
		}
	}
	t.Errorf("another goroutine stood still for %d %% of 4 in 5 calls of PostSend", part)
}

// measureStall returns for how much of each PostSend another goroutine is stopped, in
// percent: the lowest quintile of 30 calls.
func measureStall(t *testing.T, a, b *rdmatest.Endpoint) int {
	const (
		posts = 30
		long  = 30 * time.Millisecond // the scheduler checks every 10 ms at least
	)
	var stop atomic.Bool
	var gap atomic.Int64 // the longest time between two readings of the clock
	var wg sync.WaitGroup
	wg.Go(func() {
		for last := time.Now(); !stop.Load(); {
			now := time.Now()
			gap.Store(max(gap.Load(), int64(now.Sub(last))))
			last = now
		}
	})
	var took [posts]time.Duration
	var parts [posts]int64 // the part of each that the gap took, in percent
	for i := range posts {
		gap.Store(0)
		start := time.Now()
		n, err := a.QP.PostSend(verbs.SendWR{
			Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled,
			SGL: []verbs.SGE{a.MR.SGE(0, a.MR.Len())}, RemoteAddr: b.MR.Addr(), RKey: b.MR.RKey(),
		})
		if n != 1 {
			t.Fatal(err)
		}
		took[i] = time.Since(start)
		parts[i] = 100 * gap.Load() / int64(took[i])
		var wc [1]verbs.WC
		labtest.Until(t, "the completion", func() bool { return a.SendCQ.Poll(wc[:]) == 1 })
		if err := wc[0].Err(); err != nil {
			t.Fatal(err)
		}
	}
	stop.Store(true)
	wg.Wait()
	slices.Sort(took[:])
	slices.Sort(parts[:])
	t.Logf("PostSend: median %v, most %v; for so many percent of each another goroutine stood still: %d", took[posts/2], took[posts-1], parts)
	if took[posts/2] < long {
		return 0
	}
	return int(parts[posts/5])
}
