package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/goverbs/verbs/internal/latency"
)

// pingResult is what one side of a connection found out. A round's latency is
// the client's: from its first message until the data is back.
type pingResult struct {
	Role      string           `json:"role"`
	Device    string           `json:"device"`
	Local     string           `json:"local"`
	Remote    string           `json:"remote"`
	Count     int              `json:"count"` // of whole rounds
	Size      int              `json:"size"`
	Validated bool             `json:"validated"`
	Latency   *latency.Summary `json:"latency_us,omitempty"`

	histogram *latency.Histogram // nil at servers
}

func newPingResult(role string, p *pinger, size int) *pingResult {
	return &pingResult{
		Role: role, Size: size, Device: p.qp.PD().Context().Device().Name,
		Local: p.LocalAddr().String(), Remote: p.RemoteAddr().String(),
	}
}

// measure makes room for latencies.
func (r *pingResult) measure() { r.histogram = latency.New() }

func (r *pingResult) took(d time.Duration) { r.histogram.Record(d) }

func (r *pingResult) print(json bool) error {
	r.Latency = r.histogram.Summary()
	if json {
		return printJSON(r)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d rounds of %d bytes with %s on %s", r.Count, r.Size, r.Remote, r.Device)
	if l := r.Latency; l != nil {
		fmt.Fprintf(&b, "; %v", l)
	}
	_, err := fmt.Println(&b)
	return err
}
