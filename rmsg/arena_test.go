package rmsg

import (
	"math/rand/v2"
	"testing"
)

// TestStaging allocates and frees blocks at random: rows do not overlap, all are freed,
// and take finds a row if there is one.
func TestStaging(t *testing.T) {
	const size = 40
	p := staging{used: make([]byte, size)}
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
			p.set(first, n, 0)
			delete(rows, first)
			break
		}
	}
}

// TestRegionSize tests that a region holds its message in whole pages and wastes little.
func TestRegionSize(t *testing.T) {
	for n := 1; n < 1<<30; n += 1 + n/7 {
		if size := regionSize(n); size < n || size%4096 != 0 || size > n+max(4096, n/8) || regionSize(size) != size {
			t.Errorf("%d bytes in %d", n, size)
		}
	}
}
