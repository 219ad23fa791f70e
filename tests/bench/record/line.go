package record

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
)

// Line is a work that both sides did in turns: figures with the same index are a
// pair.
type Line struct {
	Group  string `json:"group"`            // Name of one of Groups
	Device string `json:"device,omitempty"` // empty if the work needs no device
	Name   string `json:"name"`
	Unit   string `json:"unit"`
	Higher bool   `json:"higher,omitempty"` // greater figures are better
	Beside string `json:"beside,omitempty"` // the owner of the figures C
	Ours   Sample `json:"ours"`
	C      Sample `json:"c,omitempty"` // empty if there is no other side
}

// Key returns a string that identifies the line.
func (l Line) Key() string { return l.Group + "/" + l.Device + "/" + l.Name + "/" + l.Beside }

// Verdict is the result of a comparison.
type Verdict string

// The verdicts, by the interval of the ratio.
const (
	Ahead     Verdict = "ahead"     // above 1
	Behind    Verdict = "behind"    // below 1
	Level     Verdict = "level"     // around 1, and within 0.95 to 1.05
	Undecided Verdict = "undecided" // around 1, and wider
)

// Verdicts of lines that compare nothing.
const (
	Alone       Verdict = ""             // there is no other side
	NotMeasured Verdict = "not measured" // there are no figures, or they are not pairs
)

// Ratio is how much better Go is, more than 1 if it is better: the geometric mean of the
// pairs' ratios, and its 95 % interval.
type Ratio struct{ Mean, Low, High float64 }

// String returns the ratio and its interval, with two digits after the point, or three if
// the verdict depends on the third.
func (r Ratio) String() string {
	bound := func(v float64) string {
		for _, limit := range []float64{leastLevel, 1, mostLevel} {
			if v != limit && math.Abs(v-limit) < 0.005 {
				return fmt.Sprintf("%.3f", v)
			}
		}
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.2f (%s to %s)", r.Mean, bound(r.Low), bound(r.High))
}

// The limits between which a ratio is level.
const (
	leastLevel = 0.95
	mostLevel  = 1.05
)

const resamples = 10_000

// Compare compares the sides. The ratio is zero if nothing is compared.
func (l Line) Compare() (Ratio, Verdict) {
	switch {
	case len(l.Ours) == 0, l.check() != nil:
		return Ratio{}, NotMeasured
	case len(l.C) == 0:
		return Ratio{}, Alone
	}
	logs := make([]float64, len(l.Ours))
	for i := range logs {
		logs[i] = math.Log(l.C[i] / l.Ours[i])
		if l.Higher {
			logs[i] = -logs[i]
		}
	}
	low, high := bootstrap(logs)
	r := Ratio{math.Exp(mean(logs)), math.Exp(low), math.Exp(high)}
	switch {
	case r.Low > 1:
		return r, Ahead
	case r.High < 1:
		return r, Behind
	case r.Low >= leastLevel && r.High <= mostLevel:
		return r, Level
	}
	return r, Undecided
}

// check returns an error if the figures are not pairs: both sides must have the same number
// of figures, and all must be above zero, otherwise there is no ratio.
func (l Line) check() error {
	if len(l.C) == 0 {
		return nil
	}
	if len(l.Ours) != len(l.C) {
		return fmt.Errorf("%s: %d figures do not make pairs with %d", l.Key(), len(l.Ours), len(l.C))
	}
	for _, v := range slices.Concat(l.Ours, l.C) {
		if !(v > 0) || math.IsInf(v, 1) {
			return fmt.Errorf("%s: %v: a ratio takes figures above zero", l.Key(), v)
		}
	}
	return nil
}

// bootstrap returns the 95 % interval of the mean: the percentiles 2.5 and 97.5 of the means
// of samples drawn from s. The result depends only on s.
func bootstrap(s []float64) (low, high float64) {
	draw := rand.New(rand.NewPCG(1, 2))
	means := make([]float64, resamples)
	for i := range means {
		sum := 0.0
		for range s {
			sum += s[draw.IntN(len(s))]
		}
		means[i] = sum / float64(len(s))
	}
	slices.Sort(means)
	return means[resamples*25/1000], means[resamples*975/1000]
}

func mean(s []float64) (m float64) {
	for _, v := range s {
		m += v / float64(len(s))
	}
	return m
}

// String returns the line as tests log it.
func (l Line) String() string {
	name := l.Name
	if l.Device != "" {
		name = l.Device + ": " + name
	}
	text := fmt.Sprintf("%-44s Go %-26v %s", name, l.Ours, l.Unit)
	if r, v := l.Compare(); len(l.C) != 0 {
		text += fmt.Sprintf(", %s %v, %v: %s", l.Beside, l.C, r, v)
	}
	return text
}
