package rconn

import (
	"errors"
	"math"
	"testing"

	"github.com/goverbs/verbs"
)

// TestTargetRange checks lengths at the limits of an int.
func TestTargetRange(t *testing.T) {
	for _, c := range []struct {
		len, off, n int
		ok          bool
	}{
		{100, 0, 100, true},
		{100, 100, 0, true},
		{100, 1, 100, false},
		{100, -1, 1, false},
		{100, 101, 0, false},
		{math.MaxInt, math.MaxInt, 1, false},
		{math.MaxInt, 0, math.MaxInt32, true},
		{math.MaxInt, 0, math.MaxInt, true},
		{math.MaxInt, 0, math.MinInt, false}, // a sum of lengths may overflow to this
	} {
		at := RemoteRegion{Len: c.len}.At(c.off)
		if err := at.check(c.n, 0); (err == nil) != c.ok || err != nil && !errors.Is(err, verbs.ErrRange) {
			t.Errorf("%d bytes at %d of %d: %v", c.n, c.off, c.len, err)
		}
	}
}
