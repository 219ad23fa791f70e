package provider

import (
	"errors"
	"fmt"
	"sync"

	"github.com/goverbs/verbs"
)

// Gate holds what the queues of all drivers have in common: a lock, the state of
// their QP, and whether they have been stopped. It implements [Stateful], Stop of
// [Queue], and Modify of [SendQueue] for verbs without a driver's part. Queues embed
// it and hold the lock while they use its fields.
type Gate struct {
	sync.Mutex
	State  verbs.QPState
	Closed bool // or failed: see Err
	failed error
}

// Suspend implements [Stateful].
func (g *Gate) Suspend() { g.Lock() }

// Settle implements [Stateful].
func (g *Gate) Settle(s verbs.QPState, moved bool) {
	if moved {
		g.State = s
	}
	g.Unlock()
}

// Modify implements [SendQueue].
func (g *Gate) Modify(_ verbs.QPAttr, _ verbs.QPAttrMask, modify func(UHW) error) error {
	return modify(UHW{})
}

// Stop implements [Queue].
func (g *Gate) Stop(stop bool) {
	g.Lock()
	g.Closed = stop || g.failed != nil
	g.Unlock()
}

// Fail ends the use of a queue that no longer works because of err. The caller
// holds the lock.
func (g *Gate) Fail(err error) {
	if !errors.Is(err, verbs.ErrQueueFailed) {
		err = fmt.Errorf("%w: %w", verbs.ErrQueueFailed, err)
	}
	g.Closed, g.failed = true, err
}

// Err returns why a queue that is Closed cannot be used. The caller holds the
// lock.
func (g *Gate) Err() error {
	if g.failed != nil {
		return g.failed
	}
	return verbs.ErrClosed
}

// UnlockIfPanicking unlocks the gate if the caller panics, as when it copies inline
// data from memory that is gone. It is deferred.
func (g *Gate) UnlockIfPanicking() {
	if p := recover(); p != nil {
		g.Unlock()
		panic(p)
	}
}
