package rconn

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/uverbs"
)

// box is where one direction's completions come in. Whoever polls the CQ sorts
// what it finds: the Conn's own completions to whoever waits for them, the
// user's into ready. No waiter holds any back, so none is lost when it gives up.
type box struct {
	c    *Conn
	cq   *uverbs.CQ
	sort func(*verbs.WC)

	mu      sync.Mutex
	wcs     [16]verbs.WC // scratch
	ready   fifo[verbs.WC]
	coming  int           // completions that will certainly come
	waiting int           // how many wait
	changed chan struct{} // if not nil, closed when something came in
	given   time.Time     // until when, after the end, what is coming is waited for
}

// flushTime is how long after the end of a connection the completions of what
// was posted are waited for. The kernel makes them at once; this is for one that
// does not.
const flushTime = 5 * time.Second

func (b *box) init(c *Conn, cq *uverbs.CQ, sort func(*verbs.WC)) {
	b.c, b.cq, b.sort = c, cq, sort
}

// collect takes what the CQ has. The caller holds mu.
func (b *box) collect() {
	for !b.c.closed.Load() {
		n := b.cq.Poll(b.wcs[:])
		for i := range n {
			b.sort(&b.wcs[i])
		}
		if n > 0 {
			b.tell()
		}
		if n < len(b.wcs) {
			return
		}
	}
}

// tell wakes all who wait. The caller holds mu.
func (b *box) tell() {
	if b.changed != nil {
		close(b.changed)
		b.changed = nil
	}
}

// over is the error of a wait that could never end. The caller holds mu.
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
	return true
}

// Direction is one of a connection's two queues.
type Direction int

const (
	Sends Direction = iota // SENDs, WRITEs, READs and advertisements sent
	Recvs                  // messages received
)

func (c *Conn) box(d Direction) *box {
	if d == Sends {
		return &c.send.box
	}
	return &c.recv.box
}

// Await waits until len(out) requests of one direction have completed, and
// fills out with their completions, in order of completion. If it fails it has
// taken none: they are there for the next, or for Poll. Of several waiters each
// gets its own; whoever finds enough first takes them.
//
// Requests complete that were signaled, and all that failed, which
// [verbs.WC.Err] tells. When the connection has ended those under way complete
// with WCFlushErr; waiting for more than will come fails with the reason.
func (c *Conn) Await(ctx context.Context, d Direction, out []verbs.WC) error {
	b := c.box(d)
	if err := b.wait(ctx, func() bool { return b.take(out) }); err != nil {
		return c.fail("await completions from", err)
	}
	return nil
}

// Poll moves up to len(out) completions into out and returns how many. It never
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

// flag is a bool for several goroutines.
type flag = atomic.Bool
