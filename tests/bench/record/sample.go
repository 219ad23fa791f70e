package record

import (
	"fmt"
	"slices"
)

// Sample is what one side measured, a figure for each repetition.
type Sample []float64

// Min is the least figure.
func (s Sample) Min() float64 { return slices.Min(s) }

// Max is the greatest figure.
func (s Sample) Max() float64 { return slices.Max(s) }

// Median is the figure in the middle, or between the two that are.
func (s Sample) Median() float64 {
	sorted := slices.Sorted(slices.Values(s))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// Steady says whether the figures lie within half their median.
func (s Sample) Steady() bool { return s.Max()-s.Min() <= s.Median()/2 }

// String is minimum, median and maximum.
func (s Sample) String() string {
	if len(s) == 0 {
		return "none"
	}
	return fmt.Sprintf("%.4g / %.4g / %.4g", s.Min(), s.Median(), s.Max())
}
