//go:build linux

package rmsg_test

import (
	"bytes"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rmsg"
)

// noRNR tests that until the test ends every message on a device finds a receive.
func noRNR(t *testing.T, device string) {
	ctx := labtest.OpenDevice(t, device)
	count := func() (n uint64) {
		c := labtest.Must(ctx.Counters(1))(t)
		for _, name := range labtest.NotReady(device) {
			v, ok := c[name]
			if !ok {
				t.Fatalf("no counter %s among %v", name, c)
			}
			n += v
		}
		return n
	}
	before := count()
	t.Cleanup(func() {
		if n := count() - before; n != 0 {
			t.Errorf("receivers were not ready %d times", n)
		}
	})
}

// TestCredits sends in both directions with few credits, to receivers that free messages
// late and out of order. Some messages are announced.
func TestCredits(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		noRNR(t, device)
		for _, credits := range []int{1, 2, 3, 9} {
			withCredits(t, device, rmsg.Options{Credits: credits, SendQueue: 2*credits + 1, Eager: 100, Window: 2000})
		}
	})
}

func withCredits(t *testing.T, device string, opt rmsg.Options) {
	c, s := pair(t, device, opt, opt)
	const n = 400
	var all sync.WaitGroup
	one := func(from, to *rmsg.Conn) {
		size := func(i int) int { return i * 37 % 250 }
		all.Go(func() {
			for i := range n {
				if err := from.Send(within(t), pattern(size(i), i)); err != nil {
					t.Error(err)
					return
				}
			}
		})
		all.Go(func() {
			var held []*rmsg.Buffer
			for i := range n {
				b, err := to.Recv(within(t))
				if err != nil {
					t.Errorf("message %d, credits %d: %v", i, opt.Credits, err)
					return
				}
				if !bytes.Equal(b.Bytes(), pattern(size(i), i)) {
					t.Errorf("message %d is another", i)
				}
				held = append(held, b)
				for len(held) > opt.Credits/2 {
					k := rand.IntN(len(held))
					held[k].Free()
					held = append(held[:k], held[k+1:]...)
				}
				if i%50 == 0 {
					time.Sleep(time.Millisecond)
				}
			}
			for _, b := range held {
				b.Free()
			}
		})
	}
	one(c, s)
	one(s, c)
	all.Wait()
	if err := c.Shutdown(within(t)); err != nil {
		t.Error(err)
	}
}
