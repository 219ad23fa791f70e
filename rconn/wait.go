package rconn

import (
	"context"
	"errors"
	"os"

	"github.com/goverbs/verbs/uverbs"
)

// sleeper lets goroutines wait for either CQ: one of them holds the turn and
// sleeps on the channel's events, with the CQs armed for which any goroutine waits. The
// others wait for what it collects, or for the turn.
type sleeper struct {
	channel *uverbs.CompChannel
	turn    chan struct{}
	wake    func()

	// Guarded by the turn: the end of the context last slept with, which wakes the
	// sleeper. Most waits have the same context.
	done <-chan struct{}
	stop func() bool
}

func (s *sleeper) init(channel *uverbs.CompChannel) {
	s.channel, s.turn, s.wake = channel, make(chan struct{}, 1), channel.Wake
}

// follow makes the end of ctx wake the sleeper. The caller holds the turn.
func (s *sleeper) follow(ctx context.Context) {
	done := ctx.Done()
	if done == nil || done == s.done {
		return
	}
	s.forget()
	s.done, s.stop = done, context.AfterFunc(ctx, s.wake)
}

// forget undoes follow. The caller holds the turn.
func (s *sleeper) forget() {
	if s.stop != nil {
		s.stop()
	}
	s.done, s.stop = nil, nil
}

// wait waits until ok returns true, and does not call it again then. It calls ok with mu
// held.
func (b *box) wait(ctx context.Context, ok func() bool) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for first := true; ; first = false {
		b.collect()
		if ok() {
			return nil
		}
		if err := b.over(); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if first {
			b.waits++
		}
		b.waiting++
		done, err := b.sleepOrFollow(ctx, ok)
		b.waiting--
		if done {
			return nil
		}
		if err != nil {
			if over := b.over(); over != nil {
				return over
			}
			return err
		}
	}
}

// sleepOrFollow sleeps if it gets the turn, and waits otherwise until the goroutine that
// has it finds something. The caller holds mu, which is released meanwhile.
func (b *box) sleepOrFollow(ctx context.Context, ok func() bool) (done bool, err error) {
	s := &b.c.sleeper
	defer b.mu.Lock()
	select {
	case s.turn <- struct{}{}:
		b.mu.Unlock()
		done, err = b.sleep(ctx, ok)
		<-s.turn
		return done, err
	default:
	}
	if b.changed == nil {
		b.changed = make(chan struct{})
	}
	changed := b.changed
	b.mu.Unlock()
	s.wake() // the goroutine that sleeps may not have armed this CQ
	select {
	case s.turn <- struct{}{}:
		done, err = b.sleep(ctx, ok)
		<-s.turn
	case <-changed:
	case <-ctx.Done():
	}
	return done, err
}

// sleep arms the CQs and waits for events until ok, which it calls in between: what came
// before a CQ was armed makes no event, and another goroutine may have polled it.
// The caller holds the turn.
func (b *box) sleep(ctx context.Context, ok func() bool) (bool, error) {
	s := &b.c.sleeper
	s.follow(ctx)
	for {
		for _, x := range [...]*box{&b.c.send.box, &b.c.recv.box} {
			if err := x.arm(); err != nil {
				return false, err
			}
		}
		b.mu.Lock()
		done := ok()
		over, until := b.over(), b.given
		b.mu.Unlock()
		if done || over != nil || ctx.Err() != nil {
			return done, nil
		}
		_, err := s.channel.Sleep(until)
		b.mu.Lock()
		b.wakeups++
		b.mu.Unlock()
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return false, err
		}
	}
}

// arm requests an event, if any goroutine waits, and collects what came before.
func (b *box) arm() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.waiting == 0 {
		return nil
	}
	err := b.cq.Arm(false)
	b.collect()
	return err
}
