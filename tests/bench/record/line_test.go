package record

import (
	"fmt"
	"strings"
	"testing"
)

// around are nine figures of a median, the last of which is spread away from
// the first.
func around(median, spread float64) Sample {
	s := Sample{median - spread/2}
	for range 7 {
		s = append(s, median)
	}
	return append(s, median+spread/2)
}

// told is the ratio in words, or why there is none.
func told(l Line) string {
	r, untold := l.Ratio()
	if untold != "" {
		return string(untold)
	}
	return fmt.Sprintf("%.2f", r)
}

func TestVerdict(t *testing.T) {
	steady, wild := around(10, 5), around(10, 5.1)
	for _, test := range []struct {
		name    string
		line    Line
		told    string
		verdict Verdict
	}{
		{"less is better", Line{Target: 1, Ours: steady, C: around(20, 0)}, "2.00", Met},
		{"less is worse", Line{Target: 2.1, Ours: steady, C: around(20, 0)}, "2.00", Missed},
		{"more is better", Line{Target: 1, Higher: true, Ours: around(20, 0), C: steady}, "2.00", Met},
		{"more is worse", Line{Target: 1, Higher: true, Ours: steady, C: around(20, 0)}, "0.50", Missed},
		{"just met", Line{Target: 1, Ours: steady, C: steady}, "1.00", Met},
		{"ours is noisy", Line{Target: 1, Ours: wild, C: around(1000, 0)}, "too noisy", TooNoisy},
		{"C is noisy", Line{Target: 1, Ours: around(1, 0), C: wild}, "too noisy", TooNoisy},
		{"noisy without a target", Line{Ours: wild, C: steady}, "too noisy", TooNoisy},
		{"noisy within the slack", Line{Slack: 100, Ours: wild, C: steady}, "too noisy", TooNoisy},
		{"eight of ours", Line{Target: 1, Ours: steady[:8], C: steady}, "too few", TooFew},
		{"eight of C's", Line{Target: 1, Ours: steady, C: steady[:8]}, "too few", TooFew},
		{"nothing", Line{Target: 1}, "not measured", NotMeasured},
		{"no target", Line{Ours: steady, C: steady}, "1.00", NoTarget},
		{"within the slack", Line{Slack: 6, Ours: around(16, 0), C: steady}, "0.62", Met},
		{"beyond the slack", Line{Slack: 6, Ours: around(16.1, 0), C: steady}, "0.62", Missed},
		{"never more", Line{Ours: around(0, 0)}, "no target", Met},
		{"once more", Line{Ours: append(around(0, 0), 1)}, "too noisy", Missed},
		{"by nothing", Line{Target: 1, Ours: around(0, 0), C: around(0, 0)}, "too noisy", TooNoisy},
	} {
		if told, verdict := told(test.line), test.line.Verdict(); told != test.told || verdict != test.verdict {
			t.Errorf("%s: %s, %s; want %s, %s", test.name, told, verdict, test.told, test.verdict)
		}
		_, none := test.line.Ratio()
		if logged := test.line.String(); strings.Contains(logged, "ratio") != (none == "") || !strings.HasSuffix(logged, string(test.verdict)) {
			t.Errorf("%s: %s", test.name, logged)
		}
	}
}

func TestSample(t *testing.T) {
	for _, test := range []struct {
		s      Sample
		text   string
		steady bool
	}{
		{Sample{3, 1, 2}, "1 / 2 / 3", false},
		{Sample{4, 1, 2, 3}, "1 / 2.5 / 4", false},
		{Sample{12345.6, 9999.94}, "10000 / 11173 / 12346", true},
		{Sample{0.123456}, "0.1235 / 0.1235 / 0.1235", true},
	} {
		if test.s.String() != test.text || test.s.Steady() != test.steady {
			t.Errorf("%v: %s, steady %v", []float64(test.s), test.s, test.s.Steady())
		}
	}
	s := Sample{3, 1, 2}
	if s.Median(); s[0] != 3 {
		t.Error("the median sorts the sample itself")
	}
}
