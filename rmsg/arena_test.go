package rmsg

import (
	"math/rand/v2"
	"testing"
)

// TestStaging takes and returns blocks at random: rows do not overlap, are all
// returned, and a row is found where there is one.
func TestStaging(t *testing.T) {
	const size = 40
	p := staging{used: make([]bool, size)}
	var mine [size]bool
	rows := map[int]int{}
	fits := func(n int) bool {
		row := 0
		for _, used := range mine {
			if row++; used {
				row = 0
			}
			if row == n {
				return true
			}
		}
		return false
	}
	mark := func(first, n int, used bool) {
		for i := first; i < first+n; i++ {
			if mine[i] == used {
				t.Fatalf("block %d is used twice, or returned twice", i)
			}
			mine[i] = used
		}
	}
	for range 20_000 {
		if n := 1 + rand.IntN(9); rand.IntN(2) == 0 {
			first := p.take(n)
			if (first >= 0) != fits(n) {
				t.Fatalf("%d blocks of %v: %d", n, mine, first)
			}
			if first >= 0 {
				mark(first, n, true)
				rows[first] = n
			}
			continue
		}
		for first, n := range rows {
			mark(first, n, false)
			p.put(first, n)
			delete(rows, first)
			break
		}
	}
}

// TestRegionSize: a region holds its message, is made of pages, and little larger.
func TestRegionSize(t *testing.T) {
	for n := 1; n < 1<<30; n += 1 + n/7 {
		if size := regionSize(n); size < n || size%4096 != 0 || size > n+max(4096, n/8) || regionSize(size) != size {
			t.Errorf("%d bytes in %d", n, size)
		}
	}
}

// TestFrames: a message that is sent at once has no more frames than fit a batch, and
// than the peer has credits.
func TestFrames(t *testing.T) {
	for credits := 1; credits < 12; credits++ {
		for _, eager := range []int{64, 100, 4096, 5000, 16 << 10, 100_000, 1 << 20} {
			opt, err := Options{Credits: credits, Eager: eager}.withDefaults()
			if err != nil {
				t.Fatal(err)
			}
			n := atOnce(opt.Credits, opt.Segment, opt.Eager, maxEager)
			if k := frames(n, opt.Segment); n < min(eager, minEager) || k > min(credits, maxFrames) || k > frames(opt.Eager, opt.Segment) {
				t.Errorf("%d credits, %d eager bytes: %d bytes in %d frames", credits, eager, n, k)
			}
		}
	}
}
