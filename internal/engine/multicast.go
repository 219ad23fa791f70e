package engine

import (
	"maps"
	"net/netip"
	"slices"
	"sync"
	"syscall"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/roce"
)

// joiner is a port of a network whose members have to join multicast groups.
type joiner interface {
	Join(group netip.Addr) error
	Leave(group netip.Addr) error
}

// linked is a port that shares a network link, with a number, with others, which receive the same
// packets to groups.
type linked interface{ Link() int }

// groups contains the QPs of multicast groups. A group is known by its address alone: a UD QP that
// is attached gets each datagram to it, with the Q_Key of the QP (struct rxe_mcg). On the network
// it is a multicast group of IP, which the ports join while it has members.
type groups struct {
	// changes is held while a QP is attached or detached, which may join or leave the group on the
	// network. Join and Leave wait for the receiving goroutine, so nothing there may take changes,
	// and it is taken before the locks that are needed there: QP.mu and mu.
	changes sync.Mutex

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
	if qp.init.Type != verbs.UD || !group.IsMulticast() {
		return syscall.EINVAL // ib_attach_mcast
	}
	g := &d.groups
	g.changes.Lock()
	defer g.changes.Unlock()
	first, err := g.add(group, qp)
	if err != nil {
		return err
	}
	if first && d.join(group) != nil {
		g.remove(group, qp)
		return syscall.EINVAL
	}
	return nil
}

// add adds a member unless it is one already, and reports whether it is the first one. The caller
// holds changes.
func (g *groups) add(group netip.Addr, qp *QP) (first bool, err error) {
	qp.mu.Lock()
	defer qp.mu.Unlock()
	g.mu.Lock()
	defer g.mu.Unlock()
	list := g.members[group]
	switch {
	case qp.ended:
		return false, syscall.EINVAL
	case slices.Contains(list, qp):
		return false, nil
	case len(list) == 0 && len(g.members) >= maxMcastGroup, len(list) >= maxGroupQPs, g.attached >= maxAttached:
		return false, syscall.ENOMEM
	}
	if g.members == nil {
		g.members = make(map[netip.Addr][]*QP)
	}
	g.members[group] = append(slices.Clone(list), qp) // lists that are in use do not change
	g.attached++
	qp.groups++
	return len(list) == 0, nil
}

// DetachMulticast removes the QP from the group. It fails with EINVAL if the QP is not attached.
func (qp *QP) DetachMulticast(gid verbs.GID) error {
	d, group := qp.dev, gid.Addr()
	g := &d.groups
	g.changes.Lock()
	defer g.changes.Unlock()
	last, ok := g.remove(group, qp)
	if !ok {
		return syscall.EINVAL
	}
	if last {
		d.leave(group)
	}
	return nil
}

// remove removes a member. It reports whether that was the last one, and false if it is none.
func (g *groups) remove(group netip.Addr, qp *QP) (last, ok bool) {
	qp.mu.Lock()
	defer qp.mu.Unlock()
	g.mu.Lock()
	defer g.mu.Unlock()
	i := slices.Index(g.members[group], qp)
	if i < 0 {
		return false, false
	}
	list := slices.Delete(slices.Clone(g.members[group]), i, i+1)
	if g.members[group] = list; len(list) == 0 {
		delete(g.members, group)
	}
	g.attached--
	qp.groups--
	return len(list) == 0, true
}

func (d *Device) join(group netip.Addr) error {
	for _, p := range d.gids.ports() {
		if err := p.join(group); err != nil {
			d.leave(group)
			return err
		}
	}
	return nil
}

func (p *port) join(group netip.Addr) error {
	if p.addr.Is4() != group.Is4() {
		return nil
	}
	if j, ok := p.net.(joiner); ok {
		return j.Join(group)
	}
	return nil
}

// joinAll joins the groups that have members on a new port. The caller holds changes.
func (g *groups) joinAll(p *port) error {
	g.mu.Lock()
	groups := slices.Collect(maps.Keys(g.members))
	g.mu.Unlock()
	for _, group := range groups {
		if err := p.join(group); err != nil {
			return err
		}
	}
	return nil
}

func (d *Device) leave(group netip.Addr) {
	for _, p := range d.gids.ports() {
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

// firstOnLink reports whether the device has no port of the same family before p on its link.
func (d *Device) firstOnLink(p *port) bool {
	link, ok := p.net.(linked)
	for _, q := range d.gids.ports() {
		if other, also := q.net.(linked); ok && also && other.Link() == link.Link() && q.addr.Is4() == p.addr.Is4() {
			return q.net == p.net
		}
	}
	return true
}

// receiveMulticast passes a packet of a group, which a port has received, to its members.
func (d *Device) receiveMulticast(at *port, p *packet) {
	// The network may have returned what the device sent, which sendToGroup has passed on already.
	// And two ports on a link both receive what comes to it.
	if d.gids.of(p.src) != nil || !d.firstOnLink(at) {
		return
	}
	for _, qp := range d.groups.of(p.dst) {
		qp.lock()
		qp.handle(p)
		qp.finish()
		qp.unlock()
	}
}

// sendToGroup passes a packet to a group's members on this device, its sender included if it is
// attached, as IP's multicast loop does.
func (o *out) sendToGroup(p *path, h *roce.Packet, payload []byte) {
	for _, to := range o.dev.groups.of(p.remote) {
		pkt := o.dev.getPacket(len(payload))
		pkt.Packet = *h
		copy(pkt.buf, payload)
		pkt.setAddrs(p)
		o.own(work{to, pkt})
	}
}
