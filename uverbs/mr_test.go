package uverbs

import "testing"

// TestSGEPanics checks for which parts of a region SGE panics.
func TestSGEPanics(t *testing.T) {
	big := int64(1) << 33
	mr := &MR{size: int(big), addr: 1 << 40}
	if int64(mr.size) != big {
		t.Skip("no region is that long here")
	}
	for _, part := range [][2]int64{{0, 1 << 32}, {8, 1<<32 + 100}, {0, big + 1}, {big, 1}, {-1, 1}, {0, -1}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("SGE(%d, %d) does not panic", part[0], part[1])
				}
			}()
			mr.SGE(int(part[0]), int(part[1]))
		}()
	}
	longest := big>>1 - 1
	if s := mr.SGE(int(big-longest), int(longest)); int64(s.Length) != longest {
		t.Errorf("the longest SGE: %+v", s)
	}
}
