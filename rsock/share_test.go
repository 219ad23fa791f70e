package rsock

import "testing"

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
	n := 0
	for left := uint64(limit); ; n++ {
		pages := 2*share(limit, left) + 2*page // with descriptors and messages
		if uint64(pages) > left {
			break
		}
		left -= uint64(pages)
	}
	if n < 220 {
		t.Errorf("%d bytes are enough for %d ends of connections", limit, n)
	}
}
