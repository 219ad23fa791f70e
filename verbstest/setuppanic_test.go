package verbstest_test

import (
	"context"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/verbstest"
)

// TestSetupPanics panics in Setup, which the programs recover: both sides keep nothing, and the
// listener its room. The transports are closed at the end, which fails if something is open.
func TestSetupPanics(t *testing.T) {
	network := verbstest.NewNetwork(verbstest.Options{})
	client, server := verbstest.NewHost(t, network, "10.0.0.1"), verbstest.NewHost(t, network, "10.0.0.2")
	l := labtest.Must((&cm.ListenConfig{Transport: server, MaxConns: 2}).Listen(t.Context(), "10.0.0.2:7471"))(t)
	panics := cm.Options{Setup: func(e *cm.Endpoint) error {
		labtest.Must(e.AllocMR(4096, verbs.AccessLocalWrite))(t)
		panic("in Setup")
	}}
	recovered := func(f func()) {
		defer func() {
			if recover() == nil {
				t.Error("no panic")
			}
		}()
		f()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for range 3 {
		recovered(func() { (&cm.Dialer{Transport: client, Options: panics}).Dial(ctx, "10.0.0.2:7471") })
		dialed := make(chan error, 1)
		go func() {
			_, err := (&cm.Dialer{Transport: client}).Dial(ctx, "10.0.0.2:7471")
			dialed <- err
		}()
		r := labtest.Must(l.Accept(ctx))(t)
		recovered(func() { r.Accept(ctx, panics) })
		if err := <-dialed; err == nil {
			t.Error("a connection that was not accepted is up")
		}
	}
	if s := l.Stats(); s.Failed != 3 || s.TurnedAway != 0 {
		t.Errorf("%+v", s)
	}
	labtest.Check(t, l.Shutdown(ctx), client.Close(), server.Close())
}
