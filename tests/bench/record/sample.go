package record

import (
	"fmt"
	"math"
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

// Figure is a number in four digits, or more before the point.
func Figure(v float64) string {
	if math.Abs(v) >= 1000 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.4g", v)
}

// String is minimum, median and maximum; nothing, if there are no figures.
func (s Sample) String() string {
	if len(s) == 0 {
		return ""
	}
	return Figure(s.Min()) + " / " + Figure(s.Median()) + " / " + Figure(s.Max())
}
