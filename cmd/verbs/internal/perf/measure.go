package perf

import (
	"context"
	"net"
	"time"

	"github.com/goverbs/verbs/cmd/verbs/internal/cli"
	"github.com/goverbs/verbs/cmd/verbs/internal/latency"
	"github.com/goverbs/verbs/rsock"
)

// Figure is the result of a test of Measure, or why it failed.
type Figure struct {
	Test      string           `json:"test"` // "write lat"
	Size      int              `json:"size"`
	Latency   *latency.Summary `json:"latency_us,omitempty"`
	Bandwidth *bandwidth       `json:"bandwidth,omitempty"`
	Error     string           `json:"error,omitempty"`
}

// Measure runs a short list of tests with the server at addr, from a device and with a traffic class, each
// for long.
func Measure(ctx context.Context, device, addr string, tclass uint8, long time.Duration) (figures []Figure) {
	for _, w := range []work{
		{Op: "send", Mode: modeLat, Size: 8},
		{Op: "write", Mode: modeLat, Size: 8},
		{Op: "read", Mode: modeLat, Size: 8},
		{Op: "write", Mode: modeBW, Size: 8, List: 16, CQMod: 64},
		{Op: "send", Mode: modeBW, Size: 64 << 10},
		{Op: "write", Mode: modeBW, Size: 64 << 10},
		{Op: "read", Mode: modeBW, Size: 64 << 10},
	} {
		w.Version, w.Duration, w.Timeout = version, long, peerTimeout
		w.TClass = tclass
		w.QPs, w.TxDepth, w.RxDepth, w.List, w.CQMod = 1, 128, 512, max(w.List, 1), max(w.CQMod, 1)
		f := Figure{Test: w.Op + " " + w.Mode, Size: w.Size}
		if r, err := runOnce(ctx, device, addr, w); err != nil {
			f.Error = cli.Printable(err.Error())
		} else {
			f.Latency, f.Bandwidth = r.Latency, r.Bandwidth
		}
		figures = append(figures, f)
	}
	return figures
}

// runOnce makes a run on a control connection of its own, which an error would end.
func runOnce(ctx context.Context, device, addr string, w work) (*result, error) {
	ctl, err := connect(ctx, device, addr, w.TClass)
	if err != nil {
		return nil, err
	}
	defer ctl.Conn.Close()
	return run(ctx, w, ctl, true, nil)
}

// Serve serves clients such as Measure at any port of an address until ctx ends. It returns the
// address with the port, and a channel that is closed when the server has ended.
func Serve(ctx context.Context, addr string) (at net.Addr, ended <-chan struct{}, err error) {
	l, err := (&rsock.ListenConfig{Options: controlOptions}).Listen(ctx, "rdma", net.JoinHostPort(addr, "0"))
	if err != nil {
		return nil, nil, err
	}
	v := server{report: func(*result) {}, log: func(string, ...any) {}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		v.serveAll(ctx, l, 2) // the next may come before the last is gone
	}()
	return l.Addr(), done, nil
}
