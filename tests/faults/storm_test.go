package faults

import (
	"context"
	"errors"
	"flag"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
)

// small is the capacity of the endpoints, which are a thousand.
var small = verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: 16}

// serveDialers serves a listener: every request is accepted immediately, however many there are,
// and each endpoint is closed when its peer has gone.
func serveDialers(t *testing.T, device string) (l *cm.Listener, accepted *atomic.Int64, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	l, err := cm.Listen(ctx, labtest.AddrOf(device)+":0")
	if err != nil {
		t.Fatal(err)
	}
	accepted = new(atomic.Int64)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			r, err := l.Accept(ctx)
			if err != nil {
				return
			}
			wg.Go(func() {
				each, cancel := context.WithTimeout(ctx, 60*time.Second)
				defer cancel()
				e, err := r.Accept(each, cm.Options{Cap: small})
				if err != nil {
					return // the peer has given up
				}
				accepted.Add(1)
				select {
				case <-e.Done():
				case <-ctx.Done():
				}
				e.Close()
			})
		}
	})
	return l, accepted, func() {
		cancel()
		l.Close()
		wg.Wait()
	}
}

var storm = flag.Int("storm", 1000, "how many dial at once in TestDialStorm and TestCancelStorm")

// dialers returns the number of dialers. On siw it is a quarter: sometimes its listener drops
// one reference to itself too many and breaks, more likely the more dialers there are.
func dialers(device string) int {
	n := labtest.Rounds(*storm, 100)
	if device == labtest.SIW {
		return n / 4
	}
	return n
}

// TestDialStorm runs a thousand concurrent dials: all must succeed.
func TestDialStorm(t *testing.T) {
	labtest.RequireKernel(t)
	labtest.Each(t, func(t *testing.T, device string) {
		before := labtest.SettledInventory(t)
		l, accepted, stop := serveDialers(t, device)
		ctx := labtest.Within(t, 2*time.Minute)
		start := time.Now()
		var wg sync.WaitGroup
		n := dialers(device)
		ends := make(chan *cm.Endpoint, n)
		for range n {
			wg.Go(func() {
				e, err := (&cm.Dialer{Options: cm.Options{Cap: small}, ResolveTimeout: time.Minute}).Dial(ctx, l.Addr().String())
				if err != nil {
					t.Error(err)
					return
				}
				ends <- e
			})
		}
		wg.Wait()
		t.Logf("%d connections in %v", len(ends), time.Since(start))
		close(ends)
		for e := range ends {
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		}
		stop()
		if got := accepted.Load(); got != int64(n) {
			t.Errorf("%d of %d were accepted", got, n)
		}
		waitSameInventory(t, before)
	})
}

// TestCancelStorm runs a thousand concurrent dials, half of them canceled at random moments.
// Nothing may be leaked.
func TestCancelStorm(t *testing.T) {
	labtest.RequireLong(t)
	labtest.Each(t, func(t *testing.T, device string) {
		before := labtest.SettledInventory(t)
		l, _, stop := serveDialers(t, device)
		var gaveUp, got atomic.Int64
		var wg sync.WaitGroup
		for i := range dialers(device) {
			wg.Go(func() {
				limit := 2 * time.Minute
				if i%2 == 0 {
					limit = time.Duration(rand.Int64N(int64(4 * time.Second)))
				}
				ctx := labtest.Within(t, limit)
				e, err := (&cm.Dialer{Options: cm.Options{Cap: small}, ResolveTimeout: time.Minute}).Dial(ctx, l.Addr().String())
				switch {
				case err == nil:
					got.Add(1)
					e.Close()
				case errors.Is(err, context.DeadlineExceeded) && i%2 == 0:
					gaveUp.Add(1)
				default:
					t.Error(err)
				}
			})
		}
		wg.Wait()
		t.Logf("%d connected, %d gave up", got.Load(), gaveUp.Load())
		if gaveUp.Load() == 0 {
			t.Error("none gave up: nothing was tested")
		}
		stop()
		waitSameInventory(t, before)
	})
}

// waitSameInventory calls labtest.CheckLeaks, but waits longer for objects to disappear, and
// ignores that the runtime has grown.
func waitSameInventory(t *testing.T, before map[string]int) {
	t.Helper()
	for range 30 {
		now := labtest.Inventory(t)
		same := true
		for name, n := range before {
			same = same && (name == labtest.Anonymous || now[name] == n)
		}
		if same {
			return
		}
		time.Sleep(time.Second)
	}
	labtest.CheckLeaks(t, before)
}
