package provider

// Gate is what the queues of all drivers have in common: a lock, the state of
// their QP, and whether they have been stopped. It implements [Stateful] and
// Stop of [Queue].
type Gate struct {
	lock
	State  QPState
	Closed bool
}

// Suspend implements [Stateful].
func (g *Gate) Suspend() { g.LockLong() }

// Settle implements [Stateful].
func (g *Gate) Settle(s QPState, moved bool) {
	if moved {
		g.State = s
	}
	g.UnlockLong()
}

// Stop implements [Queue].
func (g *Gate) Stop(stop bool) {
	g.Lock()
	g.Closed = stop
	g.Unlock()
}
