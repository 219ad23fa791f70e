package pingpong

import (
	"errors"
	"fmt"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cmd/verbs/internal/cli"
	"github.com/goverbs/verbs/uverbs"
)

// side is one side of the exchange: its queues and its progress.
type side struct {
	*flags
	kind
	dev      *uverbs.Context
	pd       *uverbs.PD
	srq      *uverbs.SRQ // nil unless QPs share it
	cq       *uverbs.CQ  // of all queues
	ethernet bool        // peers are found by GID, not by LID
	objects  cli.Closers

	memory
	lanes    []*lane
	unposted []verbs.RecvWR // receives to post
	posted   int            // receives that wait for a message
	sent     int            // messages whose send has completed
	received int
	checked  int
}

// lane is the exchange on one QP: one message at a time in each direction.
type lane struct {
	qp       *uverbs.QP
	local    verbs.QPAddr
	to       verbs.UDAddr // the peer, on UD
	sent     int          // messages posted
	received int
	sending  bool // a send has not completed
	awaiting bool // a message has not arrived
	lag      int  // see expected
}

// qKey is the Q_Key of rdma-core's ibv_ud_pingpong.
const qKey = 0x11111111

// setUp creates the queues, which the peer cannot reach yet.
func (s *side) setUp() (err error) {
	if s.dev, err = cli.Own(uverbs.Open(s.Device))(&s.objects); err != nil {
		return err
	}
	if err := s.checkPort(); err != nil {
		return err
	}
	if s.pd, err = cli.Own(s.dev.AllocPD())(&s.objects); err != nil {
		return err
	}
	cq := uverbs.CQOptions{Depth: s.RxDepth + s.numQP}
	if s.Events {
		if cq.Channel, err = cli.Own(s.dev.CreateCompChannel())(&s.objects); err != nil {
			return err
		}
	}
	if s.cq, err = cli.Own(s.dev.CreateCQ(cq))(&s.objects); err != nil {
		return err
	}
	if s.shared {
		s.srq, err = cli.Own(s.pd.CreateSRQ(uverbs.SRQOptions{MaxWR: s.RxDepth, MaxSGE: 1}))(&s.objects)
		if err != nil {
			return err
		}
	}
	if err := s.allocMemory(); err != nil {
		return err
	}
	for range s.numQP {
		l, err := s.newLane()
		if err != nil {
			return err
		}
		s.lanes = append(s.lanes, l)
	}
	return nil
}

// checkPort rejects options that cannot work before a peer waits for this side.
func (s *side) checkPort() error {
	device := s.dev.Device()
	if device.IWARP() {
		return fmt.Errorf("%s is an iWARP device, which connects by the connection manager only: see verbs ping", device.Name)
	}
	port, err := s.dev.QueryPort(s.IBPort)
	if err != nil {
		return err
	}
	s.ethernet = port.LinkLayer == verbs.LinkEthernet
	if !s.ethernet && port.LID == 0 {
		return fmt.Errorf("port %d of %s has no LID: no subnet manager gave it one", s.IBPort, device.Name)
	}
	limit := port.MaxMessage
	if s.qp == verbs.UD {
		limit = port.ActiveMTU.Bytes()
	}
	if s.Size < 1 || s.Size > limit {
		return fmt.Errorf("messages of %d bytes: %s takes 1 to %d", s.Size, device.Name, limit)
	}
	return nil
}

func (s *side) newLane() (*lane, error) {
	opt := uverbs.QPOptions{Type: s.qp, SendCQ: s.cq, RecvCQ: s.cq, SRQ: s.srq}
	opt.Cap = verbs.QPCap{MaxSendWR: 1, MaxRecvWR: s.RxDepth, MaxSendSGE: 1, MaxRecvSGE: 1}
	qp, err := cli.Own(s.pd.CreateQP(opt))(&s.objects)
	if err != nil {
		return nil, err
	}
	var local verbs.QPAddr
	if s.GIDIdx < 0 {
		local, err = qp.Addr(s.IBPort)
	} else {
		var gid verbs.GIDEntry
		if gid, err = s.dev.QueryGID(s.IBPort, s.GIDIdx); err == nil {
			local, err = qp.AddrOn(gid)
		}
	}
	if s.qp == verbs.UD {
		local.PSN = 0 // UD counts from 0
	}
	return &lane{qp: qp, local: local}, err
}

// connect makes the QPs ready for the peer's first messages.
func (s *side) connect(remote []verbs.QPAddr) error {
	for i, l := range s.lanes {
		if s.ethernet && remote[i].GID == (verbs.GID{}) {
			return errors.New("it has no GID, which Ethernet needs: give it one with -g")
		}
		if err := s.connectLane(l, remote[i]); err != nil {
			return err
		}
	}
	return s.postRecv()
}

func (s *side) connectLane(l *lane, peer verbs.QPAddr) error {
	if s.qp != verbs.UD {
		return l.qp.Connect(l.local, peer, uverbs.ConnectOptions{
			Access: verbs.AccessLocalWrite, PathMTU: s.mtu, MaxRDAtomic: 1, MaxDestRDAtomic: 1, SL: s.SL,
		})
	}
	if err := l.qp.StartUD(s.IBPort, qKey); err != nil {
		return err
	}
	path := peer.PathFrom(l.local)
	path.SL = s.SL
	ah, err := cli.Own(s.pd.CreateAH(path))(&s.objects)
	if err != nil {
		return err
	}
	l.to = ah.To(peer.QPNum, qKey)
	return nil
}
