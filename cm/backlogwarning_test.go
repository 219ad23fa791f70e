package cm

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

// heldHandler is a slog.Handler that takes a token for each record, and adds up their requests.
type heldHandler struct {
	slog.Handler
	tokens         chan struct{}
	calls, running atomic.Int64
	requests       atomic.Uint64
}

func (h *heldHandler) Enabled(context.Context, slog.Level) bool { return true }

func (h *heldHandler) Handle(_ context.Context, r slog.Record) error {
	h.calls.Add(1)
	h.running.Add(1)
	defer h.running.Add(-1)
	<-h.tokens
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "requests" {
			h.requests.Add(a.Value.Uint64())
		}
		return true
	})
	return nil
}

// TestBacklogWarnings turns many requests away while the logger is stuck: one goroutine logs, and
// all requests are in its lines in the end.
func TestBacklogWarnings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const requests = 1000
		h := &heldHandler{tokens: make(chan struct{})}
		q := newQueue(nil)
		id := &ID{events: q, backlog: &backlog{most: 1, waiting: 1, log: slog.New(h)}}
		for i := range requests {
			if q.push(Event{Type: ConnectRequest, ID: id}) {
				t.Fatal("a request beyond the backlog")
			}
			if i == 0 {
				synctest.Wait()
			}
		}
		synctest.Wait()
		if n := h.running.Load(); n != 1 {
			t.Errorf("%d calls of a logger that is stuck", n)
		}
		close(h.tokens)
		synctest.Wait()
		if calls, n := h.calls.Load(), h.requests.Load(); calls != 2 || n != requests {
			t.Errorf("%d lines about %d requests, not 2 about %d", calls, n, requests)
		}
	})
}
