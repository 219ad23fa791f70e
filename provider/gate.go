package provider

import "sync"

// Gate holds what the queues of all drivers have in common: a lock, the state of
// their QP, and whether they have been stopped. It implements [Stateful] and
// Stop of [Queue].
type Gate struct {
	sync.Mutex
	State  QPState
	Closed bool
}

// Suspend implements [Stateful].
func (g *Gate) Suspend() { g.Lock() }

// Settle implements [Stateful].
func (g *Gate) Settle(s QPState, moved bool) {
	if moved {
		g.State = s
	}
	g.Unlock()
}

// Stop implements [Queue].
func (g *Gate) Stop(stop bool) {
	g.Lock()
	g.Closed = stop
	g.Unlock()
}

// UnlockIfPanicking unlocks the gate if the caller panics. It is deferred.
func (g *Gate) UnlockIfPanicking() {
	if p := recover(); p != nil {
		g.Unlock()
		panic(p)
	}
}
