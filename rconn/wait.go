package rconn

import (
	"context"
	"errors"
	"os"

	"github.com/goverbs/verbs/uverbs"
)

// sleeper is how goroutines wait for either CQ: one of them holds the turn and
// sleeps on the channel's events, arming the CQs of all who wait. The others wait
// for what it collects, or for the turn.
type sleeper struct {
	channel *uverbs.CompChannel
	turn    chan struct{}
	wake    func()

	// Guarded by the turn: what ends the context last slept with, which wakes the
	// sleeper then. Most waits are with the same.
	done <-chan struct{}
	stop func() bool
}

func (s *sleeper) init(channel *uverbs.CompChannel) {
	s.channel, s.turn, s.wake = channel, make(chan struct{}, 1), channel.Wake
}

// follow has ctx wake the sleeper. The caller holds the turn.
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

// wait waits until ok, which is called with mu held, and not again once it is
// true.
func (b *box) wait(ctx context.Context, ok func() bool) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for {
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

// sleepOrFollow sleeps if it gets the turn, or else until whoever has it finds
// something. The caller holds mu, which is released meanwhile.
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
	s.wake() // whoever sleeps may not have armed this CQ
	select {
	case s.turn <- struct{}{}:
		done, err = b.sleep(ctx, ok)
		<-s.turn
	case <-changed:
	case <-ctx.Done():
	}
	return done, err
}

// sleep arms the CQs and waits for events until ok, which is asked in between:
// what came before a CQ was armed makes no event, and another may have polled it.
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
		if _, err := s.channel.Sleep(until); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return false, err
		}
	}
}

// arm asks for an event, if anyone waits, and collects what came before.
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
