package rxe

import (
	"fmt"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/provider"
)

// BenchmarkPoll polls a CQ in a file's memory.
func BenchmarkPoll(b *testing.B) {
	for _, n := range []int{0, 1, 16} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			cq := newCompletionQueue(fakeQueue(b, 128).ring, provider.Notify{}, nil, false)
			var wcs [16]verbs.WC
			b.ReportAllocs()
			for b.Loop() {
				if n > 0 {
					cq.ring.StoreProducer(cq.cons + uint32(n))
				}
				if got := cq.Poll(wcs[:]); got != n {
					b.Fatalf("polled %d, not %d", got, n)
				}
			}
		})
	}
}
