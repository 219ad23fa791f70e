package endpoint

import (
	"context"
	"errors"
	"sync"
)

// ErrEnded is what Swap returns when the other end has returned.
var ErrEnded = errors.New("the other end has ended")

// Both runs f as both ends of a connection in this process: as the active one, which dials and
// sends first, and as the passive one. It returns their errors when both have returned.
func Both(f func(active bool, swap Swap) error) (active, passive error) {
	var messages [2]chan Address
	var ended [2]chan struct{}
	for i := range messages {
		// An end is at most one message ahead of the other one.
		messages[i], ended[i] = make(chan Address, 1), make(chan struct{})
	}
	run := func(me, other int) error {
		defer close(ended[me])
		return f(me == 0, func(a Address) (Address, error) {
			select {
			case messages[me] <- a:
			case <-ended[other]:
				return Address{}, ErrEnded
			}
			select {
			case a := <-messages[other]:
				return a, nil
			case <-ended[other]:
			}
			select {
			case a := <-messages[other]: // its last one
				return a, nil
			default:
				return Address{}, ErrEnded
			}
		})
	}
	var wg sync.WaitGroup
	wg.Go(func() { passive = run(1, 0) })
	active = run(0, 1)
	wg.Wait()
	return active, passive
}

// Join connects two ends in this process. active dials.
func Join(ctx context.Context, active, passive *Local) error {
	return errors.Join(Both(func(isActive bool, swap Swap) error {
		if isActive {
			return active.Connect(ctx, true, swap)
		}
		return passive.Connect(ctx, false, swap)
	}))
}
