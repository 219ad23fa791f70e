package verbs_test

import (
	"testing"

	"github.com/goverbs/verbs"
)

func TestRates(t *testing.T) {
	for mbps, want := range map[int]verbs.Rate{0: 2, 2500: 2, 9999: 5, 10000: 3, 14062: 11, 100000: 9, 103125: 16, 1 << 30: 24} {
		if got := verbs.RateOf(mbps); got != want {
			t.Errorf("rate of %d Mb/s: %d, want %d", mbps, got, want)
		}
	}
	for r := range 256 {
		if mbps := verbs.Rate(r).Mbps(); mbps != 0 && verbs.RateOf(mbps) != verbs.Rate(r) {
			t.Errorf("rate %d is %d Mb/s, which is rate %d", r, mbps, verbs.RateOf(mbps))
		}
	}
}
