//go:build linux

package siw

import (
	"fmt"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
)

// BenchmarkPost posts requests that need no doorbell.
func BenchmarkPost(b *testing.B) {
	const size = 512
	for _, n := range []int{1, 16, 64} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			h := newFakeDevice(b)
			cq, _, err := h.createCQ(8)
			if err != nil {
				b.Fatal(err)
			}
			defer cq.Release()
			sq, rq, err := h.createQP(cq, size, size, verbs.QPCap{MaxSendSGE: 2})
			if err != nil {
				b.Fatal(err)
			}
			defer func() { sq.Release(); rq.Release() }()
			wrs := make([]verbs.SendWR, n)
			for i := range wrs {
				wrs[i] = verbs.SendWR{ID: uint64(i), Opcode: verbs.OpSend, Flags: verbs.SendSignaled, SGL: []verbs.SGE{{Addr: 1 << 20, Length: 64, LKey: 5}}}
			}
			sqeWord(sq.queue.at(sq.put - 1)).Store(word(abi.SIW_WQE_VALID, 0, 0))
			b.ReportAllocs()
			for b.Loop() {
				if got, err := sq.Post(wrs); got != n || err != nil {
					b.Fatal(got, err)
				}
				for i := range uint32(n) { // all but the last have been sent
					fillSqe(sq.queue.at(sq.put-2-i), 0)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/request")
		})
	}
}
