//go:build linux

package rmsg

import (
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
)

// TestLargeSendsKeepNothing sends messages above Eager: the connection keeps none of their buffers.
func TestLargeSendsKeepNothing(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		ctx := labtest.Within(t, 20*time.Second)
		l := labtest.Made((&ListenConfig{}).Listen(ctx, labtest.AddrOf(device)+":0"))(t)
		accepted := make(chan *Conn, 1)
		go func() { accepted <- labtest.Must(l.Accept(ctx))(t) }()
		c := labtest.Must(Dial(ctx, l.Addr().String()))(t)
		defer c.Close()
		s := <-accepted
		for range 50 {
			labtest.Check(t, c.Send(ctx, make([]byte, 32<<10)))
			labtest.Must(s.Recv(ctx))(t).Free()
		}
		labtest.Until(t, "all to be sent", func() bool { return c.Stats().Queued == 0 })
		c.arena.mu.Lock()
		n := len(c.arena.free)
		c.arena.mu.Unlock()
		if n != 0 {
			t.Errorf("%d buffers are kept", n)
		}
		labtest.Check(t, c.Shutdown(ctx))
		<-s.Done()
	})
}
