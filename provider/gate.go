package provider

// Gate is what the queues of all drivers have in common: a lock, the state of
// their QP, and whether they have been stopped. It implements [Stateful] and
// Stop of [Queue].
type Gate struct {
	lock
	State  QPState
	Closed bool
}

// Transition implements [Stateful].
func (g *Gate) Transition(s QPState, modify func() error) error {
	g.LockLong()
	defer g.UnlockLong()
	err := modify()
	if err == nil {
		g.State = s
	}
	return err
}

// Stop implements [Queue].
func (g *Gate) Stop(stop bool) {
	g.Lock()
	g.Closed = stop
	g.Unlock()
}
