package cm

import (
	"context"
	"log/slog"
	"net/netip"
	"testing"
)

// TestNoLogger checks that nothing is allocated without a Logger, or if its level is higher.
func TestNoLogger(t *testing.T) {
	remote := netip.MustParseAddrPort("10.9.0.1:7471")
	quiet := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelError}))
	for _, log := range []*slog.Logger{nil, quiet} {
		allocs := testing.AllocsPerRun(100, func() {
			j := newConnLogger(log)
			j.logStep("address resolved", remote, context.Canceled)
			e := Endpoint{}
			if log == nil {
				e.log = j
				e.logStep(slog.LevelDebug, "connection established", context.Canceled)
			}
		})
		if allocs != 0 {
			t.Errorf("logger %v: %v allocations", log, allocs)
		}
	}
}
