package main

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/uverbs"
)

// pingpong is one side: its queues, and how far it is.
type pingpong struct {
	*pingpongFlags
	pingpongKind
	dev      *uverbs.Context
	pd       *uverbs.PD
	srq      *uverbs.SRQ // nil unless QPs share it
	cq       *uverbs.CQ  // of all queues
	ethernet bool        // peers are found by GID, not by LID
	objects  []io.Closer // in the order they were made

	pingpongMemory
	rallies  []*rally
	spare    []verbs.RecvWR // receives to post
	posted   int            // receives that wait for a message
	sent     int            // messages that have gone
	received int
	checked  int
}

// rally is what goes on on one QP: a message each way at a time.
type rally struct {
	qp       *uverbs.QP
	local    verbs.QPAddr
	to       verbs.UDAddr // the peer, on UD
	sent     int          // messages posted
	received int
	sending  bool // a message has not yet gone
	awaiting bool // one has not yet come
	lag      int  // see expected
}

// The Q_Key of rdma-core's ibv_ud_pingpong.
const pingpongQKey = 0x11111111

// newPingpong makes the queues, which the peer cannot reach yet.
func newPingpong(flags *pingpongFlags, kind pingpongKind) (*pingpong, error) {
	p := &pingpong{pingpongFlags: flags, pingpongKind: kind}
	if err := p.setUp(); err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

func (p *pingpong) setUp() (err error) {
	if p.dev, err = own(uverbs.Open(p.Device))(p); err != nil {
		return err
	}
	if err := p.checkPort(); err != nil {
		return err
	}
	if p.pd, err = own(p.dev.AllocPD())(p); err != nil {
		return err
	}
	cq := uverbs.CQOptions{Depth: p.RxDepth + p.numQP}
	if p.Events {
		if cq.Channel, err = own(p.dev.CreateCompChannel())(p); err != nil {
			return err
		}
	}
	if p.cq, err = own(p.dev.CreateCQ(cq))(p); err != nil {
		return err
	}
	if p.shared {
		p.srq, err = own(p.pd.CreateSRQ(uverbs.SRQOptions{MaxWR: p.RxDepth, MaxSGE: 1}))(p)
		if err != nil {
			return err
		}
	}
	if err := p.layOut(); err != nil {
		return err
	}
	for range p.numQP {
		r, err := p.newRally()
		if err != nil {
			return err
		}
		p.rallies = append(p.rallies, r)
	}
	return nil
}

// own makes a new object one of those that p closes.
func own[T io.Closer](obj T, err error) func(*pingpong) (T, error) {
	return func(p *pingpong) (T, error) {
		if err == nil {
			p.objects = append(p.objects, obj)
		}
		return obj, err
	}
}

func (p *pingpong) close() error {
	var errs []error
	for _, obj := range slices.Backward(p.objects) {
		errs = append(errs, obj.Close())
	}
	return errors.Join(errs...)
}

// checkPort refuses what cannot work before a peer is kept waiting.
func (p *pingpong) checkPort() error {
	name := p.dev.Device().Name
	if p.dev.Device().IWARP() {
		return fmt.Errorf("%s is an iWARP device, which connects by the connection manager only: see verbs ping", name)
	}
	port, err := p.dev.QueryPort(p.IBPort)
	if err != nil {
		return err
	}
	p.ethernet = port.LinkLayer == verbs.LinkEthernet
	if !p.ethernet && port.LID == 0 {
		return fmt.Errorf("port %d of %s has no LID: no subnet manager gave it one", p.IBPort, name)
	}
	limit := port.MaxMessage
	if p.qp == verbs.UD {
		limit = port.ActiveMTU.Bytes()
	}
	if p.Size < 1 || p.Size > limit {
		return fmt.Errorf("messages of %d bytes: %s takes 1 to %d", p.Size, name, limit)
	}
	return nil
}

func (p *pingpong) newRally() (*rally, error) {
	opt := uverbs.QPOptions{Type: p.qp, SendCQ: p.cq, RecvCQ: p.cq, SRQ: p.srq}
	opt.Cap = verbs.QPCap{MaxSendWR: 1, MaxRecvWR: p.RxDepth, MaxSendSGE: 1, MaxRecvSGE: 1}
	qp, err := own(p.pd.CreateQP(opt))(p)
	if err != nil {
		return nil, err
	}
	var local verbs.QPAddr
	if p.GIDIdx < 0 {
		local, err = qp.Addr(p.IBPort)
	} else {
		var gid verbs.GIDEntry
		if gid, err = p.dev.QueryGID(p.IBPort, p.GIDIdx); err == nil {
			local, err = qp.AddrOn(gid)
		}
	}
	if err != nil {
		return nil, err
	}
	if p.qp == verbs.UD {
		local.PSN = 0 // UD counts from 0
	}
	return &rally{qp: qp, local: local}, nil
}

// connect makes the QPs ready for the peer's first messages.
func (p *pingpong) connect(remote []verbs.QPAddr) error {
	for i, r := range p.rallies {
		peer := remote[i]
		if p.ethernet && peer.GID == (verbs.GID{}) {
			return errors.New("it has no GID, which Ethernet needs: give it one with -g")
		}
		if err := p.connectRally(r, peer); err != nil {
			return err
		}
	}
	return p.postRecv()
}

func (p *pingpong) connectRally(r *rally, peer verbs.QPAddr) error {
	if p.qp != verbs.UD {
		return r.qp.Connect(r.local, peer, uverbs.ConnectOptions{
			Access: verbs.AccessLocalWrite, PathMTU: p.mtu, MaxRDAtomic: 1, MaxDestRDAtomic: 1, SL: p.SL,
		})
	}
	if err := r.qp.StartUD(p.IBPort, pingpongQKey); err != nil {
		return err
	}
	path := peer.PathFrom(r.local)
	path.SL = p.SL
	ah, err := own(p.pd.CreateAH(path))(p)
	if err != nil {
		return err
	}
	r.to = ah.To(peer.QPNum, pingpongQKey)
	return nil
}
