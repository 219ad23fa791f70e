package rsock

import (
	"context"
	"errors"
	"os"
	"time"

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
	sent     uint16 // messages sent when it last waited
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

// waiters returns the three waiters.
func (c *Conn) waiters() [3]*waiter { return [...]*waiter{&c.reader, &c.writer, &c.closer} }

// source is the [event.Source] of a Conn: the completion events of its CQs.
type source struct{ *Conn }

// Arm does nothing: check arms the CQs that its waiter needs.
func (s source) Arm() error { return nil }

func (s source) Sleep(ctx context.Context, until time.Time) error {
	events, err := s.events.Sleep(ctx, until)
	s.mu.Lock()
	defer s.mu.Unlock()
	if events > 0 {
		// Even if there is nothing to poll: a completion that arrived while a CQ
		// was being armed may have been polled already, and caused this event.
		s.recvArmed, s.sendArmed = false, false
	}
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		s.fail(&resetError{err})
		return nil
	}
	return err
}

func (s source) Wake() { s.events.Wake() }

// waits counts waits.
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

// total returns the time waited so far.
func (s *stall) total() time.Duration {
	if s.begin.IsZero() {
		return s.time
	}
	return s.time + time.Since(s.begin)
}

// waitToWrite waits until ready, for a Write, counts the wait, and returns writeErr.
func (c *Conn) waitToWrite(ready func(*Conn) bool) error {
	if !ready(c) {
		s := &c.waits.peer
		if c.sendRing.full {
			s = &c.waits.queue
		}
		s.n++
		s.begin = time.Now()
		err := c.wait(&c.writer, ready)
		s.time, s.begin = s.total(), time.Time{}
		if err != nil {
			return err
		}
	}
	return c.writeErr()
}

// waitToClose waits until ready, for CloseRead, CloseWrite or Close.
func (c *Conn) waitToClose(deadline time.Time, ready func(*Conn) bool) error {
	c.closer.deadline = deadline
	return c.wait(&c.closer, ready)
}

// wait makes progress until ready. The caller holds mu, which is unlocked meanwhile.
func (c *Conn) wait(w *waiter, ready func(*Conn) bool) error {
	// A Read after a Write expects an answer, and earlier answers show how soon it
	// arrives. Polling gains nothing for a Read of more of a stream.
	spinning := w.history.Wait(c.opt.SpinTime, w == &c.reader && w.sent != c.sendRing.seq)
	defer spinning.Done()
	w.sent = c.sendRing.seq
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
	w.ready, w.checks = ready, 0
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
	request(c.recvCQ, &c.recvArmed)
	if c.sendRing.full || c.control.full || w == &c.closer || c.closer.ready != nil {
		request(c.sendCQ, &c.sendArmed)
	}
	return did
}

// SetDeadline sets the time at which running and later calls of Read, Write, ReadFrom and
// WriteTo fail with [os.ErrDeadlineExceeded]. The zero value means never.
func (c *Conn) SetDeadline(t time.Time) error { return c.setDeadline(t, &c.reader, &c.writer) }

// SetReadDeadline is SetDeadline for Read and WriteTo only.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.setDeadline(t, &c.reader) }

// SetWriteDeadline is SetDeadline for Write and ReadFrom only.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.setDeadline(t, &c.writer) }

func (c *Conn) setDeadline(t time.Time, waiters ...*waiter) error {
	return c.set(func() {
		for _, w := range waiters {
			w.deadline = t
		}
		c.group.SignalAll()
	})
}
