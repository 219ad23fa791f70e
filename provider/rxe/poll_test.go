package rxe

import (
	"fmt"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/provider"
)

// TestPollReleased polls a CQ whose memory is gone.
func TestPollReleased(t *testing.T) {
	q := fakeQueue(t, 128)
	cq := newCompletionQueue(q.ring, provider.Notify{}, nil, false)
	cq.ring.StoreProducer(1)
	cq.Release()
	var wcs [2]verbs.WC
	if n := provider.Poll(cq, wcs[:]); n != 0 || !cq.TryLock() {
		t.Errorf("%d completions, or the lock is held", n)
	}
}

// BenchmarkPoll polls a CQ in a file's memory.
func BenchmarkPoll(b *testing.B) {
	for _, n := range []int{0, 1, 16} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			cq := newCompletionQueue(fakeQueue(b, 128).ring, provider.Notify{}, nil, false)
			var wcs [16]verbs.WC
			b.ReportAllocs()
			for b.Loop() {
				if n > 0 {
					cq.ring.StoreProducer(cq.ring.After(cq.None, uint32(n)))
				}
				if got := provider.Poll(cq, wcs[:]); got != n {
					b.Fatalf("polled %d, not %d", got, n)
				}
			}
		})
	}
}
