package engine

import (
	"net/netip"
	"slices"
	"sync"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/roce"
	"github.com/goverbs/verbs/internal/unix"
)

// joiner is a port of a network whose members have to join multicast groups.
type joiner interface {
	Join(group netip.Addr) error
	Leave(group netip.Addr) error
}

// groups contains the QPs of multicast groups.
type groups struct {
	mu       sync.Mutex
	members  map[netip.Addr][]*QP
	attached int
}

// AttachMulticast makes a UD QP receive datagrams of a multicast group. Attaching again
// has no effect.
func (qp *QP) AttachMulticast(gid verbs.GID) error {
	d, group := qp.dev, gid.Addr()
	if err := d.usable(); err != nil {
		return err
	}
	if qp.typ != verbs.UD || !group.IsMulticast() {
		return unix.EINVAL // ib_attach_mcast
	}
	qp.mu.Lock()
	defer qp.mu.Unlock()
	if qp.ended {
		return unix.EINVAL
	}
	g := &d.groups
	g.mu.Lock()
	defer g.mu.Unlock()
	list := g.members[group]
	switch {
	case slices.Contains(list, qp):
		return nil
	case len(list) == 0 && len(g.members) >= maxMcastGroup, len(list) >= maxGroupQPs, g.attached >= maxAttached:
		return unix.ENOMEM
	}
	if len(list) == 0 {
		if err := d.join(group); err != nil {
			return unix.EINVAL
		}
	}
	if g.members == nil {
		g.members = make(map[netip.Addr][]*QP)
	}
	g.members[group] = append(slices.Clone(list), qp) // lists that are in use do not change
	g.attached++
	qp.groups++
	return nil
}

// DetachMulticast ends that. It fails with EINVAL if the QP is not attached.
func (qp *QP) DetachMulticast(gid verbs.GID) error {
	d, group := qp.dev, gid.Addr()
	qp.mu.Lock()
	defer qp.mu.Unlock()
	g := &d.groups
	g.mu.Lock()
	defer g.mu.Unlock()
	i := slices.Index(g.members[group], qp)
	if i < 0 {
		return unix.EINVAL
	}
	list := slices.Delete(slices.Clone(g.members[group]), i, i+1)
	if g.members[group] = list; len(list) == 0 {
		delete(g.members, group)
		d.leave(group)
	}
	g.attached--
	qp.groups--
	return nil
}

// join joins a group on all ports of its family.
func (d *Device) join(group netip.Addr) error {
	for _, p := range d.ports {
		j, ok := p.net.(joiner)
		if !ok || p.addr.Is4() != group.Is4() {
			continue
		}
		if err := j.Join(group); err != nil {
			d.leave(group)
			return err
		}
	}
	return nil
}

func (d *Device) leave(group netip.Addr) {
	for _, p := range d.ports {
		if j, ok := p.net.(joiner); ok && p.addr.Is4() == group.Is4() {
			j.Leave(group)
		}
	}
}

// of returns the members of a group. The list does not change.
func (g *groups) of(group netip.Addr) []*QP {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.members[group]
}

// receiveMulticast passes a packet of a group to its members.
func (d *Device) receiveMulticast(p *packet) {
	if d.portOf(p.src) != nil { // the network has returned what the device sent
		return
	}
	for _, qp := range d.groups.of(p.dst) {
		qp.lock()
		qp.handle(p)
		qp.finish()
		qp.unlock()
	}
}

// sendToGroup passes a packet that is sent to a group to its members on this device.
func (qp *QP) sendToGroup(p *path, h *roce.Packet, payload []byte) {
	for _, to := range qp.dev.groups.of(p.remote) {
		pkt := qp.dev.getPacket(len(payload))
		pkt.Packet = *h
		copy(pkt.buf, payload)
		pkt.setAddrs(p)
		qp.own(work{to, pkt})
	}
}
