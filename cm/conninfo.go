package cm

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// ConnInfo describes a connection at one moment, to find out why it does not move. Device and QPNum
// are its names in "verbs res qp", in counters and, with the addresses, in captures. Package
// [github.com/goverbs/verbs/cm/conns] serves lists of them.
type ConnInfo struct {
	Layer  string // the package: "cm", "rsock", "rmsg", "rconn", "s3rdma" or "hipobj"
	Local  string
	Remote string
	Device string
	QPNum  uint32
	State  string    // in the terms of the layer
	Since  time.Time // established; zero if it is not
	Waits  []Wait    // what calls of the program, or messages, wait for; layer cm knows of none after the handshake
	Stats  any       // of the layer: its ConnStats or Stats; nil for cm
}

// Wait is something that a connection waits for.
type Wait struct {
	For   string
	Since time.Time
	Idle  bool // it is the peer's program that may send something, as connections without work wait
}

// Describe makes f complete what [Endpoint.Info], and so all Conns, say of the connection: its state,
// its waits and its statistics in the terms of the protocol above, which the endpoint does not know.
// Any goroutine may call f, at any time, also after Close. To show what hangs, f must not do the work
// of the connection: it polls nothing.
func (e *Endpoint) Describe(f func(*ConnInfo)) { e.describe.Store(&f) }

// Info describes the connection. It may be called at any time, also after Close.
func (e *Endpoint) Info() ConnInfo { return e.info(e.route) }

// info describes the connection with a route: a dial may get another one while it connects.
func (e *Endpoint) info(r Route) ConnInfo {
	i := ConnInfo{
		Layer: "cm", Local: Addr{r.Local}.String(), Remote: Addr{r.Remote}.String(),
		Device: e.PD.Context().Device().Name, QPNum: e.QP.Num(), State: "connecting",
	}
	switch err := e.Err(); {
	case err != nil:
		i.State = fmt.Sprintf("ended: %v", err)
	case e.life.up.Load():
		i.State = "connected"
	case e.plan.accepting:
		i.Waits = []Wait{{For: "the peer's confirmation", Since: e.life.made}}
	default:
		i.Waits = []Wait{{For: "the peer's answer", Since: e.life.made}}
	}
	if e.life.up.Load() {
		i.Since = e.life.upAt
	}
	if f := e.describe.Load(); f != nil && *f != nil {
		(*f)(&i)
	}
	return i
}

// Conns describes all connections of the transport, those of packages rsock, rmsg and rconn too,
// whoever dialed or accepted them, from before the dial or the acceptance waits for the peer until
// they are closed.
func (t *Transport) Conns() (all []ConnInfo) {
	t.conns.Range(func(e, route any) bool {
		all = append(all, e.(*Endpoint).info(route.(Route)))
		return true
	})
	return all
}

// Conns describes the accepted connections that are not closed.
func (l *Listener) Conns() []ConnInfo {
	l.mu.Lock()
	all := slices.Collect(maps.Keys(l.conns))
	l.mu.Unlock()
	infos := make([]ConnInfo, len(all))
	for i, e := range all {
		infos[i] = e.Info()
	}
	return infos
}
