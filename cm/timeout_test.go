package cm

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/goverbs/verbs"
)

// TestMilliseconds converts timeouts to what the kernel's commands have room for.
func TestMilliseconds(t *testing.T) {
	for timeout, want := range map[time.Duration]uint32{
		0:                                0,
		1:                                1,
		time.Millisecond:                 1,
		time.Millisecond + 1:             2,
		2 * time.Second:                  2000,
		50 * 24 * time.Hour:              math.MaxInt32, // more than 32 bits have room for
		time.Duration(math.MaxInt64):     math.MaxInt32,
		math.MaxInt32 * time.Millisecond: math.MaxInt32,
	} {
		if got, err := milliseconds(timeout); got != want || err != nil {
			t.Errorf("%v: %d ms, %v; want %d", timeout, got, err, want)
		}
	}
	if _, err := milliseconds(-1); !errors.Is(err, verbs.ErrRange) {
		t.Errorf("a negative timeout: %v", err)
	}
}
