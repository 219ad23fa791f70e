//go:build !nordma

package udp

// Arrived implements netif.Backlog. It leaves out packets to multicast groups.
func (p *Port) Arrived() uint64 { return p.socket.arrived() }

// Handled implements netif.Backlog.
func (p *Port) Handled(position uint64) bool { return p.socket.reached(position) }
