//go:build linux

package main

import (
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

// TestEndedConnections: the server closes connections that have ended, while it serves others.
func TestEndedConnections(t *testing.T) {
	labtest.Require(t)
	ctx := labtest.Within(t, time.Minute)
	const clients, slots = 10, 2
	dev := labtest.Must(uverbs.Open(labtest.RoCE))(t)
	pd := labtest.Must(dev.AllocPD())(t)
	s := server{
		srq:   labtest.Must(pd.CreateSRQ(uverbs.SRQOptions{MaxWR: slots, MaxSGE: 1}))(t),
		cq:    labtest.Must(dev.CreateCQ(uverbs.CQOptions{Depth: 5 * clients, Channel: labtest.Must(dev.CreateCompChannel())(t)}))(t),
		mr:    labtest.Must(pd.AllocMR(slots*room, verbs.AccessLocalWrite, uverbs.MROptions{}))(t),
		conns: map[uint32]*cm.Endpoint{},
	}
	for slot := range slots {
		labtest.Check(t, s.post(slot))
	}
	l := labtest.Made(cm.Listen(ctx, labtest.AddrOf(labtest.RoCE)+":0"))(t)
	go s.accept(ctx, l, pd, clients)
	go s.serve(ctx, clients*requests+1)
	for i := range clients {
		labtest.Check(t, ask(ctx, l.Addr().String(), i))
	}
	labtest.Until(t, "the server to close all connections", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.conns) == 0
	})
}
