package rmsg

import (
	"math"
	"testing"
)

// TestRing has a place for each message that the program has not taken, also where their numbers wrap.
func TestRing(t *testing.T) {
	for credits := 1; credits <= 100; credits++ {
		var r receiver
		r.init(nil, credits)
		places := map[int]bool{}
		for i := range uint32(credits) {
			places[r.index(math.MaxUint32-1+i)] = true
		}
		if len(places) != credits {
			t.Errorf("%d credits have %d places", credits, len(places))
		}
	}
}
