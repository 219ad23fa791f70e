package perf

import (
	"fmt"

	"github.com/goverbs/verbs/cmd/verbs/internal/cli"
	"github.com/goverbs/verbs/cmd/verbs/internal/latency"
)

// result holds the measurements of a side in a run.
type result struct {
	Op     string `json:"op"`
	Mode   string `json:"mode"`
	Role   string `json:"role"`
	Device string `json:"device"`
	Local  string `json:"local"`
	Remote string `json:"remote"`
	Size   int    `json:"size"`
	QPs    int    `json:"qps"`
	Both   bool   `json:"bidirectional"`
	Events bool   `json:"events"`

	counts
	Seconds float64 `json:"seconds"`

	Latency   *latency.Summary `json:"latency_us,omitempty"`
	Histogram []latency.Bucket `json:"histogram_us,omitempty"`
	Bandwidth *bandwidth       `json:"bandwidth,omitempty"`
	Intervals []interval       `json:"intervals,omitempty"`
}

// counts are of messages, or requests.
type counts struct {
	Sent         uint64 `json:"sent"`
	Received     uint64 `json:"received"`      // from the peer, as far as this side knows
	PeerSent     uint64 `json:"peer_sent"`     // as the peer reports
	PeerReceived uint64 `json:"peer_received"` // as the peer reports
	Lost         uint64 `json:"lost"`          // datagrams, in both directions
}

// bandwidth is the sum of both directions.
type bandwidth struct {
	Bytes    float64 `json:"bytes_per_second"`
	Mebi     float64 `json:"mib_per_second"`
	Gbit     float64 `json:"gbit_per_second"`
	Messages float64 `json:"messages_per_second"`
}

func newResult(s *session, o outcome) *result {
	r := &result{
		Op: s.Op, Mode: s.Mode, Role: "server", Device: s.path.Device.Name,
		Local: s.ctl.local().String(), Remote: s.ctl.remote().String(),
		Size: s.Size, QPs: s.QPs, Both: s.Both, Events: s.Events,
		counts: counts{Sent: o.own.Sent, Received: o.own.Received, PeerSent: o.peer.Sent, PeerReceived: o.peer.Received},
	}
	if s.client {
		r.Role = "client"
	}
	r.Seconds = max(o.own.Seconds, o.peer.Seconds)
	r.Latency, r.Histogram = o.hist.Summary(), o.hist.Buckets()
	if s.op.datagram {
		r.Lost = r.Sent - min(r.PeerReceived, r.Sent) + r.PeerSent - min(r.Received, r.PeerSent)
	}
	if s.Mode == modeBW {
		r.Bandwidth = new(bandwidth)
		// Lost datagrams do not count.
		arrived := func(sent, received uint64) uint64 {
			if s.op.datagram {
				return min(sent, received)
			}
			return sent
		}
		r.Bandwidth.add(arrived(o.own.Sent, o.peer.Received), s.Size, o.own.Seconds)
		r.Bandwidth.add(arrived(o.peer.Sent, o.own.Received), s.Size, o.peer.Seconds)
	}
	return r
}

func (b *bandwidth) add(messages uint64, size int, seconds float64) {
	if messages == 0 || seconds == 0 {
		return
	}
	b.Messages += float64(messages) / seconds
	b.Bytes += float64(messages) * float64(size) / seconds
	b.Mebi = b.Bytes / (1 << 20)
	b.Gbit = b.Bytes * 8 / 1e9
}

// tableWidth is the number of columns of the wider table, of latencies.
const tableWidth = 79

// heading and line print the columns of perftest; times are in microseconds.
func heading(op, mode string) string {
	if mode == modeLat {
		return fmt.Sprintf("%s %s [us]\n%7s %8s", op, mode, "bytes", "count") +
			fmt.Sprintf(" %8s %8s %8s %8s %8s %8s %8s", "min", "mean", "p50", "p90", "p99", "p99.9", "max")
	}
	return fmt.Sprintf("%s %s\n%9s %11s %12s %12s %12s", op, mode, "bytes", "iterations", "MiB/s", "Gbit/s", "Mmsg/s")
}

// line returns the result for a terminal of width columns, which 0 does not limit.
func (r *result) line(width int) string {
	var s string
	switch l, b := r.Latency, r.Bandwidth; {
	case b != nil:
		s = fmt.Sprintf("%9d %11d %12.2f %12.3f %12.6f", r.Size, r.Sent, b.Mebi, b.Gbit, b.Messages/1e6)
	case width > 0 && width < tableWidth:
		s = cli.Wrap("", fmt.Sprintf("%d bytes, %d times, %v", r.Size, r.Sent, l), width, "  ")
	default:
		s = fmt.Sprintf("%7d %8d", r.Size, r.Sent)
		for _, us := range []float64{l.Min, l.Mean, l.P50, l.P90, l.P99, l.P999, l.Max} {
			s += fmt.Sprintf(" %8.2f", us)
		}
	}
	if r.Lost > 0 {
		s += fmt.Sprintf("   %d lost", r.Lost)
	}
	return s
}

// served returns the line that a server prints. What a client writes or reads is in its count only.
func (r *result) served() string {
	return fmt.Sprintf("%s %s of %d bytes for %s on %s: %d from the client, %d to it", r.Op, r.Mode, r.Size, r.Remote, r.Device, r.PeerSent, r.Sent)
}
