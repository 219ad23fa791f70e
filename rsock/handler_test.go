//go:build linux

package rsock_test

import (
	"context"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rsock"
	"github.com/goverbs/verbs/verbstest"
)

// asking is a handler that asks for statistics, as that of a program that watches its connections may.
type asking struct {
	slog.Handler
	ask func()
}

func (h asking) Handle(ctx context.Context, r slog.Record) error {
	h.ask()
	return h.Handler.Handle(ctx, r)
}

// TestHandlerAsks loses a connection whose handler asks for its statistics: no lock is held meanwhile.
func TestHandlerAsks(t *testing.T) {
	network := verbstest.NewNetwork(verbstest.Options{})
	client, server := verbstest.NewHost(t, network, "10.0.0.1"), verbstest.NewHost(t, network, "10.0.0.2")
	l := labtest.Must((&rsock.ListenConfig{Transport: server}).Listen(t.Context(), "rdma", "10.0.0.2:7471"))(t)
	defer l.Close()
	var log labtest.Log
	d := rsock.Dialer{Transport: client, Options: rsock.Options{RetryCount: 1}}
	d.Logger = slog.New(asking{slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}), func() { d.Stats() }})
	c := labtest.Must(d.Dial("rdma", "10.0.0.2:7471"))(t)
	s := labtest.Must(l.Accept())(t)
	network.Partition(netip.MustParseAddr("10.0.0.2"))
	labtest.Must(c.Write([]byte("lost")))(t)
	over := make(chan error, 1)
	go func() {
		_, err := c.Read(make([]byte, 1))
		c.Close()
		over <- err
	}()
	select {
	case err := <-over:
		if err == nil {
			t.Error("the connection is not lost")
		}
	case <-time.After(30 * time.Second):
		t.Fatalf("Read and Close wait for the handler:\n%s", &log)
	}
	network.Heal()
	s.Close()
	labtest.Until(t, "the end to be logged", func() bool { return strings.Contains(log.String(), "connection ended") })
}
