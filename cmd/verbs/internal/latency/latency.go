// Package latency summarizes measured latencies.
package latency

import (
	"fmt"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Longest is the largest latency that is recorded; longer ones count as Longest.
const Longest = time.Hour

// Histogram counts latencies, each to 3 significant digits. Recording does not allocate.
type Histogram struct{ h *hdrhistogram.Histogram }

// New returns an empty histogram.
func New() *Histogram { return &Histogram{hdrhistogram.New(1, int64(Longest), 3)} }

// Record counts one latency.
func (h *Histogram) Record(d time.Duration) { h.h.RecordValue(int64(min(d, Longest))) }

// Summary holds statistics in microseconds.
type Summary struct {
	Min  float64 `json:"min"`
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p99.9"`
	Max  float64 `json:"max"`
}

// Summary returns nil if h is nil or nothing was recorded.
func (h *Histogram) Summary() *Summary {
	if h == nil || h.h.TotalCount() == 0 {
		return nil
	}
	us := func(ns float64) float64 { return ns / 1e3 }
	p := h.h.ValueAtPercentilesSlice([]float64{50, 90, 99, 99.9})
	return &Summary{
		Min: us(float64(h.h.Min())), Mean: us(h.h.Mean()), Max: us(float64(h.h.Max())),
		P50: us(float64(p[0])), P90: us(float64(p[1])), P99: us(float64(p[2])), P999: us(float64(p[3])),
	}
}

// Bucket counts the latencies of at most so many microseconds that are in no earlier bucket.
type Bucket struct {
	AtMost float64 `json:"at_most"`
	Count  int64   `json:"count"`
}

// Buckets returns the buckets that are not empty, or nil if h is.
func (h *Histogram) Buckets() (all []Bucket) {
	if h == nil {
		return nil
	}
	for _, bar := range h.h.Distribution() {
		if bar.Count > 0 {
			all = append(all, Bucket{float64(bar.To) / 1e3, bar.Count})
		}
	}
	return all
}

func (s *Summary) String() string {
	return fmt.Sprintf("us: min %.1f, mean %.1f, p50 %.1f, p90 %.1f, p99 %.1f, p99.9 %.1f, max %.1f",
		s.Min, s.Mean, s.P50, s.P90, s.P99, s.P999, s.Max)
}
