package rconn

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/goverbs/verbs/internal/event"
)

// source is the [event.Source] of both CQs: their completion events.
type source struct{ c *Conn }

// Arm arms the CQs that goroutines wait for, and collects earlier completions.
func (s source) Arm() error { return errors.Join(s.c.send.arm(), s.c.recv.arm()) }

func (s source) Sleep(ctx context.Context, until time.Time) error {
	_, err := s.c.channel.Sleep(ctx, until)
	return err
}

func (s source) Wake() { s.c.channel.Wake() }

var _ event.Source = source{}

// arm arms the CQ if a goroutine waits, and collects earlier completions.
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

// wait waits until ok returns true, and does not call ok after that. It calls ok with mu
// held.
func (b *box) wait(ctx context.Context, ok func() bool) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	var over error
	looks := 0 // calls, one before and one after each sleep
	b.waiting++
	err := b.changed.Wait(ctx, &b.mu, &b.given, func() bool {
		if looks++; looks == 2 {
			b.waits++
		} else if looks%2 == 1 && looks > 2 {
			b.wakeups++
		}
		b.collect()
		if ok() {
			return true
		}
		over = b.over()
		return over != nil
	})
	b.waiting--
	if err != nil {
		return cmp.Or(b.over(), err)
	}
	return over
}
