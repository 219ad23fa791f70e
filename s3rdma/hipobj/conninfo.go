package hipobj

import (
	"maps"
	"slices"

	"github.com/goverbs/verbs/cm"
)

// Conns describes the sessions, for package [github.com/goverbs/verbs/cm/conns].
func (s *Server) Conns() (all []cm.ConnInfo) {
	s.mu.Lock()
	sessions := slices.Collect(maps.Values(s.sessions))
	s.mu.Unlock()
	for _, x := range sessions {
		all = append(all, x.info())
	}
	return all
}

func (x *Session) info() cm.ConnInfo {
	x.mu.Lock()
	defer x.mu.Unlock()
	i := cm.ConnInfo{
		Layer: "hipobj", Local: x.local.GID.Addr().String(), Remote: x.Peer.GID.Addr().String(),
		Device: x.server.dev.Device().Name, QPNum: x.local.QPNum, State: x.state.String(), Since: x.made,
	}
	w := cm.Wait{For: "the server's program, which has the session", Since: x.since}
	switch x.state {
	case prepared:
		w.For = "READY of the client"
	case moving, stopping:
		w.For = "completions of the device"
	}
	i.Waits = []cm.Wait{w}
	return i
}
