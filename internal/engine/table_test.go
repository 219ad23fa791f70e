package engine

import "testing"

// TestRandomNumbers adds as many objects to a table as it may have, of all numbers but one.
func TestRandomNumbers(t *testing.T) {
	const lo, hi = 5, 12
	var all table[int]
	for n := range 7 {
		var key uint32
		if !all.addRandom(new(int), &key, lo, hi, 7) || key>>8 < lo || key>>8 > hi || all.get(key>>8) == nil {
			t.Fatalf("object %d: key %#x", n, key)
		}
	}
	if all.addRandom(new(int), new(uint32), lo, hi, 7) {
		t.Error("an object above the limit")
	}
}
