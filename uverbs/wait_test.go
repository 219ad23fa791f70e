//go:build linux

package uverbs_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rdmatest"
	"github.com/goverbs/verbs/uverbs"
)

// TestNextAllocs checks that waiting for a later completion does not allocate.
func TestNextAllocs(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		a, b := labtest.NewPair(t, device, rdmatest.PairOptions{Events: true})
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		wrs := []verbs.SendWR{{Opcode: verbs.OpSend, Flags: verbs.SendSignaled}}
		wait := func(ctx context.Context, cq *uverbs.CQ) {
			if _, err := cq.Next(ctx); err != nil {
				t.Fatal(err)
			}
		}
		roundTrip := func(ctx context.Context) {
			if _, err := b.PostRecv(verbs.RecvWR{}); err != nil {
				t.Fatal(err)
			}
			if _, err := a.QP.PostSend(wrs...); err != nil {
				t.Fatal(err)
			}
			wait(ctx, b.RecvCQ)
			wait(ctx, a.SendCQ)
		}
		recv := testing.AllocsPerRun(20, func() { b.PostRecv(verbs.RecvWR{}) }) // what PostRecv here allocates for its slice
		for range 21 {
			if _, err := a.QP.PostSend(wrs...); err != nil {
				t.Fatal(err)
			}
			wait(ctx, b.RecvCQ)
			wait(ctx, a.SendCQ)
		}
		if n := testing.AllocsPerRun(200, func() { roundTrip(context.Background()) }); n > recv && !labtest.Race {
			t.Errorf("%v allocations", n-recv)
		}
		roundTrip(ctx)
	})
}

// TestWhyWaitEnds ends waits for a CQ by contexts that say why.
func TestWhyWaitEnds(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		a, _ := labtest.NewPair(t, device, rdmatest.PairOptions{Events: true})
		late := errors.New("the peer is late")
		for name, wait := range map[string]func(context.Context) error{
			"Wait": a.SendCQ.Wait,
			"Next": func(ctx context.Context) error {
				_, err := a.SendCQ.Next(ctx)
				return err
			},
		} {
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(time.Millisecond, func() { cancel(late) })
			if err := wait(ctx); !errors.Is(err, late) || !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

// TestManyWaitForOne checks that each completion is returned to one of the goroutines
// that wait for a CQ, while many others give up.
func TestManyWaitForOne(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		a, b := labtest.NewPair(t, device, rdmatest.PairOptions{Events: true})
		const messages = 200
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		got := make(chan uint64, messages)
		stop := make(chan struct{})
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				for n := 0; ; n++ {
					each, cancel := context.WithTimeout(ctx, time.Duration(i*n%17)*100*time.Microsecond)
					if i == 0 {
						each = ctx
					}
					var wcs [2]verbs.WC
					k, err := b.RecvCQ.PollWait(each, wcs[:])
					cancel()
					for _, wc := range wcs[:k] {
						got <- wc.ID
					}
					select {
					case <-stop:
						return
					default:
					}
					if err != nil && !errors.Is(err, context.DeadlineExceeded) {
						t.Error(err)
						return
					}
				}
			})
		}
		for i := range messages {
			if _, err := b.PostRecv(verbs.RecvWR{ID: uint64(i)}); err != nil {
				t.Fatal(err)
			}
			send(t, a.QP, verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled})
			next(t, a.SendCQ) // else the queue is full at some time
			select {
			case id := <-got:
				if id != uint64(i) {
					t.Fatalf("completion of %d, not %d", id, i)
				}
			case <-ctx.Done():
				t.Fatalf("nobody got message %d", i)
			}
		}
		close(stop)
		cancel()
		wg.Wait()
	})
}
