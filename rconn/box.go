package rconn

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/event"
	"github.com/goverbs/verbs/uverbs"
)

// box collects one direction's completions. The goroutine that polls the CQ sorts what it
// finds: completions of the Conn's own requests go to the goroutines that wait for them,
// the user's go to ready. A waiter takes nothing before it has all it needs, so nothing is
// lost when it gives up.
type box struct {
	c    *Conn
	cq   *uverbs.CQ
	sort func(*verbs.WC)

	mu      sync.Mutex
	wcs     [16]verbs.WC // scratch
	ready   fifo[verbs.WC]
	coming  int        // completions that will certainly come
	waiting int        // goroutines that wait
	changed event.Cond // something came in, or the connection has changed
	given   time.Time  // until when, after the end, what is coming is awaited

	// For Stats.
	most                                    int // requests under way at most
	completed, taken, failed, foreign, full uint64
	waits, wakeups                          uint64
}

// flushTime is how long after the end of a connection the completions of what
// was posted are awaited. The kernel makes them at once; this is a bound for one that
// does not.
const flushTime = 5 * time.Second

func (b *box) init(c *Conn, cq *uverbs.CQ, sort func(*verbs.WC)) {
	b.c, b.cq, b.sort = c, cq, sort
	b.changed.Init(&c.waiters)
}

// collect polls all that the CQ has. The caller holds mu.
func (b *box) collect() {
	for !b.c.closed.Load() {
		n := b.cq.Poll(b.wcs[:])
		b.completed += uint64(n)
		for i := range n {
			b.sort(&b.wcs[i])
		}
		if n > 0 {
			b.changed.Signal()
		}
		if n < len(b.wcs) {
			return
		}
	}
}

// over returns the error of a wait that can never end. The caller holds mu.
func (b *box) over() error {
	switch err := b.c.Err(); {
	case err == nil && b.c.broken() == nil:
		return nil
	case errors.Is(err, verbs.ErrDeviceRemoved) || b.c.closed.Load():
		return err
	case b.coming > 0 && b.given.IsZero():
		b.given = time.Now().Add(flushTime)
		return nil
	case b.coming > 0 && time.Now().Before(b.given):
		return nil
	case err == nil:
		return b.c.broken()
	default:
		return err
	}
}

// take moves all of out, or nothing, out of ready.
func (b *box) take(out []verbs.WC) bool {
	if b.ready.len() < len(out) {
		return false
	}
	for i := range out {
		out[i] = b.ready.pop()
	}
	b.taken += uint64(len(out))
	return true
}

// Direction is one of a connection's two queues.
type Direction int

const (
	Sends Direction = iota // requests posted, except receives
	Recvs                  // messages received, and WRITEs with an immediate
)

func (c *Conn) box(d Direction) *box {
	if d == Sends {
		return &c.send.box
	}
	return &c.recv.box
}

// Await waits until len(out) requests of one direction have completed, and
// fills out with their completions, in order of completion. If it fails it has
// taken none: they are left for the next call of Await or Poll. Several goroutines may
// wait; the first that can be satisfied takes what it needs.
//
// Completions are those of requests that were signaled and of all that failed: see
// [verbs.WC.Err]. When the connection has ended, those under way complete
// with WCFlushErr, and waiting for more than will come fails with the reason of the end.
func (c *Conn) Await(ctx context.Context, d Direction, out []verbs.WC) error {
	b := c.box(d)
	if err := b.wait(ctx, func() bool { return b.take(out) }); err != nil {
		return c.fail("await completions from", err)
	}
	return nil
}

// Poll moves up to len(out) completions into out and returns how many. It never waits.
func (c *Conn) Poll(d Direction, out []verbs.WC) int {
	b := c.box(d)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.collect()
	n := min(len(out), b.ready.len())
	b.take(out[:n])
	return n
}
