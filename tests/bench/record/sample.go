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
