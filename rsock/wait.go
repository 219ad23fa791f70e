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

// waiter is a call that may have to wait: the one that reads, the one that
// writes, the one that closes.
type waiter struct {
	deadline time.Time
	ready    func(*Conn) bool // what it sleeps for, nil if it does not
	cond     event.Cond
	look     func() bool // what cond calls
	looks    int
	usual    spin.Usual
	sent     uint16 // messages, when it last waited
}

func (w *waiter) start(c *Conn) {
	w.cond.Init(&c.group)
	w.look = func() bool {
		ready := w.ready
		w.ready = nil
		if w.looks++; w.looks > 1 && w.looks%2 == 1 { // it looks once, and before and after each sleep
			c.waits.wakeups++
		}
		for {
			c.progress()
			if ready(c) {
				return true
			}
			if !c.arm(w) {
				if w.looks == 2 {
					c.waits.sleeps++
				}
				w.ready = ready
				return false
			}
			// What came before that makes no event.
		}
	}
}

func (w *waiter) expired() bool { return !w.deadline.IsZero() && !time.Now().Before(w.deadline) }

// waiters are the three that there can be.
func (c *Conn) waiters() [3]*waiter { return [...]*waiter{&c.reader, &c.writer, &c.closer} }

// source is the events of the CQs, which the waiters of a Conn sleep for.
type source struct{ *Conn }

// Arm does nothing: what is to be armed depends on what a waiter finds when it looks.
func (s source) Arm() error { return nil }

func (s source) Sleep(ctx context.Context, until time.Time) error {
	events, err := s.events.Sleep(ctx, until)
	s.mu.Lock()
	defer s.mu.Unlock()
	if events > 0 {
		// Also if nothing is to be polled: what came as a CQ was armed
		// may have been polled before, and made an event nevertheless.
		s.recvArmed, s.sendArmed = false, false
	}
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		s.die(&resetError{err})
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
	begin time.Time // of the wait under way
}

// total returns the time spent, up to now.
func (s *stall) total() time.Duration {
	if s.begin.IsZero() {
		return s.time
	}
	return s.time + time.Since(s.begin)
}

// waitToWrite waits for a Write until ready, counts that, and returns why nothing can be
// written then.
func (c *Conn) waitToWrite(ready func(*Conn) bool) error {
	if !ready(c) {
		s := &c.waits.peer
		if c.sendRing.short {
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

// wait drives the connection until ready. mu is held, but not meanwhile.
func (c *Conn) wait(w *waiter, ready func(*Conn) bool) error {
	// What a reader waits for after it has written is an answer, and how soon
	// that comes is learnt from the answers before. A wait for more of a stream is as
	// well off asleep.
	look := w.usual.Wait(c.opt.SpinTime, w == &c.reader && w.sent != c.sendRing.seq)
	defer look.Done()
	w.sent = c.sendRing.seq
	for spun := false; ; spun = true {
		c.progress()
		if ready(c) {
			if spun {
				c.waits.spins++
			}
			return nil
		}
		if w.expired() || !look.More() {
			break
		}
		c.mu.Unlock()
		c.mu.Lock()
	}
	w.ready, w.looks = ready, 0
	err := w.cond.Wait(context.Background(), &c.mu, &w.deadline, w.look)
	w.ready = nil
	return err
}

// arm requests events of what w and the others wait for, and reports whether it did.
func (c *Conn) arm(w *waiter) (did bool) {
	request := func(cq *uverbs.CQ, armed *bool) {
		if *armed {
			return
		}
		*armed, did = true, true
		if err := cq.Arm(false); err != nil {
			c.die(&resetError{err})
		}
	}
	request(c.recvCQ, &c.recvArmed)
	if c.sendRing.short || c.control.short || w == &c.closer || c.closer.ready != nil {
		request(c.sendCQ, &c.sendArmed)
	}
	return did
}

// SetDeadline sets the time at which calls of Read, Write, ReadFrom and WriteTo, under way
// and later ones, fail with [os.ErrDeadlineExceeded]. The zero value means never.
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
