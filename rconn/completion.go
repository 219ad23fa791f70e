package rconn

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/event"
	"github.com/goverbs/verbs/internal/spin"
	"github.com/goverbs/verbs/uverbs"
)

// completionQueue holds the completions of one direction. The goroutine that polls the CQ
// passes them to handle: those of the Conn's own requests go to the goroutines that wait
// for them, the user's to ready. A waiter takes its completions only when all of them have
// arrived, so none is lost when its context ends.
type completionQueue struct {
	c      *Conn
	cq     *uverbs.CQ
	handle func(*verbs.WC)

	mu            sync.Mutex
	wcs           [16]verbs.WC // scratch
	ready         fifo[verbs.WC]
	pending       int           // completions that are certain to arrive
	waiting       int           // goroutines that wait
	changed       event.Cond    // a completion arrived, or the connection's state changed
	flushDeadline time.Time     // for the pending completions, after the connection's end
	maxSpin       time.Duration // how long a wait polls at most
	history       spin.History  // of waits

	// For Stats.
	maxInFlight                               int // the most requests in flight at a time
	completed, taken, failed, foreign, stalls uint64
	waits, wakeups                            uint64
}

// flushTime bounds the wait for the completions of posted requests after the end of a
// connection. The kernel normally flushes them at once.
const flushTime = 5 * time.Second

func (q *completionQueue) init(c *Conn, cq *uverbs.CQ, handle func(*verbs.WC)) {
	q.c, q.cq, q.handle = c, cq, handle
	q.maxSpin = spin.Limit(c.ep.PD.Context().Device().Node, spin.MaxTime)
	q.changed.Init(&c.waiters)
}

// poll polls the CQ until it is empty. The caller holds mu.
func (q *completionQueue) poll() {
	for !q.c.closed.Load() {
		n := q.cq.Poll(q.wcs[:])
		q.completed += uint64(n)
		for i := range n {
			q.handle(&q.wcs[i])
		}
		if n > 0 {
			q.changed.Signal()
		}
		if n < len(q.wcs) {
			return
		}
	}
}

// waitErr returns the error of a wait that can never succeed, or nil. The caller holds mu.
func (q *completionQueue) waitErr() error {
	switch err := q.c.Err(); {
	case err == nil && q.c.brokenErr() == nil:
		return nil
	case errors.Is(err, verbs.ErrDeviceRemoved) || q.c.closed.Load():
		return err
	case q.pending > 0 && q.flushDeadline.IsZero():
		q.flushDeadline = time.Now().Add(flushTime)
		return nil
	case q.pending > 0 && time.Now().Before(q.flushDeadline):
		return nil
	case err == nil:
		return q.c.brokenErr()
	default:
		return err
	}
}

// take fills out from ready if that has enough, and reports whether it did.
func (q *completionQueue) take(out []verbs.WC) bool {
	if q.ready.len() < len(out) {
		return false
	}
	for i := range out {
		out[i] = q.ready.pop()
	}
	q.taken += uint64(len(out))
	return true
}

// Direction is one of a connection's two queues.
type Direction int

const (
	Sends Direction = iota // requests posted, except receives
	Recvs                  // messages received, and WRITEs with an immediate
)

func (c *Conn) completions(d Direction) *completionQueue {
	if d == Sends {
		return &c.send.completionQueue
	}
	return &c.recv.completionQueue
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
	q := c.completions(d)
	if err := q.wait(ctx, func() bool { return q.take(out) }); err != nil {
		return c.fail("await completions from", err)
	}
	return nil
}

// Poll moves up to len(out) completions into out and returns their number. It never
// waits.
func (c *Conn) Poll(d Direction, out []verbs.WC) int {
	q := c.completions(d)
	q.mu.Lock()
	defer q.mu.Unlock()
	q.poll()
	n := min(len(out), q.ready.len())
	q.take(out[:n])
	return n
}
