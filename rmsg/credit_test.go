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

// noRNR insists that, until the test ends, no message on a device came before
// there was a receive for it. On siw, which counts nothing, one that does ends
// its connection.
func noRNR(t *testing.T, device string) {
	ctx := labtest.OpenDevice(t, device)
	count := func() (n uint64) {
		if device == labtest.SIW {
			return 0
		}
		c := labtest.Must(ctx.Counters(1))(t)
		for _, name := range []string{"rcvd_rnr_err", "send_rnr_err"} {
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

// TestCredits sends both ways with hardly any credits, to programs that free
// late, and out of order, and loops that sleep. Messages are sent at once, in one segment
// or several, or announced.
func TestCredits(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		noRNR(t, device)
		const segment = 64
		for _, eager := range []int{segment, 200} {
			for _, credits := range []int{1, 2, 3, 9} {
				opt := rmsg.Options{Credits: credits, SendQueue: 2*credits + 1, Segment: segment, Eager: eager, Window: 2000}
				withCredits(t, device, opt)
			}
		}
	})
}

func withCredits(t *testing.T, device string, opt rmsg.Options) {
	c, s := pair(t, device, opt, opt)
	const n = 400
	// receives is how many credits a message takes.
	receives := func(n int) int {
		if k := max(1, (n+opt.Segment-1)/opt.Segment); n <= opt.Eager && k <= opt.Credits {
			return k
		}
		return 1
	}
	// A program may hold what leaves room for the largest message.
	most := opt.Credits / 2
	if opt.Eager > opt.Segment {
		most = opt.Credits - min(opt.Credits, (opt.Eager+opt.Segment-1)/opt.Segment)
	}
	var all sync.WaitGroup
	one := func(from, to *rmsg.Socket) {
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
			taken := 0
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
				taken += receives(size(i))
				for taken > most {
					k := rand.IntN(len(held))
					taken -= receives(len(held[k].Bytes()))
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
