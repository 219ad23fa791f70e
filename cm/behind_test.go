//go:build linux

package cm_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

// TestEndBehindRequests closes connections with shared CQs while requests of the port wait for
// answers: Linux 7.3 sends 128 at a time, and drops the DREQ of an ID that is destroyed meanwhile.
func TestEndBehindRequests(t *testing.T) {
	labtest.RequireBoth(t)
	const conns, requests = 50, 200
	ctx := labtest.Within(t, time.Minute)
	addr := labtest.AddrOf(labtest.RoCE) + ":0"
	busy := labtest.Made((&cm.ListenConfig{Backlog: requests}).Listen(ctx, addr))(t) // never accepts
	l := labtest.Made(cm.Listen(ctx, addr))(t)
	first, peer := labtest.Connect(ctx, t, addr, cm.Options{}, cm.Options{})
	defer peer.Close()
	defer first.Close()
	cq := labtest.Made(first.PD.Context().CreateCQ(uverbs.CQOptions{Depth: 4 * conns}))(t)
	opt := cm.Options{PD: first.PD, SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1}}
	var clients, servers []*cm.Endpoint
	for range conns {
		c, s := labtest.DialAccept(t, func() (*cm.Endpoint, error) { return (&cm.Dialer{Options: opt}).Dial(ctx, l.Addr().String()) },
			func() (*cm.Endpoint, error) {
				r, err := l.Accept(ctx)
				if err != nil {
					return nil, err
				}
				return r.Accept(ctx, cm.Options{SharePD: true})
			})
		clients, servers = append(clients, c), append(servers, s)
	}

	dialing, stop := context.WithCancel(ctx)
	defer stop()
	var dials sync.WaitGroup
	for range requests {
		dials.Go(func() {
			if e, err := (&cm.Dialer{Options: cm.Options{SharePD: true}}).Dial(dialing, busy.Addr().String()); err == nil {
				e.Close()
				t.Error("a request is accepted")
			}
		})
	}
	labtest.Until(t, "requests", func() bool { return busy.Stats().Waiting >= 128 })
	for _, c := range clients {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	begin := time.Now()
	for i, s := range servers {
		select {
		case <-s.Done():
		case <-ctx.Done():
			t.Errorf("the peer of connection %d never learns of the end", i)
		}
		s.Close()
	}
	t.Logf("all peers know of the end after %v", time.Since(begin).Round(time.Millisecond))
	stop()
	dials.Wait()
}
