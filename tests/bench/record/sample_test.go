package record

import (
	"math"
	"testing"
)

func TestSample(t *testing.T) {
	for _, test := range []struct {
		s    Sample
		text string
	}{
		{Sample{3, 1, 2}, "1 / 2 / 3"},
		{Sample{4, 1, 2, 3}, "1 / 2.5 / 4"},
		{Sample{12345.6, 9999.94}, "10000 / 11173 / 12346"},
		{Sample{0.123456}, "0.1235 / 0.1235 / 0.1235"},
		{Sample{0}, "0 / 0 / 0"},
		{nil, ""},
	} {
		if test.s.String() != test.text {
			t.Errorf("%v: %s", []float64(test.s), test.s)
		}
	}
	s := Sample{3, 1, 2}
	if s.Median(); s[0] != 3 {
		t.Error("the median sorts the sample itself")
	}
}

func TestQuantile(t *testing.T) {
	var s Sample
	for i := range 1000 {
		s = append(s, float64(1000-i))
	}
	for q, want := range map[float64]float64{0: 1, 0.0005: 1, 0.5: 500, 0.99: 990, 0.999: 999, 1: 1000} {
		if got := s.Quantile(q); got != want {
			t.Errorf("%v of 1 to 1000: %v, not %v", q, got, want)
		}
	}
	if v := (Sample{}).Quantile(0.5); !math.IsNaN(v) {
		t.Errorf("of nothing: %v", v)
	}
}
