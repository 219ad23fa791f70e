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

// box collects the completions of one direction. The goroutine that polls the CQ sorts
// the completions: those of the Conn's own requests go to the goroutines that wait for
// them, the user's to ready. A waiter takes nothing before all that it needs is there, so
// nothing is lost when its context ends.
type box struct {
	c    *Conn
	cq   *uverbs.CQ
	sort func(*verbs.WC)

	mu      sync.Mutex
	wcs     [16]verbs.WC // scratch
	ready   fifo[verbs.WC]
	coming  int        // completions that are certain to arrive
	waiting int        // goroutines that wait
	changed event.Cond // a completion arrived, or the connection's state changed
	given   time.Time  // until when, after the connection's end, waits for coming continue

	// For Stats.
	most                                    int // the most requests in flight at a time
	completed, taken, failed, foreign, full uint64
	waits, wakeups                          uint64
}

// flushTime bounds the wait for the completions of posted requests after the end of a
// connection. The kernel normally flushes them at once.
const flushTime = 5 * time.Second

func (b *box) init(c *Conn, cq *uverbs.CQ, sort func(*verbs.WC)) {
	b.c, b.cq, b.sort = c, cq, sort
	b.changed.Init(&c.waiters)
}

// collect polls the CQ until it is empty. The caller holds mu.
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

// over returns the error of a wait that can never succeed, or nil. The caller holds mu.
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

// take fills out from ready if that has enough, and reports whether it did.
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
// fills out with their completions, in order of completion. If it fails it consumes no
// completion: they are left for the next call of Await or Poll. Several goroutines may
// wait; the first that can be satisfied takes what it needs.
//
// Signaled requests and all that fail have completions: see [verbs.WC.Err]. When the
// connection has ended, those in flight complete with WCFlushErr, and waiting for more
// completions than that fails with the reason of the end.
func (c *Conn) Await(ctx context.Context, d Direction, out []verbs.WC) error {
	b := c.box(d)
	if err := b.wait(ctx, func() bool { return b.take(out) }); err != nil {
		return c.fail("await completions from", err)
	}
	return nil
}

// Poll moves up to len(out) completions into out and returns their number. It never
// waits.
func (c *Conn) Poll(d Direction, out []verbs.WC) int {
	b := c.box(d)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.collect()
	n := min(len(out), b.ready.len())
	b.take(out[:n])
	return n
}
