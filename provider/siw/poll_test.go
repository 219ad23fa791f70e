//go:build linux

package siw

import (
	"fmt"
	"testing"
	"unsafe"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/provider"
)

// TestPollReleased polls a CQ whose memory is gone.
func TestPollReleased(t *testing.T) {
	cq, _, err := newFakeDevice(t).createCQ(8)
	if err != nil {
		t.Fatal(err)
	}
	cq.Release()
	var wcs [2]verbs.WC
	if n := provider.Poll(cq, wcs[:]); n != 0 || !cq.TryLock() {
		t.Errorf("%d completions, or the lock is held", n)
	}
}

// BenchmarkPoll polls a CQ in ordinary memory.
func BenchmarkPoll(b *testing.B) {
	const size = 32
	for _, n := range []int{0, 1, 16} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			h := newFakeDevice(b)
			cq, _, err := h.createCQ(size)
			if err != nil {
				b.Fatal(err)
			}
			defer cq.Release()
			cqes := unsafe.Slice((*abi.SiwCqe)(unsafe.Pointer(&h.file[0])), size)
			var wcs [16]verbs.WC
			b.ReportAllocs()
			for b.Loop() {
				for i := range uint32(n) {
					cqes[(cq.get+i)%size].Flags = abi.SIW_WQE_VALID
				}
				if got := provider.Poll(cq, wcs[:]); got != n {
					b.Fatalf("polled %d, not %d", got, n)
				}
			}
		})
	}
}
