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
	Layer  string // the package: "cm", "rsock", "rmsg" or "rconn"
	Local  string
	Remote string
	Device string
	QPNum  uint32
	State  string    // in the terms of the layer
	Since  time.Time // established; zero if it is not
	Waits  []Wait    // what calls of the program, or messages, wait for
	Stats  any       // of the layer: its ConnStats or Stats; nil for cm
}

// Wait is something that a connection waits for.
type Wait struct {
	For   string
	Since time.Time
}

// Info describes the connection. It may be called at any time, also after Close.
func (e *Endpoint) Info() ConnInfo {
	i := ConnInfo{
		Layer: "cm", Local: e.LocalAddr().String(), Remote: e.RemoteAddr().String(),
		Device: e.PD.Context().Device().Name, QPNum: e.QP.Num(), State: "connecting",
	}
	if e.life.up.Load() {
		i.State, i.Since = "connected", e.life.upAt
	}
	if err := e.Err(); err != nil {
		i.State = fmt.Sprintf("ended: %v", err)
	}
	return i
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
