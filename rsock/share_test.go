package rsock

import (
	"math/bits"
	"testing"
)

// TestShare tests that rings leave room for later ones if locked memory is limited.
func TestShare(t *testing.T) {
	const limit = 8 << 20
	for left, want := range map[uint64]int{
		limit: 84 << 10, limit / 2: 20 << 10, limit / 10: minBuffer, 0: minBuffer,
	} {
		if got := share(limit, left); got != want {
			t.Errorf("with %d left: %d, want %d", left, got, want)
		}
	}
	for _, limit := range []uint64{64 << 20, 1 << 40, 1<<64 - 2} {
		if got := share(limit, limit); got != defaultBuffer {
			t.Errorf("of %d: %d, want %d", limit, got, defaultBuffer)
		}
	}
	for _, test := range []struct {
		what   string
		queues func(sends, recvs int) int // locked memory
		least  int
	}{
		{"in the kernel", func(int, int) int { return 0 }, 220},
		{"on ConnectX", connectX, 120},
	} {
		n := 0
		for left := uint64(limit); ; n++ {
			ring := share(limit, left)
			pages := 2*ring + 2*page + test.queues(queueSizes(ring)) // with descriptors and messages
			if uint64(pages) > left {
				break
			}
			left -= uint64(pages)
		}
		if n < test.least {
			t.Errorf("with queues %s, %d bytes are enough for %d ends of connections, not %d", test.what, limit, n, test.least)
		}
	}
}

// connectX returns the locked memory of queues on ConnectX with small cache lines, which has CQEs
// of 64 bytes. A request with the default inline data has two blocks of 64 bytes, a receive 16.
func connectX(sends, recvs int) int {
	pow2 := func(n int) int { return 1 << bits.Len(uint(n-1)) }
	recvs += spareRecvs
	const cmAdds, kernelAdds = 1, 1 // to a CQ
	return pages(pow2(2*sends)*64+pow2(recvs)*16) + pages(64*pow2(sends+cmAdds+kernelAdds)) + pages(64*pow2(recvs+cmAdds+kernelAdds))
}

// TestQueueSizes tests the default sizes of queues, and what they take on adapters.
func TestQueueSizes(t *testing.T) {
	for ring, want := range map[int][3]int{
		defaultBuffer: {254, 238, 68 << 10}, 32 << 10: {254, 238, 68 << 10}, 32<<10 - page: {126, 110, 36 << 10}, 16 << 10: {126, 110, 36 << 10},
		16<<10 - page: {62, 46, 20 << 10}, minBuffer: {62, 46, 20 << 10},
	} {
		sends, recvs := queueSizes(ring)
		if got := [3]int{sends, recvs, connectX(sends, recvs)}; got != want {
			t.Errorf("rings of %d bytes: %d sends, %d receives and %d bytes, want %d", ring, got[0], got[1], got[2], want)
		}
	}
}
