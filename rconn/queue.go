package rconn

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/bridge"
	"github.com/goverbs/verbs/internal/event"
	"github.com/goverbs/verbs/internal/fifo"
	"github.com/goverbs/verbs/internal/spin"
	sums "github.com/goverbs/verbs/internal/tally"
	"github.com/goverbs/verbs/uverbs"
)

// queue accounts for the requests of one direction and holds their completions. The goroutine that
// polls the CQ passes completions to handle: of the Conn's own requests to the goroutines that wait
// for them, of the user's requests to ready. A waiter takes its completions only when all have
// arrived, so none is lost when its context ends.
type queue struct {
	c      *Conn
	cq     *uverbs.CQ
	handle func(*verbs.WC)

	mu      sync.Mutex
	entries []entry // by sequence number, the WR's ID; the length is a power of two
	regions []*LocalRegion
	depth   uint64 // limit of the requests in flight
	tail    uint64 // the oldest in flight
	head    uint64 // the next to be posted
	sge     []verbs.SGE

	wcs     [16]verbs.WC // scratch
	ready   fifo.Queue[verbs.WC]
	pending int // completions that are certain to arrive
	waiters
	stats QueueStats // only the counters, and Most
}

// waiters are the goroutines that wait for completions.
type waiters struct {
	began         sums.Waits
	changed       event.Cond    // a completion arrived, or the connection's state changed
	flushDeadline time.Time     // for the pending completions, after the connection's end
	maxSpin       time.Duration // how long a wait polls at most
	history       spin.History  // of waits
}

// entry is a posted request until its completion, or the completion of a later send, is polled.
type entry struct {
	id   uint64
	live bool
	n    int // regions held

	// Of sends.
	forUser  bool // the user gets its completion
	signaled bool
	read     bool
	empty    bool // a READ of no bytes that was posted as one of one byte
	call     *call

	// Of receives.
	advert bool
	off    int // offset in the region for advertisements
}

// flushTime bounds the wait for the completions of posted requests after the end of a
// connection. The kernel normally flushes them at once.
const flushTime = 5 * time.Second

func (q *queue) init(c *Conn, cq *uverbs.CQ, handle func(*verbs.WC), depth, sges int) {
	q.c, q.cq, q.handle, q.depth = c, cq, handle, uint64(depth)
	q.maxSpin = spin.Limit(c.ep.PD.Context().Device().Node, spin.MaxTime)
	q.changed.Init(&c.waiters)
	n := 1 << bits.Len(uint(max(depth, 1)-1)) // a power of two
	q.entries = make([]entry, n)
	q.regions = make([]*LocalRegion, n*sges)
	q.sge = make([]verbs.SGE, sges)
}

func (q *queue) slot(seq uint64) int { return int(seq) & (len(q.entries) - 1) }

// check checks the spans of a request and adds up their lengths. A queue without room refuses it for that,
// later: a driver gives it no SGEs.
func (q *queue) check(spans []Span, need verbs.Access) (total int, err error) {
	if q.depth > 0 && len(spans) > len(q.sge) {
		return 0, fmt.Errorf("%w: %d of at most %d", verbs.ErrTooManySGEs, len(spans), len(q.sge))
	}
	for i := range spans {
		if err := spans[i].check(q.c.ep.PD, need); err != nil {
			return 0, err
		}
		if uint64(spans[i].Len) > maxSpan {
			return 0, fmt.Errorf("%d bytes of %v in one request: %w: at most %d", spans[i].Len, spans[i].Region, verbs.ErrRange, uint64(maxSpan))
		}
		total += spans[i].Len
	}
	return total, nil
}

// gather makes an SGL of the spans for the next request and holds their regions. Empty spans
// are left out.
func (q *queue) gather(spans []Span) (n int, err error) {
	held := q.regions[q.slot(q.head)*len(q.sge):]
	for i := range spans {
		s := &spans[i]
		if s.Len == 0 {
			continue
		}
		if err := s.Region.acquire(); err != nil {
			for _, r := range held[:n] {
				r.release()
			}
			return 0, err
		}
		held[n] = s.Region
		q.sge[n] = s.Region.mr.SGE(s.Off, s.Len)
		n++
	}
	return n, nil
}

// posted accounts for the next request, which has been posted.
func (q *queue) posted() {
	q.entries[q.slot(q.head)].live = true
	q.head++
	q.stats.Most = max(q.stats.Most, int(q.head-q.tail))
}

func (q *queue) release(slot int) {
	e := &q.entries[slot]
	first := slot * len(q.sge)
	for i, r := range q.regions[first : first+e.n] {
		r.release()
		q.regions[first+i] = nil
	}
	e.n, e.live, e.call = 0, false, nil
}

// releaseAll ends all requests, when the QP is destroyed.
func (q *queue) releaseAll() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for slot := range q.entries {
		q.release(slot)
	}
	q.tail = q.head
	q.ready = fifo.Queue[verbs.WC]{}
}

// advance moves tail over the requests that have completed.
func (q *queue) advance() {
	for q.tail < q.head && !q.entries[q.slot(q.tail)].live {
		q.tail++
	}
}

// poll polls the CQ until it is empty. The caller holds mu.
func (q *queue) poll() {
	for !q.c.closed.Load() {
		n := q.cq.Poll(q.wcs[:])
		q.stats.Completed += uint64(n)
		for i := range n {
			wc := &q.wcs[i]
			if wc.ID < q.tail || wc.ID >= q.head || !q.entries[q.slot(wc.ID)].live {
				q.stats.Foreign++
				continue
			}
			if wc.Status != verbs.WCSuccess {
				q.stats.Failed++
			}
			q.handle(wc)
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
func (q *queue) waitErr() error {
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
func (q *queue) take(out []verbs.WC) bool {
	if q.ready.Len() < len(out) {
		return false
	}
	for i := range out {
		out[i] = q.ready.Pop()
	}
	q.stats.Taken += uint64(len(out))
	return true
}

// Direction is one of a connection's two queues.
type Direction int

const (
	Sends Direction = iota // requests posted, except receives
	Recvs                  // messages received, and WRITEs with an immediate
)

func (c *Conn) queue(d Direction) *queue {
	if d == Sends {
		return &c.send.queue
	}
	return &c.recv.queue
}

// Await waits until len(out) requests of one direction have completed, and fills out with their
// completions, in order of completion. If it fails it consumes none. Several goroutines may wait;
// the first that can be satisfied takes what it needs. Only signaled requests, see [Op.With], and
// those that fail have completions: see [verbs.WC.Err]. When the connection has ended, those in
// flight complete with WCFlushErr, and waiting for more fails with the reason of the end.
func (c *Conn) Await(ctx context.Context, d Direction, out []verbs.WC) error {
	q := c.queue(d)
	return c.fail("await completions from", q.wait(ctx, func() bool { return q.take(out) }))
}

// Poll moves up to len(out) completions into out and returns their number. It never waits.
func (c *Conn) Poll(d Direction, out []verbs.WC) int {
	q := c.queue(d)
	q.mu.Lock()
	defer q.mu.Unlock()
	q.poll()
	n := min(len(out), q.ready.Len())
	q.take(out[:n])
	return n
}

// eventSource is the [event.Source] of both CQs: their completion events.
type eventSource struct{ c *Conn }

// Arm arms the CQs that goroutines wait for, and collects earlier completions.
func (s eventSource) Arm() error { return errors.Join(s.c.send.arm(), s.c.recv.arm()) }

func (s eventSource) Sleep(ctx context.Context, until time.Time) error {
	_, err := bridge.Sleep(s.c.recv.cq, ctx, until)
	return err
}

func (s eventSource) Wake() { bridge.Wake(s.c.recv.cq) }

var _ event.Source = eventSource{}

// arm arms the CQ if a goroutine waits, and collects earlier completions.
func (q *queue) arm() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.began) == 0 {
		return nil
	}
	err := q.cq.Arm(false)
	q.poll()
	return err
}

// wait polls for a short time, and then waits, until ok returns true. It calls ok with mu held, and
// no more after it has returned true.
func (q *queue) wait(ctx context.Context, ok func() bool) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	spinning := q.history.Wait(q.maxSpin, true)
	defer spinning.Done()
	for spinning.More() {
		q.poll()
		if ok() {
			return nil
		}
		if err := q.waitErr(); err != nil {
			return err
		}
		q.mu.Unlock()
		q.mu.Lock()
	}
	var werr error
	checks := 0 // calls, one before and one after each sleep
	defer q.began.End(q.began.Begin())
	err := q.changed.Wait(ctx, &q.mu, &q.flushDeadline, func() bool {
		if checks++; checks == 2 {
			q.stats.Waits++
		} else if checks%2 == 1 && checks > 2 && !q.c.closed.Load() { // sums have the counters of Close
			q.stats.Wakeups++
		}
		q.poll()
		if ok() {
			return true
		}
		werr = q.waitErr()
		return werr != nil
	})
	if err != nil {
		return cmp.Or(q.waitErr(), err)
	}
	return werr
}
