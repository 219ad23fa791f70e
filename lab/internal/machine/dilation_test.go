//go:build linux

package machine

import (
	"errors"
	"math"
	"testing"
)

// TestClockCheck checks clocks that are right, and each kind that is wrong.
func TestClockCheck(t *testing.T) {
	speed := ticksPerSecond()
	for _, test := range []struct {
		name               string
		here, there, ticks float64
		wrong              bool
	}{
		{"right", 2, 0.05, 2 * speed, false},
		{"half a percent off", 2.01, 0.05, 2 * speed, false},
		{"a clock that is too fast", 1.9, 0.05, 2 * speed, true},
		{"a clock that is too slow", 2.1, 0.05, 2 * speed, true},
		{"another counter", 2, 0.05, 3 * speed, true},
		{"a late timer", 2.4, 0.06, 2.4 * speed, true},
		{"no dilation", 0.05, 0.05, 0.05 * speed, true},
		{"no number", 2, math.NaN(), 2 * speed, true},
	} {
		c := clockCheck{factor: 40}
		if err := c.compare(test.here, test.there, test.ticks); errors.Is(err, errClock) != test.wrong {
			t.Errorf("%s: %v", test.name, err)
		}
	}
}
