package event

import (
	"context"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/goverbs/verbs/internal/host"
)

// Source is the source of the events that a [Group] waits for.
type Source interface {
	// Arm requests the events that the group's goroutines wait for. It is called before a
	// goroutine checks its condition for the last time and sleeps.
	Arm() error
	// Sleep waits for events and handles them. It fails when ctx ends and at the time until, unless
	// that is zero, and returns nil after Wake. The group calls it from one goroutine at a time.
	Sleep(ctx context.Context, until time.Time) error
	// Wake ends the current Sleep, or the next one if there is none.
	Wake()
}

// Group is a set of goroutines that wait for the events of one source. One of them, the
// leader, calls the source's Sleep; each of the others sleeps until its [Cond] is signaled,
// or until it must become the leader.
type Group struct {
	source Source

	mu          sync.Mutex
	leader      *waiter
	sleeping    bool   // the leader is in source.Sleep
	alone       waiter // the leader between Enter and Leave
	first, last *waiter
	free        []*waiter // a pool of the process would mix the channels of testing/synctest's bubbles
}

// Init sets the group's source.
func (g *Group) Init(s Source) { g.source = s }

// Cond is a condition that goroutines of a group wait for, like sync.Cond. The lock that
// guards the condition is an argument of Wait.
type Cond struct {
	g       *Group
	waiters []*waiter // guarded by g.mu
}

// Init makes c a condition of g.
func (c *Cond) Init(g *Group) { c.g = g }

type waiter struct {
	prev, next *waiter
	wakeup     chan struct{} // has a token when the goroutine must check its condition
	timer      *time.Timer
}

// Wait waits until ready returns true, and does not call it again after that. The caller
// holds l. Wait calls ready with l held, and releases l while it sleeps. It fails when ctx
// ends, when the source fails, and with [os.ErrDeadlineExceeded] at the time *until, which
// it reads with l held; nil and the zero time mean never.
func (c *Cond) Wait(ctx context.Context, l sync.Locker, until *time.Time, ready func() bool) error {
	if ready() {
		return nil
	}
	w := c.join()
	defer c.leave(w)
	return c.wait(ctx, l, until, w, ready)
}

func (c *Cond) wait(ctx context.Context, l sync.Locker, until *time.Time, w *waiter, ready func() bool) error {
	g := c.g
	for {
		lead := g.lead(w)
		l.Unlock()
		err := g.source.Arm()
		l.Lock()
		if err != nil || ready() {
			return err
		}
		var limit time.Time
		if until != nil {
			limit = *until
		}
		l.Unlock()
		if lead {
			err = g.sleep(ctx, limit, w)
		} else {
			err = w.sleep(ctx, limit)
		}
		l.Lock()
		if ready() {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// Signal wakes the goroutines that wait for c.
func (c *Cond) Signal() {
	g := c.g
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, w := range c.waiters {
		g.wake(w)
	}
}

// wake makes a goroutine check its condition. The caller holds mu.
func (g *Group) wake(w *waiter) {
	select {
	case w.wakeup <- struct{}{}:
	default:
	}
	if w == g.leader && g.sleeping {
		g.source.Wake()
	}
}

// Enter makes the caller the leader without joining, if the group is empty, and reports whether it
// did so. The caller may then call the source's Sleep until [Group.Leave], and checks its condition
// itself: no Cond wakes it.
func (g *Group) Enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.first != nil || g.leader != nil {
		return false
	}
	g.leader = &g.alone
	return true
}

// Leave ends what Enter has begun.
func (g *Group) Leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.leader = nil
	if g.first != nil {
		g.wake(g.first)
	}
}

// Alone reports whether the only goroutine of the group is one that has called Enter.
func (g *Group) Alone() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.leader == &g.alone && g.first == nil
}

// SignalAll wakes all goroutines of the group.
func (g *Group) SignalAll() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for w := g.first; w != nil; w = w.next {
		g.wake(w)
	}
}

// Empty reports whether no goroutine waits for any condition of the group.
func (g *Group) Empty() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.first == nil
}

// join adds the goroutine to the group.
func (c *Cond) join() *waiter {
	g := c.g
	g.mu.Lock()
	defer g.mu.Unlock()
	var w *waiter
	if n := len(g.free); n > 0 {
		w, g.free = g.free[n-1], g.free[:n-1]
	} else {
		w = &waiter{wakeup: make(chan struct{}, 1)}
	}
	c.waiters = append(c.waiters, w)
	w.prev, w.next = g.last, nil
	if g.last == nil {
		g.first = w
	} else {
		g.last.next = w
	}
	g.last = w
	return w
}

// leave removes the goroutine from the group. If there is no leader then, it wakes another
// goroutine, which becomes the leader.
func (c *Cond) leave(w *waiter) {
	g := c.g
	g.mu.Lock()
	defer g.mu.Unlock()
	c.waiters = slices.DeleteFunc(c.waiters, func(x *waiter) bool { return x == w })
	if w.prev == nil {
		g.first = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		g.last = w.prev
	} else {
		w.next.prev = w.prev
	}
	w.drain()
	if g.leader == w {
		g.leader = nil
	}
	if g.leader == nil && g.first != nil {
		g.wake(g.first)
	}
	g.free = append(g.free, w)
}

// lead makes the goroutine the leader, if there is none, and reports whether it is.
func (g *Group) lead(w *waiter) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.leader == nil {
		g.leader = w
	}
	return g.leader == w
}

// sleep sleeps as the leader.
func (g *Group) sleep(ctx context.Context, until time.Time, w *waiter) error {
	g.mu.Lock()
	if w.drain() {
		g.mu.Unlock()
		return nil
	}
	g.sleeping = true
	g.mu.Unlock()
	err := g.source.Sleep(ctx, until)
	g.mu.Lock()
	g.sleeping = false
	w.drain()
	g.mu.Unlock()
	return err
}

// sleep sleeps until the goroutine gets a token. It is for all goroutines except the leader.
func (w *waiter) sleep(ctx context.Context, until time.Time) error {
	var late <-chan time.Time
	if !until.IsZero() {
		if w.timer == nil {
			w.timer = time.NewTimer(time.Until(until))
		} else {
			w.timer.Reset(time.Until(until))
		}
		defer w.timer.Stop()
		late = w.timer.C
	}
	select {
	case <-w.wakeup:
		return nil
	case <-late:
		return os.ErrDeadlineExceeded
	case <-ctx.Done():
		return host.Ended(ctx)
	}
}

// drain takes the token, and reports whether there was one.
func (w *waiter) drain() bool {
	select {
	case <-w.wakeup:
		return true
	default:
		return false
	}
}
