package cm

import (
	"context"
	"log/slog"
	"net/netip"

	"github.com/goverbs/verbs/abi"
)

// Join starts to join a multicast group (rdma_join_multicast(3)) from an ID that is bound to a
// device, with sendOnly without receiving. MulticastJoin follows, with AV, QPNum and QKey, or
// MulticastError. The caller must attach the QP, see [uverbs.QP.AttachMulticast].
func (id *ID) Join(group netip.Addr, sendOnly bool) error {
	return fail("join", group.String(), id.join(group, sendOnly))
}

// join gives the group the uid of the ID, so that the event of the group is one of the ID
// (ucma_set_event_context).
func (id *ID) join(group netip.Addr, sendOnly bool) error {
	sa, size, err := sockaddr(netip.AddrPortFrom(group, 0))
	if err != nil {
		return err
	}
	req := abi.RdmaUcmJoinMcast{Uid: id.uid, Id: id.handle, AddrSize: size, Addr: sa}
	if sendOnly {
		req.JoinFlags = abi.RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER
	}
	var resp abi.RdmaUcmCreateIdResp
	if err = idQuery(id, abi.RDMA_USER_CM_CMD_JOIN_MCAST, &req, &req.Response, &resp); err == nil {
		id.groups.Store(group, resp.Id)
	}
	return err
}

// Leave ends the membership of a group, if there is one (rdma_leave_multicast(3)).
func (id *ID) Leave(group netip.Addr) error {
	handle, ok := id.groups.LoadAndDelete(group)
	if !ok {
		return nil
	}
	req := abi.RdmaUcmDestroyId{Id: handle.(uint32)}
	err := idQuery(id, abi.RDMA_USER_CM_CMD_LEAVE_MCAST, &req, &req.Response, new(abi.RdmaUcmDestroyIdResp))
	return fail("leave", group.String(), err)
}

// Join makes a datagram endpoint whose Peer is a group, an IP multicast address, and that is a
// member until Close, with sendOnly without receiving. LocalAddr, if set, selects the device.
func (d *Dialer) Join(ctx context.Context, group string, sendOnly bool) (*Endpoint, error) {
	e, err := d.join(ctx, group, sendOnly)
	return e, fail("join", group, err)
}

func (d *Dialer) join(ctx context.Context, group string, sendOnly bool) (*Endpoint, error) {
	addr, err := netip.ParseAddr(group)
	if err != nil {
		return nil, err
	}
	t := d.Transport.orDefault()
	id, err := t.newID(PortSpaceUDP, nil)
	if err != nil {
		return nil, err
	}
	if err := d.resolveAddr(ctx, id, netip.AddrPortFrom(addr, 0)); err != nil {
		id.Close()
		return nil, err
	}
	e, err := newEndpoint(id, Route{}, nil, &d.Options, newConnLogger(d.Logger), t)
	if err != nil {
		return nil, err
	}
	if err := e.join(ctx, addr, sendOnly); err != nil {
		e.Close()
		return nil, err
	}
	e.logStep(slog.LevelDebug, "multicast group joined", nil)
	e.watchEvents()
	return e, nil
}

func (e *Endpoint) join(ctx context.Context, group netip.Addr, sendOnly bool) error {
	if err := e.id.join(group, sendOnly); err != nil {
		return err
	}
	ev, err := e.id.events.await(ctx, MulticastJoin)
	if err != nil {
		return err
	}
	if err := e.setPeer(ev); err != nil || sendOnly {
		return err
	}
	if err := e.QP.AttachMulticast(ev.AV.DGID, ev.AV.DLID); err != nil {
		return err
	}
	// The kernel closes no QP that is attached (ib_uverbs_destroy_uqp, uobj_destroy: EBUSY).
	e.own.detach = func() { e.QP.DetachMulticast(ev.AV.DGID, ev.AV.DLID) }
	return nil
}
