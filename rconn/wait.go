package rconn

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/goverbs/verbs/internal/event"
)

// eventSource is the [event.Source] of both CQs: their completion events.
type eventSource struct{ c *Conn }

// Arm arms the CQs that goroutines wait for, and collects earlier completions.
func (s eventSource) Arm() error { return errors.Join(s.c.send.arm(), s.c.recv.arm()) }

func (s eventSource) Sleep(ctx context.Context, until time.Time) error {
	_, err := s.c.channel.Sleep(ctx, until)
	return err
}

func (s eventSource) Wake() { s.c.channel.Wake() }

var _ event.Source = eventSource{}

// arm arms the CQ if a goroutine waits, and collects earlier completions.
func (q *completionQueue) arm() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.waiting == 0 {
		return nil
	}
	err := q.cq.Arm(false)
	q.poll()
	return err
}

// wait polls for a short time, and then waits, until ok returns true, and does not call ok after that. It calls ok with mu
// held.
func (q *completionQueue) wait(ctx context.Context, ok func() bool) error {
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
	q.waiting++
	err := q.changed.Wait(ctx, &q.mu, &q.flushDeadline, func() bool {
		if checks++; checks == 2 {
			q.waits++
		} else if checks%2 == 1 && checks > 2 && !q.c.closed.Load() { // sums have the counters of Close
			q.wakeups++
		}
		q.poll()
		if ok() {
			return true
		}
		werr = q.waitErr()
		return werr != nil
	})
	q.waiting--
	if err != nil {
		return cmp.Or(q.waitErr(), err)
	}
	return werr
}
