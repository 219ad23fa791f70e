package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// pingResult is what one side of a connection found out. A round's latency is
// the client's: from its first message until the data is back.
type pingResult struct {
	Role      string       `json:"role"`
	Device    string       `json:"device"`
	Local     string       `json:"local"`
	Remote    string       `json:"remote"`
	Count     int          `json:"count"` // of whole rounds
	Size      int          `json:"size"`
	Validated bool         `json:"validated"`
	Latency   *pingLatency `json:"latency_us,omitempty"`

	histogram *hdrhistogram.Histogram // in nanoseconds; nil at servers
}

// pingLatency is in microseconds.
type pingLatency struct {
	Min  float64 `json:"min"`
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p99.9"`
	Max  float64 `json:"max"`
}

// pingLongest bounds the histogram; what takes longer counts as that.
const pingLongest = time.Hour

func newPingResult(role string, p *pinger, size int) *pingResult {
	return &pingResult{
		Role: role, Size: size, Device: p.qp.PD().Context().Device().Name,
		Local: p.LocalAddr().String(), Remote: p.RemoteAddr().String(),
	}
}

// measure makes room for latencies.
func (r *pingResult) measure() { r.histogram = hdrhistogram.New(1, int64(pingLongest), 3) }

func (r *pingResult) took(d time.Duration) { r.histogram.RecordValue(int64(min(d, pingLongest))) }

func (r *pingResult) latency() *pingLatency {
	h := r.histogram
	if h == nil || h.TotalCount() == 0 {
		return nil
	}
	us := func(ns float64) float64 { return ns / 1e3 }
	p := h.ValueAtPercentilesSlice([]float64{50, 90, 99, 99.9})
	return &pingLatency{
		Min: us(float64(h.Min())), Mean: us(h.Mean()), Max: us(float64(h.Max())),
		P50: us(float64(p[0])), P90: us(float64(p[1])), P99: us(float64(p[2])), P999: us(float64(p[3])),
	}
}

func (r *pingResult) print(json bool) error {
	r.Latency = r.latency()
	if json {
		return printJSON(r)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d rounds of %d bytes with %s on %s", r.Count, r.Size, r.Remote, r.Device)
	if l := r.Latency; l != nil {
		fmt.Fprintf(&b, "; us: min %.1f, mean %.1f, p50 %.1f, p90 %.1f, p99 %.1f, p99.9 %.1f, max %.1f",
			l.Min, l.Mean, l.P50, l.P90, l.P99, l.P999, l.Max)
	}
	_, err := fmt.Println(&b)
	return err
}
