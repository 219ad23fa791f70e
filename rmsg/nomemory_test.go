//go:build linux

package rmsg

import (
	"context"
	"errors"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/soft"
	"github.com/goverbs/verbs/uverbs"
)

// TestSendWithoutMemory lets the first of two Sends that wait for room find no memory: the other one goes on.
func TestSendWithoutMemory(t *testing.T) {
	dev := labtest.Made(soft.New(soft.Options{Addrs: []netip.Addr{netip.MustParseAddr("127.0.0.84")}, Port: 14794}))(t)
	tr := &cm.Transport{Host: dev}
	t.Cleanup(func() { tr.Close() }) // IDs may still be closing
	opt := Options{Transport: tr, Window: -1, Cache: -1, Credits: 4}
	ctx := labtest.Within(t, 20*time.Second)
	l := labtest.Made((&ListenConfig{Options: opt}).Listen(ctx, "127.0.0.84:0"))(t)
	c, p := labtest.DialAccept(t, func() (*Conn, error) { return (&Dialer{Options: opt}).Dial(ctx, l.Addr().String()) }, func() (*Conn, error) { return l.Accept(ctx) })
	labtest.Close(t, c)
	labtest.Close(t, p)
	// The peer reads the first message, and, as its window is one, not the second before its program has freed that.
	message := make([]byte, 100<<10)
	labtest.Check(t, c.Send(ctx, message), c.Send(ctx, message))
	sent := make(chan error, 2)
	for range 2 {
		go func() { sent <- c.Send(ctx, message) }()
	}
	for c.Stats().BufferWaits < 2 {
		runtime.Gosched()
	}
	pd := labtest.Must(c.arena.dev.ctx.AllocPD())(t)
	labtest.Check(t, pd.Close())
	swap := func(to *uverbs.PD) (was *uverbs.PD) {
		c.arena.mu.Lock()
		defer c.arena.mu.Unlock()
		was, c.arena.pd = c.arena.pd, to
		return was
	}
	good := swap(pd) // registering fails, as without memory
	labtest.Must(p.Recv(ctx))(t).Free()
	if err := <-sent; err == nil {
		t.Error("a Send has memory from a PD that is closed")
	}
	swap(good)
	if err := <-sent; errors.Is(err, context.DeadlineExceeded) { // it may have found no memory either
		t.Error(err)
	}
}
