package rmsg

import "testing"

// TestRegionSize tests that a region holds its message in whole pages and wastes little.
func TestRegionSize(t *testing.T) {
	for n := 1; n < 1<<30; n += 1 + n/7 {
		if size := regionSize(n); size < n || size%4096 != 0 || size > n+max(4096, n/8) || regionSize(size) != size {
			t.Errorf("%d bytes in %d", n, size)
		}
	}
}
