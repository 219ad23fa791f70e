package rsock

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/goverbs/verbs/internal/bridge"
	"github.com/goverbs/verbs/internal/event"
	"github.com/goverbs/verbs/internal/spin"
	"github.com/goverbs/verbs/uverbs"
)

// waiter is a call that may have to wait. There is one for reading, one for writing and
// one for closing.
type waiter struct {
	deadline time.Time
	ready    func(*Conn) bool // the condition it sleeps for, nil if it does not sleep
	cond     event.Cond
	check    func() bool // what cond calls
	checks   int
	history  spin.History
	since    time.Time // when the wait began, if ready is not nil
	sent     uint16    // messages sent when it last waited
}

func (w *waiter) start(c *Conn) {
	w.cond.Init(&c.group)
	w.check = func() bool {
		ready := w.ready
		w.ready = nil
		if w.checks++; w.checks > 1 && w.checks%2 == 1 { // check is called once, and before and after each sleep
			c.waits.wakeups++
		}
		for {
			c.progress()
			if ready(c) {
				return true
			}
			if !c.arm(w) {
				if w.checks == 2 {
					c.waits.sleeps++
				}
				w.ready = ready
				return false
			}
			// Completions from before that cause no event: poll again.
		}
	}
}

func (w *waiter) expired() bool { return !w.deadline.IsZero() && !time.Now().Before(w.deadline) }

func (c *Conn) waiters() [3]*waiter {
	return [...]*waiter{&c.reader.waiter, &c.writer.waiter, &c.closer.waiter}
}

// source is the [event.Source] of a Conn: the completion events of its CQs.
type source struct{ *Conn }

// Arm does nothing: check arms the CQs that its waiter needs.
func (s source) Arm() error { return nil }

func (s source) Sleep(ctx context.Context, until time.Time) error {
	events, err := bridge.Sleep(s.reader.cq, ctx, until)
	s.mu.Lock()
	defer s.mu.Unlock()
	if events > 0 {
		// Even if there is nothing to poll: a completion that arrived while a CQ
		// was being armed may have been polled already, and caused this event.
		s.reader.armed, s.writer.armed = false, false
	}
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		s.fail(&resetError{err})
		return nil
	}
	return err
}

func (s source) Wake() { bridge.Wake(s.reader.cq) }

type waits struct {
	peer, queue            stall // of Write
	spins, sleeps, wakeups uint64
}

// stall counts waits of Write for one reason.
type stall struct {
	n     uint64
	time  time.Duration
	begin time.Time // start of the current wait
}

func (s *stall) start() {
	s.n++
	s.begin = time.Now()
}

func (s *stall) stop() { s.time, s.begin = s.total(), time.Time{} }

func (s *stall) total() time.Duration {
	if s.begin.IsZero() {
		return s.time
	}
	return s.time + time.Since(s.begin)
}

// wait makes progress until ready. The caller holds mu, which wait unlocks meanwhile.
func (c *Conn) wait(w *waiter, ready func(*Conn) bool) error {
	// A Read after a Write expects an answer, and earlier answers show how soon it
	// arrives. Polling gains nothing for a Read of more of a stream.
	spinning := w.history.Wait(c.opt.SpinTime, w == &c.reader.waiter && w.sent != c.writer.credits.seq)
	defer spinning.Done()
	w.sent = c.writer.credits.seq
	for spun := false; ; spun = true {
		c.progress()
		if ready(c) {
			if spun {
				c.waits.spins++
			}
			return nil
		}
		if w.expired() || !spinning.More() {
			break
		}
		c.mu.Unlock()
		c.mu.Lock()
	}
	w.ready, w.checks, w.since = ready, 0, time.Now()
	err := w.cond.Wait(context.Background(), &c.mu, &w.deadline, w.check)
	w.ready = nil
	return err
}

// arm arms the CQs that w and the other waiters need, and reports whether it armed one.
func (c *Conn) arm(w *waiter) (did bool) {
	request := func(cq *uverbs.CQ, armed *bool) {
		if *armed {
			return
		}
		*armed, did = true, true
		if err := cq.Arm(false); err != nil {
			c.fail(&resetError{err})
		}
	}
	// A message of the peer may end any wait. Completions of sends matter only to waits for room or
	// for the end; arming for them otherwise would wake a reader for each.
	request(c.reader.cq, &c.reader.armed)
	if c.writer.full || c.control.full || w == &c.closer.waiter || c.closer.waiter.ready != nil {
		request(c.writer.cq, &c.writer.armed)
	}
	return did
}

// SetDeadline sets the time at which running and later calls of Read, Write, ReadFrom and
// WriteTo fail with [os.ErrDeadlineExceeded]. The zero value means never.
func (c *Conn) SetDeadline(t time.Time) error {
	return c.setDeadline(t, &c.reader.waiter, &c.writer.waiter)
}

// SetReadDeadline is SetDeadline for Read and WriteTo, SetWriteDeadline for Write and ReadFrom.
func (c *Conn) SetReadDeadline(t time.Time) error  { return c.setDeadline(t, &c.reader.waiter) }
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.setDeadline(t, &c.writer.waiter) }

func (c *Conn) setDeadline(t time.Time, waiters ...*waiter) error {
	return c.set(func() {
		for _, w := range waiters {
			w.deadline = t
		}
		c.group.SignalAll()
	})
}
