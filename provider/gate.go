package provider

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/sys"
	"github.com/goverbs/verbs/mmap"
)

// Gate is the common part of the queues of all drivers: a lock, the state of the QP, and whether
// the queue has been stopped. It implements [Stateful], Stop of [Queue], and Modify of [SendQueue]
// for verbs without a driver's part. Queues embed it and hold the lock while they use its fields.
type Gate struct {
	// SingleThreaded makes Lock and Unlock do nothing: calls of the queue never overlap.
	// It is set before the queue is used.
	SingleThreaded bool
	uses           uint // written by every call of such a queue, for the race detector

	held     atomic.Uint32 // state of the lock, see below
	starving atomic.Uint32 // reserved if the next goroutine has waited long, or else free
	queueMu  sync.Mutex    // held by the goroutine that gets the lock next

	State   verbs.QPState
	Closed  bool // or failed: see Err
	stopped bool
	failed  error
}

// The lock is free, held, or reserved for a goroutine that has waited for about a microsecond,
// which no other can then overtake. Unlock is an ordinary store: unlocking a [sync.Mutex] takes as
// long as the rest of a poll of an empty queue.
const (
	free     = 0
	held     = 1
	reserved = 2
)

// Lock takes the lock.
func (g *Gate) Lock() { // must not call TryLock, or it is not inlined
	if g.SingleThreaded {
		g.uses++
	} else if !g.held.CompareAndSwap(free, held) {
		g.lockSlow()
	}
}

// TryLock takes the lock if it is free, and reports whether it was.
func (g *Gate) TryLock() bool {
	if g.SingleThreaded {
		g.uses++
		return true
	}
	return g.held.CompareAndSwap(free, held)
}

func (g *Gate) lockSlow() {
	const spins = 200
	g.queueMu.Lock()
	for tries := 0; ; tries++ {
		if v := g.held.Load(); v != held && g.held.CompareAndSwap(v, held) {
			break
		}
		switch {
		case tries < spins:
		case tries == spins:
			g.starving.Store(reserved)
		case tries < 2*spins:
			runtime.Gosched()
		default:
			sys.Nap() // as others may wait for queueMu
		}
	}
	g.starving.Store(free)
	g.queueMu.Unlock()
}

// Unlock releases the lock.
func (g *Gate) Unlock() {
	if !g.SingleThreaded {
		mmap.StoreRelease(&g.held, g.starving.Load())
	}
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
	g.stopped, g.Closed = stop, stop || g.failed != nil
	g.Unlock()
}

// Fail marks the queue as failed because of err. The caller holds the lock.
func (g *Gate) Fail(err error) {
	if !errors.Is(err, verbs.ErrQueueFailed) {
		err = fmt.Errorf("%w: %w", verbs.ErrQueueFailed, err)
	}
	g.Closed, g.failed = true, err
}

// Lose locks the queue and fails it with [verbs.ErrDeviceRemoved], for Flush of [Flusher]. It
// returns false if the queue is SingleThreaded, or has been stopped, so that its memory must not be
// used. The caller unlocks it in either case.
func (g *Gate) Lose() bool {
	if g.SingleThreaded {
		return false
	}
	// The holder may wait for the kernel, and this call must not delay goroutines that come
	// meanwhile.
	for !g.TryLock() {
		sys.Nap() // the clock of testing/synctest stands still while others wait for a mutex
	}
	if !g.stopped {
		g.Fail(verbs.ErrDeviceRemoved)
	}
	return !g.stopped
}

// Err returns why a closed queue cannot be used. The caller holds the lock.
func (g *Gate) Err() error {
	if g.failed != nil {
		return g.failed
	}
	return verbs.ErrClosed
}

// UnlockIfPanicking unlocks the gate if the caller panics, as when it copies inline data
// from memory that is unmapped. It must be deferred.
func (g *Gate) UnlockIfPanicking() {
	if p := recover(); p != nil {
		g.Unlock()
		panic(p)
	}
}
