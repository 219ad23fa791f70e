package cm

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
)

// Group is an ID's membership of a multicast group. It ends with Leave or with the ID.
type Group struct {
	id     *ID
	uid    uint64
	handle uint32
	event  chan Event    // the result of joining
	gone   chan struct{} // closed with the ID
	left   atomic.Bool

	// Set when the group is joined:
	AV    verbs.AddressVector
	QPNum uint32 // of all members: 0xffffff
	QKey  uint32
}

// Join joins a multicast group and waits until the ID is a member
// (rdma_join_multicast(3)). The ID must be bound to a device. With sendOnly the
// member receives nothing. The caller must attach the QP, see
// [uverbs.QP.AttachMulticast].
func (id *ID) Join(ctx context.Context, group netip.Addr, sendOnly bool) (*Group, error) {
	g := &Group{id: id, uid: lastNumber.Add(1), event: make(chan Event, 1), gone: make(chan struct{})}
	sa, size, err := sockaddr(netip.AddrPortFrom(group, 0))
	if err != nil {
		return nil, fail("join", group.String(), err)
	}
	id.mu.Lock()
	if id.ended {
		id.mu.Unlock()
		return nil, fail("join", group.String(), verbs.ErrClosed)
	}
	if id.groups == nil {
		id.groups = map[uint64]*Group{}
	}
	id.groups[g.uid] = g
	id.mu.Unlock()
	c := id.ch()
	c.register(id, []uint64{g.uid})

	req := abi.RdmaUcmJoinMcast{Uid: g.uid, Id: id.handle, AddrSize: size, Addr: sa}
	if sendOnly {
		req.JoinFlags = abi.RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER
	}
	var resp abi.RdmaUcmCreateIdResp
	err = idQuery(id, abi.RDMA_USER_CM_CMD_JOIN_MCAST, &req, &req.Response, &resp)
	if err != nil {
		g.forget()
		return nil, fail("join", group.String(), err)
	}
	g.handle = resp.Id
	e, err := g.joined(ctx)
	if err == nil {
		err = e.Err()
	}
	if err != nil {
		g.Leave()
		return nil, fail("join", group.String(), err)
	}
	g.AV, g.QPNum, g.QKey = e.AV, e.QPNum, e.QKey
	return g, nil
}

// joined waits for the event with the result of joining.
func (g *Group) joined(ctx context.Context) (Event, error) {
	if l := g.id.ch().loop; l != nil {
		if err := l.wait(ctx, func() bool { return len(g.event) > 0 || g.id.isEnded() }); err != nil {
			return Event{}, err
		}
	}
	select {
	case e := <-g.event:
		return e, nil
	case <-g.gone:
		return Event{}, verbs.ErrClosed
	case <-ctx.Done():
		return Event{}, ctx.Err()
	}
}

// Leave ends the membership, unless it has ended with its ID. It may be called
// again.
func (g *Group) Leave() error {
	if g.left.Swap(true) {
		return nil
	}
	req := abi.RdmaUcmDestroyId{Id: g.handle}
	err := idQuery(g.id, abi.RDMA_USER_CM_CMD_LEAVE_MCAST, &req, &req.Response, new(abi.RdmaUcmDestroyIdResp))
	g.forget()
	if err == verbs.ErrClosed {
		return nil
	}
	return fail("leave group of ID", "", err)
}

func (g *Group) forget() {
	g.id.ch().unregister([]uint64{g.uid})
	g.id.mu.Lock()
	delete(g.id.groups, g.uid)
	g.id.mu.Unlock()
}

// pushGroup delivers an event to the group with the number uid.
func (id *ID) pushGroup(uid uint64, e Event) {
	id.mu.Lock()
	g := id.groups[uid]
	id.mu.Unlock()
	if g == nil {
		return
	}
	select {
	case g.event <- e:
	default: // no call is waiting any more
	}
	if l := id.ch().loop; l != nil {
		l.changed.Signal()
	}
}

// Member is an endpoint that is in a multicast group.
type Member struct {
	*Endpoint
	// Group is the membership, which Close ends.
	Group *Group
	// To is the destination of messages to the group.
	To verbs.UDAddr

	attached bool
	leave    sync.Once
}

// Join makes a datagram endpoint that is a member of a group, an IP multicast
// address. Dialer.LocalAddr, if set, selects the device. With sendOnly the
// endpoint receives nothing.
func (d *Dialer) Join(ctx context.Context, group string, sendOnly bool) (*Member, error) {
	m, err := d.join(ctx, group, sendOnly)
	return m, fail("join", group, err)
}

func (d *Dialer) join(ctx context.Context, group string, sendOnly bool) (_ *Member, err error) {
	addr, err := netip.ParseAddr(group)
	if err != nil {
		return nil, err
	}
	t := d.Transport.orDefault()
	id, err := t.newID(PortSpaceUDP)
	if err != nil {
		return nil, err
	}
	if err := d.resolveAddr(ctx, id, netip.AddrPortFrom(addr, 0)); err != nil {
		id.Close()
		return nil, err
	}
	e, err := newEndpoint(id, Route{}, &d.Options, newConnLogger(d.Logger), t)
	if err != nil {
		return nil, err
	}
	m := &Member{Endpoint: e}
	defer func() {
		if err != nil {
			m.Close()
		}
	}()
	if m.Group, err = id.Join(ctx, addr, sendOnly); err != nil {
		return nil, err
	}
	if err := e.setPeer(Event{AV: m.Group.AV, QPNum: m.Group.QPNum, QKey: m.Group.QKey}); err != nil {
		return nil, err
	}
	m.To = e.Peer
	if !sendOnly {
		if err := e.QP.AttachMulticast(m.Group.AV.DGID, m.Group.AV.DLID); err != nil {
			return nil, err
		}
		m.attached = true
	}
	e.log(slog.LevelDebug, "multicast group joined", nil)
	e.watchEvents()
	return m, nil
}

// Close leaves the group and closes the endpoint.
func (m *Member) Close() error {
	if m == nil {
		return verbs.ErrClosed
	}
	m.leave.Do(func() {
		if m.attached {
			m.QP.DetachMulticast(m.Group.AV.DGID, m.Group.AV.DLID)
		}
		if m.Group != nil {
			m.Group.Leave()
		}
	})
	return m.Endpoint.Close()
}
