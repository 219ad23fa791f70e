package engine

import (
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/goverbs/verbs/internal/netif"
)

// port is an address of the device. Several entries of the table of GIDs may share a netif.Port.
type port struct {
	index int
	addr  netip.Addr     // without zone
	local netip.AddrPort // source of packets
	net   netif.Port
	queue netif.Backlog // net, or nil if that does not know its backlog
	drops bool          // net counts the packets it drops
}

// send sends packets. An error is counted, unless the port does that, and better: several packets
// may have been dropped.
func (p *port) send(d *Device, pkts []netif.Packet) error {
	err := p.net.Send(pkts)
	if err != nil && !p.drops {
		d.counters.add(sendErrors, 1)
	}
	return err
}

// gidTable has the addresses of a device by index. Entries may be nil.
type gidTable struct {
	list atomic.Pointer[[]*port] // to a list that does not change
}

func (t *gidTable) all() []*port     { return *t.list.Load() }
func (t *gidTable) set(list []*port) { t.list.Store(&list) }

// at returns the port of GID i, or nil.
func (t *gidTable) at(i int) *port {
	if list := t.all(); i >= 0 && i < len(list) {
		return list[i]
	}
	return nil
}

// of returns the port with an address, or nil.
func (t *gidTable) of(addr netip.Addr) *port {
	for _, p := range t.all() {
		if p != nil && p.addr == addr {
			return p
		}
	}
	return nil
}

// ports returns one entry for each netif.Port.
func (t *gidTable) ports() []*port {
	var list []*port
	for _, p := range t.all() {
		if p != nil && !slices.ContainsFunc(list, func(q *port) bool { return q.net == p.net }) {
			list = append(list, p)
		}
	}
	return list
}

func (t *gidTable) close() {
	for _, p := range t.ports() {
		p.net.Close()
	}
}
