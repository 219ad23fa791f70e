package record

import (
	"math"
	"slices"
	"strings"
	"testing"
)

// near reports whether two figures agree to four digits.
func near(a, b float64) bool { return math.Abs(a-b) <= 5e-5*math.Abs(b) }

// flat returns n figures that are all the same.
func flat(v float64, n int) Sample { return slices.Repeat(Sample{v}, n) }

func TestCompare(t *testing.T) {
	for _, test := range []struct {
		name    string
		line    Line
		ratio   Ratio
		verdict Verdict
	}{
		{"less is better", Line{Ours: flat(10, 9), C: flat(20, 9)}, Ratio{2, 2, 2}, Ahead},
		{"more is better", Line{Higher: true, Ours: flat(10, 9), C: flat(20, 9)}, Ratio{0.5, 0.5, 0.5}, Behind},
		{"the same", Line{Ours: flat(10, 9), C: flat(10, 9)}, Ratio{1, 1, 1}, Level},
		{"one pair", Line{Ours: Sample{10}, C: Sample{5}}, Ratio{0.5, 0.5, 0.5}, Behind},
		{"a little better each time", Line{Ours: flat(10, 9), C: flat(10.01, 9)}, Ratio{1.001, 1.001, 1.001}, Ahead},
		// A disturbance of both sides of a pair does not change its ratio.
		{"disturbed together", Line{Ours: Sample{1, 10, 100}, C: Sample{2, 20, 200}}, Ratio{2, 2, 2}, Ahead},
		// The mean of twice and half as good is 1. Of two pairs a quarter of the draws is
		// one pair twice: the interval has both.
		{"disturbed apart", Line{Ours: Sample{2, 1}, C: Sample{1, 2}}, Ratio{1, 0.5, 2}, Undecided},
		{"not measured", Line{}, Ratio{}, NotMeasured},
		{"no other side", Line{Ours: Sample{0, 0}}, Ratio{}, Alone},
		{"only the other side", Line{C: Sample{1}}, Ratio{}, NotMeasured},
		{"no pairs", Line{Ours: flat(1, 8), C: flat(1, 9)}, Ratio{}, NotMeasured},
		{"nothing of something", Line{Ours: flat(1, 9), C: flat(0, 9)}, Ratio{}, NotMeasured},
		{"something of nothing", Line{Ours: append(flat(1, 8), 0), C: flat(1, 9)}, Ratio{}, NotMeasured},
		{"no number", Line{Ours: Sample{math.NaN()}, C: Sample{1}}, Ratio{}, NotMeasured},
		{"no end", Line{Ours: Sample{1}, C: Sample{math.Inf(1)}}, Ratio{}, NotMeasured},
	} {
		r, v := test.line.Compare()
		if !near(r.Mean, test.ratio.Mean) || !near(r.Low, test.ratio.Low) || !near(r.High, test.ratio.High) || v != test.verdict {
			t.Errorf("%s: %+v, %q; want %+v, %q", test.name, r, v, test.ratio, test.verdict)
		}
		if len(test.line.Ours) != 0 && test.line.String() == "" {
			t.Errorf("%s: nothing to log", test.name)
		}
	}
}

// TestVerdict compares pairs, half of them better by one factor and half worse by another.
func TestVerdict(t *testing.T) {
	halves := func(better, worse float64) Line {
		return Line{Ours: flat(100, 30), C: append(flat(100*better, 15), flat(100*worse, 15)...)}
	}
	for _, test := range []struct {
		better, worse float64
		want          Verdict
	}{
		{1.2, 1.1, Ahead},
		{1.2, 0.95, Ahead},
		{1.05, 0.96, Level},
		{1.1, 0.92, Level},
		{1.3, 0.8, Undecided},
		{1.12, 0.97, Ahead},
		{1.2, 0.9, Undecided}, // around 1, and above 1.05
		{1.1, 0.85, Undecided},
		{1.05, 0.8, Behind},
		{0.99, 0.98, Behind}, // within 0.95 to 1.05, and below 1
	} {
		r, v := halves(test.better, test.worse).Compare()
		if v != test.want {
			t.Errorf("%v and %v: %v is %s, not %s", test.better, test.worse, r, v, test.want)
		}
		if mean := math.Sqrt(test.better * test.worse); !near(r.Mean, mean) || r.Low >= r.Mean || r.High <= r.Mean {
			t.Errorf("%v and %v: the mean of %v is %v", test.better, test.worse, r, mean)
		}
	}
}

func TestBootstrap(t *testing.T) {
	var s Sample
	for i := range 30 {
		s = append(s, float64(i))
	}
	low, high := bootstrap(s)
	// The standard error of the mean is sqrt(30²-1)/sqrt(12)/sqrt(30) = 1.58; the interval
	// is 1.96 of them on each side of 14.5.
	if math.Abs(low-11.4) > 0.2 || math.Abs(high-17.6) > 0.2 {
		t.Errorf("of 0 to 29: %v to %v", low, high)
	}
	if l, h := bootstrap(s); l != low || h != high {
		t.Errorf("the same sample: %v to %v, then %v to %v", low, high, l, h)
	}
	if l, h := bootstrap(flat(3, 30)); l != 3 || h != 3 {
		t.Errorf("of 3 alone: %v to %v", l, h)
	}
	if l, h := bootstrap(slices.Repeat(s, 4)); h-l > (high-low)*0.55 {
		t.Errorf("four times as many figures: %v to %v, not half as wide as %v to %v", l, h, low, high)
	}
}

func TestAppendRefuses(t *testing.T) {
	for _, test := range []struct {
		line Line
		want string
	}{
		{Line{Ours: Sample{1}, C: Sample{1, 2}}, "1 figures do not make pairs with 2"},
		{Line{Ours: Sample{1}, C: Sample{0}}, "above zero"},
		{Line{Ours: Sample{-1}, C: Sample{1}}, "above zero"},
		{Line{Ours: Sample{math.NaN()}, C: Sample{1}}, "above zero"},
		{Line{Ours: Sample{math.NaN()}}, "unsupported value"},
		{Line{Name: "something else", Ours: Sample{1}}, "no group"},
	} {
		l := test.line
		l.Group, l.Device, l.Beside = UserSpace, "rxe0", "cgo"
		if l.Name == "" {
			l.Name = "poll_1"
		}
		if err := Append(t.TempDir(), l); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%v: %v", l.Key(), err)
		}
	}
}

// TestRatioString checks that ratios are printed with the digits that decide a verdict.
func TestRatioString(t *testing.T) {
	for _, test := range []struct {
		r    Ratio
		want string
	}{
		{Ratio{2.345, 1.234, 3.456}, "2.35 (1.23 to 3.46)"},
		{Ratio{0.98, 0.91, 0.9984}, "0.98 (0.91 to 0.998)"},
		{Ratio{1, 1, 1}, "1.00 (1.00 to 1.00)"},
		{Ratio{1, 0.9493, 1.0508}, "1.00 (0.949 to 1.051)"},
	} {
		if test.r.String() != test.want {
			t.Errorf("%s, not %s", test.r, test.want)
		}
	}
}

func TestLogged(t *testing.T) {
	l := Line{Device: "rxe0", Name: "a", Unit: "µs", Beside: "C", Ours: Sample{1}, C: Sample{2}}
	if text := l.String(); !strings.HasSuffix(text, "Go 1 / 1 / 1                  µs, C 2 / 2 / 2, 2.00 (2.00 to 2.00): ahead") {
		t.Error(text)
	}
	l.C = nil
	if text := l.String(); !strings.HasPrefix(text, "rxe0: a ") || !strings.HasSuffix(text, "µs") {
		t.Error(text)
	}
}
