package rsock

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/goverbs/verbs/internal/spin"
	"github.com/goverbs/verbs/uverbs"
)

// waiter is a call that may have to wait: the one that reads, the one that
// writes, the one that closes. Of those that wait one sleeps on the CQs' events,
// and the others follow: it wakes them when they are ready, or when it
// leaves.
type waiter struct {
	ready     func(*Conn) bool // with mu held
	deadline  time.Time
	following bool
	waiting   bool
	turn      chan struct{} // has a token when a follower should look
	timer     *time.Timer
	usual     spin.Usual
	sent      uint16 // messages, when it last waited
}

func (w *waiter) start() { w.turn = make(chan struct{}, 1) }

// wake wakes a follower.
func (w *waiter) wake() {
	select {
	case w.turn <- struct{}{}:
	default:
	}
}

// follow waits for wake or for the deadline.
func (w *waiter) follow(deadline time.Time) {
	if deadline.IsZero() {
		<-w.turn
		return
	}
	left := time.Until(deadline)
	if w.timer == nil {
		w.timer = time.NewTimer(left)
	} else {
		w.timer.Reset(left)
	}
	select {
	case <-w.turn:
	case <-w.timer.C:
	}
	w.timer.Stop()
}

// waiters are the three that there can be.
func (c *Conn) waiters() [3]*waiter { return [...]*waiter{&c.reader, &c.writer, &c.closer} }

// wakeAll wakes all waiters. mu is held.
func (c *Conn) wakeAll() {
	if c.sleeper != nil {
		c.events.Wake()
	}
	for _, w := range c.waiters() {
		if w.following {
			w.wake()
		}
	}
}

func (w *waiter) expired() bool { return !w.deadline.IsZero() && !time.Now().Before(w.deadline) }

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
	c.closer.deadline, c.closer.waiting = deadline, true
	err := c.wait(&c.closer, ready)
	c.closer.waiting = false
	return err
}

// wait drives the connection until the waiter is ready. mu is held, but not
// meanwhile.
func (c *Conn) wait(w *waiter, ready func(*Conn) bool) error {
	w.ready = ready
	err := c.await(w)
	if c.sleeper == nil {
		// Another must sleep now.
		for _, other := range c.waiters() {
			if other != w && other.following {
				other.wake()
				break
			}
		}
	}
	return err
}

func (c *Conn) await(w *waiter) error {
	// What a reader waits for after it has written is an answer, and how soon
	// that comes is learnt from the answers before. A wait for more of a stream is as
	// well off asleep.
	look := w.usual.Wait(c.opt.SpinTime, w == &c.reader && w.sent != c.sendRing.seq)
	defer look.Done()
	w.sent = c.sendRing.seq
	spun, slept := false, false
	for {
		c.progress()
		switch {
		case w.ready(c):
			if spun && !slept {
				c.waits.spins++
			}
			return nil
		case w.expired():
			return os.ErrDeadlineExceeded
		}
		if look.More() {
			spun = true
			c.mu.Unlock()
			c.mu.Lock()
			continue
		}
		if c.arm() {
			continue // what came before that makes no event
		}
		if !slept {
			slept = true
			c.waits.sleeps++
		}
		if c.sleeper != nil {
			w.following = true
			deadline := w.deadline
			c.mu.Unlock()
			w.follow(deadline)
			c.mu.Lock()
			w.following = false
			c.waits.wakeups++
			continue
		}
		c.sleeper = w
		deadline := w.deadline
		c.mu.Unlock()
		events, err := c.events.Sleep(context.Background(), deadline)
		c.mu.Lock()
		c.sleeper = nil
		c.waits.wakeups++
		if events > 0 {
			// Also if nothing is to be polled: what came as a CQ was armed
			// may have been polled before, and made an event nevertheless.
			c.recvArmed, c.sendArmed = false, false
		}
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			c.die(&resetError{err})
		}
	}
}

// arm asks for events of what is waited for, and reports whether it did.
func (c *Conn) arm() (did bool) {
	if !c.recvArmed {
		c.recvArmed, did = true, true
		c.arming(c.recvCQ)
	}
	if !c.sendArmed && (c.sendRing.short || c.control.short || c.closer.waiting) {
		c.sendArmed, did = true, true
		c.arming(c.sendCQ)
	}
	return did
}

func (c *Conn) arming(cq *uverbs.CQ) {
	if err := cq.Arm(false); err != nil {
		c.die(&resetError{err})
	}
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
		c.wakeAll()
	})
}
