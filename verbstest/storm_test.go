package verbstest_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
)

// TestDialCloseStorm dials a thousand times at once, and closes each connection as soon as it is up:
// the ends of some overtake the messages that set up others. Each acceptance returns, and each
// server's end learns that its peer has left, before a message would be repeated after 4 s.
func TestDialCloseStorm(t *testing.T) {
	const n = 1000
	synctest.Test(t, func(t *testing.T) {
		m := newMachines(t)
		opt := cm.Options{SharePD: true, Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1}}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		begin := time.Now()
		var sides sync.WaitGroup
		for range n {
			sides.Go(func() {
				c, err := (&cm.Dialer{Transport: m.client, Options: opt}).Dial(ctx, addr)
				if err == nil {
					err = c.Close()
				}
				if err != nil {
					t.Error(err)
				}
			})
			sides.Go(func() {
				r, err := m.listener.Accept(ctx)
				if err != nil {
					t.Error(err)
					return
				}
				s, err := r.Accept(ctx, opt)
				if err != nil {
					t.Error(err)
					return
				}
				if err := awaitDone(ctx, s); err != nil {
					t.Errorf("a peer that has left: %v", err)
				}
				s.Close()
			})
		}
		sides.Wait()
		took := time.Since(begin)
		time.Sleep(100 * time.Millisecond) // the last answers
		if s := m.client.Stats(); s.IDs != 0 || s.Leaving != 0 || took > 3*time.Second {
			t.Errorf("after %v: %+v", took, s)
		}
	})
}
