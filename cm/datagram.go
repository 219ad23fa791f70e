package cm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/host"
	"github.com/goverbs/verbs/uverbs"
)

// activateUD moves a datagram QP, which needs no peer, to RTS.
func (e *Endpoint) activateUD() error {
	if err := e.QP.Modify(verbs.QPAttr{State: verbs.StateRTR}, verbs.MaskState); err != nil {
		return err
	}
	return e.QP.Modify(verbs.QPAttr{State: verbs.StateRTS}, verbs.MaskState|verbs.MaskSQPSN)
}

// setPeer makes the peer of an event the endpoint's Peer.
func (e *Endpoint) setPeer(ev Event) error {
	ah, err := e.PD.CreateAH(ev.AV)
	if err != nil {
		return err
	}
	e.Peer = ah.To(ev.QPNum, ev.QKey)
	return e.own.add(ah.Close)
}

// Datagrams sends and receives messages over the queues of a datagram endpoint, through its own
// buffers. It is closed with the endpoint.
type Datagrams struct {
	e        *Endpoint
	mr       *uverbs.MR
	slotSize int // bytes of a receive buffer, with the GRH
	qkey     uint32

	sending chan struct{} // holds a token while a message is sent
	senders *ahCache
}

// NewDatagrams fills the endpoint's receive queue with buffers of size bytes, from 1 to the port's
// MTU. Call it in [Options].Setup: a message that arrives before it is lost. It refuses an endpoint
// with [Options].SRQ, SendCQ, RecvCQ or Polled: the error matches [errors.ErrUnsupported].
func NewDatagrams(e *Endpoint, size int) (d *Datagrams, err error) {
	defer wrap(&err, "prepare datagrams on", e.LocalAddr().String())
	port, err := e.PD.Context().QueryPort(max(e.route.Port, 1))
	if err != nil {
		return nil, err
	}
	if mtu := port.ActiveMTU.Bytes(); size < 1 || size > mtu {
		return nil, fmt.Errorf("buffers of %d bytes: %w: 1 to %d, the port's MTU", size, verbs.ErrRange, mtu)
	}
	if err := checkQueues(&e.plan); err != nil {
		return nil, err
	}
	n := int(e.QP.Cap().MaxRecvWR)
	d = &Datagrams{e: e, slotSize: size + verbs.GRHSize, sending: make(chan struct{}, 1)}
	d.senders = newAHCache(d.replyAH)
	attr, err := e.QP.Query()
	if err != nil {
		return nil, err
	}
	d.qkey = attr.QKey
	// The last slot is for sending, the others are for the receives.
	if d.mr, err = e.AllocMR((n+1)*d.slotSize, verbs.AccessLocalWrite); err != nil {
		return nil, err
	}
	if err := e.own.add(d.senders.close); err != nil {
		return nil, err
	}
	for i := range n {
		if err := d.post(i); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// checkQueues returns an error if Datagrams cannot use the queues of an endpoint with this plan. A
// completion names its buffer by WC.ID, so Datagrams would take the completion of another QP for
// one of its own and return, and post again, a buffer that the device still writes to. Without a
// completion channel, Send could not wait until its buffer is free.
func checkQueues(p *plan) error {
	with := ""
	switch {
	case p.SRQ != nil:
		with = "Options.SRQ"
	case p.SendCQ != nil:
		with = "Options.SendCQ"
	case p.RecvCQ != nil:
		with = "Options.RecvCQ"
	case p.Polled:
		with = "Options.Polled"
	default:
		return nil
	}
	return fmt.Errorf("the endpoint has %s, and Datagrams needs queues of its own that it can wait on: %w", with, errors.ErrUnsupported)
}

func (d *Datagrams) post(i int) error {
	_, err := d.e.QP.PostRecv(verbs.RecvWR{ID: uint64(i), SGL: []verbs.SGE{d.mr.SGE(i*d.slotSize, d.slotSize)}})
	return err
}

// Datagram describes a message that was received.
type Datagram struct {
	Len     int
	From    Sender // for [Datagrams.Reply]
	WithImm bool
	Imm     uint32 // immediate data, if WithImm is set
}

// Recv waits for a message and copies it to b.
func (d *Datagrams) Recv(ctx context.Context, b []byte) (m Datagram, err error) {
	defer d.failed("receive on", &err)
	wc, err := d.wait(ctx, d.e.RecvCQ)
	if err != nil {
		return m, err
	}
	if m.WithImm = wc.Flags&verbs.WCWithImm != 0; m.WithImm {
		m.Imm = wc.Imm()
	}
	err = d.withMemory(func(mem []byte) {
		slot := mem[int(wc.ID)*d.slotSize:][:wc.ByteLen]
		m.From = senderOf(&wc, slot)
		m.Len = copy(b, slot[min(len(slot), verbs.GRHSize):])
	})
	if err != nil {
		return m, err
	}
	return m, d.post(int(wc.ID))
}

// withMemory calls f with the slots. They are not freed before it returns.
func (d *Datagrams) withMemory(f func(mem []byte)) error {
	return d.e.own.use(func() { f(d.mr.Bytes()) })
}

// wait waits for a completion. If the end of the endpoint flushed the request, the error is its
// reason.
func (d *Datagrams) wait(ctx context.Context, cq *uverbs.CQ) (verbs.WC, error) {
	wc, err := cq.Next(ctx)
	if wc.Status == verbs.WCFlushErr && d.e.life.ending.Load() {
		<-d.e.life.done
		err = d.e.life.reason
	}
	return wc, err
}

// replyAH makes the address handle for answers to a sender. It takes up to a second
// if the sender's address does not answer ARP or neighbour discovery.
func (d *Datagrams) replyAH(h header) (*uverbs.AH, error) {
	wc := verbs.WC{Flags: h.flags, SLID: h.slid, SL: h.sl, PathBits: h.pathBits}
	return d.e.PD.CreateReplyAH(d.e.route.Port, &wc, h.grh[:])
}

// SetMaxSenders sets the size of the cache of address handles for answers, one for each of the last
// senders; the default is 1024, the least 1. Devices have some ten thousand for all programs.
func (d *Datagrams) SetMaxSenders(n int) { d.senders.setLimit(max(n, 1)) }

// Send sends a message and waits for its completion. ctx bounds the wait for other senders.
func (d *Datagrams) Send(ctx context.Context, to verbs.UDAddr, b []byte) error {
	return d.send(ctx, verbs.SendWR{Opcode: verbs.OpSend, To: to}, b)
}

// SendImm is like [Datagrams.Send], with immediate data.
func (d *Datagrams) SendImm(ctx context.Context, to verbs.UDAddr, b []byte, imm uint32) error {
	return d.send(ctx, verbs.SendWR{Opcode: verbs.OpSendImm, To: to, Imm: imm}, b)
}

// Reply is like [Datagrams.Send], to the sender of a received message. The first answer resolves
// the sender's address, for up to a second or until ctx ends, at most 64 senders at a time.
func (d *Datagrams) Reply(ctx context.Context, to Sender, b []byte) error {
	return d.reply(ctx, verbs.SendWR{Opcode: verbs.OpSend}, to, b)
}

// ReplyImm is like [Datagrams.Reply], with immediate data.
func (d *Datagrams) ReplyImm(ctx context.Context, to Sender, b []byte, imm uint32) error {
	return d.reply(ctx, verbs.SendWR{Opcode: verbs.OpSendImm, Imm: imm}, to, b)
}

func (d *Datagrams) reply(ctx context.Context, wr verbs.SendWR, to Sender, b []byte) error {
	h, err := d.senders.acquire(ctx, to.header)
	if err != nil {
		return fail("answer", to.Addr().String(), err)
	}
	defer d.senders.release(h)
	wr.To = h.ah.To(to.QPNum, d.qkey)
	return d.send(ctx, wr, b)
}

func (d *Datagrams) failed(op string, err *error) {
	if *err != nil {
		*err = fail(op, d.e.LocalAddr().String(), *err)
	}
}

func (d *Datagrams) send(ctx context.Context, wr verbs.SendWR, b []byte) (err error) {
	defer d.failed("send on", &err)
	if len(b) > d.slotSize-verbs.GRHSize {
		return fmt.Errorf("datagram of %d bytes: %w", len(b), verbs.ErrMessageTooLong)
	}
	select {
	case d.sending <- struct{}{}:
		defer func() { <-d.sending }()
	case <-ctx.Done():
		return host.Ended(ctx)
	}
	at := d.mr.Len() - d.slotSize
	if err := d.withMemory(func(mem []byte) { copy(mem[at:], b) }); err != nil {
		return err
	}
	wr.Flags, wr.SGL = verbs.SendSignaled, []verbs.SGE{d.mr.SGE(at, len(b))}
	if _, err := d.e.QP.PostSend(wr); err != nil {
		return err
	}
	// The buffer is in use until the completion, so the end of ctx does not end the
	// wait. Closing the endpoint does.
	_, err = d.wait(context.WithoutCancel(ctx), d.e.SendCQ)
	return err
}

// Sender is the claimed source of a datagram. It is not authenticated. Equal senders have the same
// queue pair, address and traffic class.
type Sender struct {
	QPNum  uint32
	header header
}

// header identifies the path to a sender.
type header struct {
	grh      [verbs.GRHSize]byte
	flags    verbs.WCFlags // what grh is, if any
	slid     uint16
	sl       uint8
	pathBits uint8
}

func senderOf(wc *verbs.WC, grh []byte) Sender {
	h := header{slid: wc.SLID, sl: wc.SL, pathBits: wc.PathBits}
	src, _ := wc.GRHAddrs(grh)
	// Leave out the fields that differ between packets of one sender: IPv6's payload length and hop
	// limit, or IPv4's length, identification, fragment, time to live and checksum, and the bytes
	// before its header.
	switch {
	case src.Is4():
		h.flags = verbs.WCGRH | verbs.WCIPv4
		copy(h.grh[20:22], grh[20:])
		h.grh[29] = grh[29]
		copy(h.grh[32:], grh[32:])
	case src.IsValid():
		h.flags = verbs.WCGRH | verbs.WCIPv6
		copy(h.grh[:], grh)
		clear(h.grh[4:6])
		clear(h.grh[7:8])
	default:
		h.flags = wc.Flags & verbs.WCGRH
	}
	return Sender{QPNum: wc.SrcQP, header: h}
}

// String returns the queue pair and its address.
func (s Sender) String() string {
	if a := s.Addr(); a.IsValid() {
		return fmt.Sprintf("QP %d of %v", s.QPNum, a)
	}
	return fmt.Sprintf("QP %d of LID %d", s.QPNum, s.header.slid)
}

// Addr returns the sender's address. It is invalid without a GRH, as within InfiniBand's subnets.
func (s Sender) Addr() netip.Addr {
	addr, _ := (&verbs.WC{Flags: s.header.flags}).GRHAddrs(s.header.grh[:])
	return addr
}

// Join starts to join a multicast group (rdma_join_multicast(3)) from an ID that is bound to a
// device, with sendOnly without receiving. MulticastJoin follows, with AV, QPNum and QKey, or
// MulticastError. The caller must attach the QP, see [uverbs.QP.AttachMulticast].
func (id *ID) Join(group netip.Addr, sendOnly bool) error {
	return fail("join", group.String(), id.join(group, sendOnly))
}

// join gives the group the uid of the ID, so that the ID gets the group's event
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
// member until Close, with sendOnly without receiving. LocalAddr, if set, selects the device; PortSpace zero is
// PortSpaceUDP. No kernel joins a group of IPv6 on RoCE: the error matches [errors.ErrUnsupported].
//
// The GID of the group 239.1.2.3 is ::ffff:239.1.2.3, as [verbs.ParseGID] has it, on RoCE v2, and
// ff0e::ffff:239.1.2.3 on RoCE v1 (cma_iboe_set_mgid). On InfiniBand it is that of IPoIB.
func (d *Dialer) Join(ctx context.Context, group string, sendOnly bool) (e *Endpoint, err error) {
	defer wrap(&err, "join", group)
	addr, err := netip.ParseAddr(group)
	if err != nil {
		return nil, err
	}
	space := cmp.Or(d.PortSpace, PortSpaceUDP)
	if !space.datagram() {
		return nil, fmt.Errorf("port space %#x has no datagrams, choose PortSpaceUDP or PortSpaceIPoIB: %w", uint16(space), verbs.ErrRange)
	}
	t := d.Transport.orDefault()
	id, err := t.newID(space, nil)
	if err != nil {
		return nil, err
	}
	if err := d.resolveAddr(ctx, id, netip.AddrPortFrom(addr, 0)); err != nil {
		id.Close()
		return nil, err
	}
	e, err = newEndpoint(id, Route{}, nil, &d.Options, newConnLogger(d.Logger), t)
	if err != nil {
		return nil, err
	}
	if n := len(e.announce()); n > 0 {
		err = fmt.Errorf("%d bytes of private data for a multicast group: %w", n, errors.ErrUnsupported)
	} else {
		err = e.join(ctx, addr, sendOnly)
	}
	if err != nil {
		e.Close()
		return nil, err
	}
	e.setUp()
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
