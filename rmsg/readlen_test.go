package rmsg

import "testing"

// TestReadLen tests that no READ after the first is short on iWARP, and that the number of READs is the same.
func TestReadLen(t *testing.T) {
	for _, size := range []int{1, 32, readSize, readSize + 1, readSize + 32, readSize + 33, 3*readSize + 1} {
		for _, iwarp := range []bool{false, true} {
			reads := 0
			for left := size; left > 0; reads++ {
				n := readLen(left, iwarp)
				if iwarp && reads > 0 && n <= 32 || n > readSize || n <= 0 {
					t.Errorf("READ %d of %d bytes has %d", reads, size, n)
					break
				}
				left -= n
			}
			if want := (size + readSize - 1) / readSize; reads != want {
				t.Errorf("%d READs for %d bytes, want %d", reads, size, want)
			}
		}
	}
}
