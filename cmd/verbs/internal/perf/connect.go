package perf

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/cmd/verbs/internal/cli"
	"github.com/goverbs/verbs/uverbs"
)

// offer accepts the client's connections, on a port of their own, or creates the QPs for
// datagrams.
func (s *session) offer() error {
	s.token = newToken()
	offer := offer{Token: s.token}
	if s.op.datagram {
		if err := s.openUD(); err != nil {
			return err
		}
		defer s.readMessages()
		return s.ctl.send(message{Offer: &offer})
	}
	l, err := cm.Listen(s.ctx, netip.AddrPortFrom(s.ctl.local(), 0).String())
	if err != nil {
		return err
	}
	defer l.Close()
	offer.Port = l.Addr().Port()
	if err := s.ctl.send(message{Offer: &offer}); err != nil {
		return err
	}
	s.readMessages()
	return s.accept(l)
}

// requestRun requests the run and connects to the server.
func (s *session) requestRun() error {
	if err := s.ctl.send(message{Work: &s.work}); err != nil {
		return err
	}
	wait, cancel := context.WithTimeoutCause(s.ctx, peerTimeout, errors.New("the server does not answer"))
	m, err := s.ctl.receive(wait)
	cancel()
	switch {
	case err != nil:
		return err
	case m.Offer == nil:
		return cli.ErrProtocol
	}
	s.token = m.Offer.Token
	s.readMessages()
	if s.op.datagram {
		return s.openUD()
	}
	return s.dial(m.Offer.Port)
}

const privateSize = 6 // token and number of the queue, big endian

// options returns the options of the connection of queue i.
func (s *session) options(i int) cm.Options {
	opt := s.opt
	opt.PrivateData = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint32(nil, s.token), uint16(i))
	opt.Setup = func(e *cm.Endpoint) error {
		if s.PKey != 0 { // else the connection manager has chosen it
			a := verbs.QPAttr{State: verbs.StateInit, PKeyIndex: uint16(s.pkeyIndex)}
			if err := e.QP.Modify(a, verbs.MaskState|verbs.MaskPKeyIndex); err != nil {
				return err
			}
		}
		return s.queues[i].postRecvs(s, i, e.QP)
	}
	opt.Prepare = func(r cm.Route, _ *cm.Options) error {
		d, err := r.FindDevice()
		if err == nil && d.Name != s.path.Device.Name {
			err = fmt.Errorf("the route leads to another device than %s, that of the control connection", s.path.Device.Name)
		}
		return err
	}
	return opt
}

// postRecvs posts all receives of a queue. They share one buffer: the data is checked only
// at the end.
func (q *queue) postRecvs(s *session, i int, qp *uverbs.QP) error {
	q.qp = qp
	if !s.op.receives {
		return nil
	}
	sgl := []verbs.SGE{s.mr.SGE(s.layout().inOf(i), s.layout().head+s.Size)}
	q.recvs = make([]verbs.RecvWR, s.opt.Cap.MaxRecvWR)
	for j := range q.recvs {
		q.recvs[j] = verbs.RecvWR{ID: uint64(i), SGL: sgl}
	}
	_, err := qp.PostRecv(q.recvs...)
	return err
}

// dial connects a client's queues, one after the other.
func (s *session) dial(port uint16) error {
	remote := netip.AddrPortFrom(s.ctl.remote(), port).String()
	for i, q := range s.queues {
		d := cm.Dialer{Options: s.options(i), LocalAddr: netip.AddrPortFrom(s.ctl.local(), 0), ConnectTimeout: peerTimeout, TOS: s.TClass}
		var err error
		if q.ep, err = cli.Own(d.Dial(s.ctx, remote))(&s.objects); err != nil {
			return err
		}
	}
	return nil
}

// accept accepts the connections of a server's queues, and rejects others.
func (s *session) accept(l *cm.Listener) error {
	ctx, cancel := context.WithTimeoutCause(s.ctx, peerTimeout, errors.New("the client does not connect"))
	defer cancel()
	for missing := len(s.queues); missing > 0; {
		r, err := l.Accept(ctx)
		if err != nil {
			return cli.Cause(ctx, err)
		}
		i, ours, err := s.queueOf(r.PrivateData())
		if !ours || err != nil {
			r.Reject(nil)
		}
		if err != nil {
			return err
		}
		if !ours {
			continue
		}
		if s.queues[i].ep, err = cli.Own(r.Accept(ctx, s.options(i)))(&s.objects); err != nil {
			return cli.Cause(ctx, err)
		}
		missing--
	}
	return nil
}

// queueOf returns the queue that a client connects, and whether it is this run's client.
func (s *session) queueOf(private []byte) (i int, ours bool, err error) {
	if len(private) < privateSize || binary.BigEndian.Uint32(private) != s.token {
		return 0, false, nil
	}
	i = int(binary.BigEndian.Uint16(private[4:]))
	if i >= len(s.queues) || s.queues[i].ep != nil {
		return 0, true, fmt.Errorf("connection %d: %w", i, cli.ErrProtocol)
	}
	return i, true, nil
}

// openUD creates UD QPs, which need no connection.
func (s *session) openUD() error {
	gid, err := s.dev.FindGID(s.path.Port, s.path.GID.Addr())
	if err != nil {
		return err
	}
	s.local = make([]verbs.QPAddr, len(s.queues))
	for i, q := range s.queues {
		qp, err := cli.Own(s.opt.PD.CreateQP(uverbs.QPOptions{Type: verbs.UD, SendCQ: s.opt.SendCQ, RecvCQ: s.opt.RecvCQ, Cap: s.opt.Cap}))(&s.objects)
		if err != nil {
			return err
		}
		if err := s.startUD(qp); err != nil {
			return err
		}
		if s.local[i], err = qp.AddrOn(gid); err != nil {
			return err
		}
		if err := q.postRecvs(s, i, qp); err != nil {
			return err
		}
	}
	return nil
}

// startUD is StartUD of the QP with the run's P_Key.
func (s *session) startUD(qp *uverbs.QP) error {
	a := verbs.QPAttr{Port: uint8(s.path.Port), PKeyIndex: uint16(s.pkeyIndex), QKey: s.token}
	for i, mask := range []verbs.QPAttrMask{verbs.MaskPKeyIndex | verbs.MaskPort | verbs.MaskQKey, 0, verbs.MaskSQPSN} {
		a.State = verbs.StateInit + verbs.QPState(i)
		if err := qp.Modify(a, mask|verbs.MaskState); err != nil {
			return err
		}
	}
	return nil
}

// exchangeStart exchanges the locations of memory with the peer, now that this side is ready.
func (s *session) exchangeStart() error {
	mine := start{Addr: s.mr.Addr(), RKey: s.mr.RKey(), Len: s.mr.Len(), QPs: s.local}
	if err := s.ctl.send(message{Start: &mine}); err != nil {
		return err
	}
	var err error
	if s.peer, err = next(s.remote, s.started, peerTimeout, "get ready"); err != nil {
		return err
	}
	if s.peer.Len < s.layout().total {
		return fmt.Errorf("peer has %d bytes of memory, not %d: %w", s.peer.Len, s.layout().total, cli.ErrProtocol)
	}
	if !s.op.datagram {
		return s.build(nil)
	}
	if len(s.peer.QPs) != len(s.queues) {
		return fmt.Errorf("peer has QPs %v: %w", s.peer.QPs, cli.ErrProtocol)
	}
	if err := s.checkPeer(s.peer.QPs[0].GID); err != nil {
		return err
	}
	path := s.peer.QPs[0].PathFrom(s.local[0])
	path.TrafficClass = s.TClass
	ah, err := s.opt.PD.CreateAH(path)
	if err != nil {
		return err
	}
	s.objects = slices.Insert(s.objects, len(s.objects)-len(s.queues), io.Closer(ah)) // closed after the QPs, which use it
	return s.build(ah)
}

// checkPeer refuses to send datagrams to another host than the peer of the control connection, to
// which a peer could direct them. On Ethernet, a GID is an address.
func (s *session) checkPeer(gid verbs.GID) error {
	port, err := s.dev.QueryPort(s.path.Port)
	if err != nil {
		return err
	}
	if to, peer := gid.Addr(), s.ctl.remote().Unmap().WithZone(""); port.LinkLayer == verbs.LinkEthernet && to != peer {
		return fmt.Errorf("peer asks for datagrams to %v, but it is %v: %w", to, peer, cli.ErrProtocol)
	}
	return nil
}

// build prepares the requests of each queue; a run changes little in them.
func (s *session) build(ah *uverbs.AH) error {
	for i, q := range s.queues {
		q.room = ^uint64(0)
		if s.credits() {
			q.room = uint64(s.RxDepth)
		}
		wr := verbs.SendWR{Opcode: s.op.opcode, RKey: s.peer.RKey}
		switch at := s.layout().inOf(i); {
		case s.op.opcode == verbs.OpRDMARead:
			wr.RemoteAddr, wr.SGL = s.peer.Addr, []verbs.SGE{s.mr.SGE(at, s.Size)}
		case s.op.atomic:
			wr.RemoteAddr, wr.SGL = s.peer.Addr+uint64(at), []verbs.SGE{s.mr.SGE(0, 8)}
		case s.Size <= s.Inline:
			wr.RemoteAddr, wr.Inline = s.peer.Addr+uint64(at), s.out()
		default:
			wr.RemoteAddr, wr.SGL = s.peer.Addr+uint64(at), []verbs.SGE{s.mr.SGE(0, s.Size)}
		}
		if ah != nil {
			wr.To = ah.To(s.peer.QPs[i].QPNum, s.token)
		}
		for range s.List {
			if s.op.atomic {
				wr.Args = &verbs.SendArgs{CompareAdd: 1}
			}
			q.batch = append(q.batch, wr)
		}
	}
	return nil
}
