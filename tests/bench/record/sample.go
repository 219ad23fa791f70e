package record

import (
	"fmt"
	"math"
	"slices"
)

// Sample holds the figures of one side, one for each pair.
type Sample []float64

// Min returns the smallest figure.
func (s Sample) Min() float64 { return slices.Min(s) }

// Max returns the largest figure.
func (s Sample) Max() float64 { return slices.Max(s) }

// Median returns the figure in the middle, or the mean of the two in the middle.
func (s Sample) Median() float64 {
	sorted := slices.Sorted(slices.Values(s))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// Quantile returns the smallest figure that a part q, in 0..1, of all figures does not
// exceed, or NaN if there are none.
func (s Sample) Quantile(q float64) float64 {
	if len(s) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(s))
	return sorted[max(int(math.Ceil(q*float64(len(s)))), 1)-1]
}

// Figure formats a number with four digits, or more before the point.
func Figure(v float64) string {
	if math.Abs(v) >= 1000 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.4g", v)
}

// String returns minimum, median and maximum, or "" if there are no figures.
func (s Sample) String() string {
	if len(s) == 0 {
		return ""
	}
	return Figure(s.Min()) + " / " + Figure(s.Median()) + " / " + Figure(s.Max())
}

// Histogram counts figures in buckets, each wider than the one before by an eighth of an
// octave.
type Histogram struct {
	First  int   `json:"first"` // number of the first bucket
	Counts []int `json:"counts"`
}

const perOctave = 8

// Bound returns the lower bound of a bucket by its number.
func Bound(bucket int) float64 { return math.Exp2(float64(bucket) / perOctave) }

// NewHistogram counts figures. Those below 1 count as 1.
func NewHistogram(s Sample) Histogram {
	if len(s) == 0 {
		return Histogram{}
	}
	number := func(v float64) int { return int(math.Floor(math.Log2(max(v, 1)) * perOctave)) }
	h := Histogram{First: number(s.Min())}
	h.Counts = make([]int, number(s.Max())-h.First+1)
	for _, v := range s {
		h.Counts[number(v)-h.First]++
	}
	return h
}
