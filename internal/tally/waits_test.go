package tally

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestWaits ends waits that overlap: the first of them is that of a call which still waits.
func TestWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w Waits
		var began []time.Time
		for range 3 {
			began = append(began, w.Begin())
			time.Sleep(time.Second)
		}
		for i, left := range [][]time.Time{began[1:], began[2:], nil} {
			w.End(began[i])
			if len(w) != len(left) || len(w) > 0 && !w[0].Equal(left[0]) {
				t.Errorf("%v after %d ends", w, i+1)
			}
		}
	})
}
