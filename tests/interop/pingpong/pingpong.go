// Package pingpong is one side of rdma-core's ibv_rc_pingpong, ibv_uc_pingpong,
// ibv_ud_pingpong and ibv_srq_pingpong, for tests that run the other.
package pingpong

import (
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

// Options are options of the C programs. Both sides need the same, but for Events.
type Options struct {
	Type   string // rc, uc, ud or srq
	Size   int    // of a message, in bytes
	Iters  int    // messages each way, over all QPs
	Events bool   // sleep until there is a completion, rather than poll for it
}

// Args returns the arguments of the C program, which checks the data.
func (o Options) Args() []string {
	args := []string{"-c", "-s", fmt.Sprint(o.Size), "-n", fmt.Sprint(o.Iters)}
	if o.Events {
		args = append(args, "-e")
	}
	return args
}

const (
	srqQPs = 16  // of ibv_srq_pingpong
	srqMax = 256 // addresses that it exchanges: those after the last QP are zeros
	qKey   = 0x11111111
	sendID = 1 << 63 // of all sends; receives have the number of their slot
)

// side is one side. As in C, one CQ has all completions.
type side struct {
	Options
	t              testing.TB
	client         bool
	pd             *uverbs.PD
	cq             *uverbs.CQ
	srq            *uverbs.SRQ
	mr             *uverbs.MR // slots for receives, and the last for the message that is sent
	slots          int
	head           int // bytes of a slot before the message
	lanes          []*lane
	sent, received int
}

// lane is the exchange on one QP: one message at a time each way.
type lane struct {
	qp                *uverbs.QP
	local             verbs.QPAddr
	to                verbs.UDAddr // the peer, on UD
	sent, received    int
	sending, awaiting bool
}

// Run exchanges messages with the C program that conn leads to, and checks their data.
func (o Options) Run(ctx context.Context, t testing.TB, dev *uverbs.Context, conn net.Conn, client bool) error {
	t.Helper()
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	s := &side{Options: o, t: t, client: client}
	s.setUp(dev)
	if err := s.swapAddrs(conn); err != nil {
		return fmt.Errorf("addresses: %w", err)
	}
	if err := s.exchange(ctx); err != nil {
		return fmt.Errorf("%d sent and %d received: %w", s.sent, s.received, err)
	}
	return nil
}

func (s *side) setUp(dev *uverbs.Context) {
	opt := uverbs.QPOptions{Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 2, MaxSendSGE: 1, MaxRecvSGE: 1}}
	qps := 1
	switch s.Type {
	case "uc":
		opt.Type = verbs.UC
	case "ud":
		opt.Type, s.head = verbs.UD, verbs.GRHSize
	case "srq":
		qps = srqQPs
	}
	s.slots = 2 * qps
	s.pd = labtest.Made(dev.AllocPD())(s.t)
	s.mr = labtest.Made(s.pd.AllocMR((s.slots+1)*(s.head+s.Size), verbs.AccessLocalWrite, uverbs.MROptions{}))(s.t)
	ch := labtest.Made(dev.CreateCompChannel())(s.t)
	s.cq = labtest.Made(dev.CreateCQ(uverbs.CQOptions{Depth: s.slots + qps, Channel: ch}))(s.t)
	if s.Type == "srq" {
		s.srq = labtest.Made(s.pd.CreateSRQ(uverbs.SRQOptions{MaxWR: s.slots, MaxSGE: 1}))(s.t)
	}
	opt.SendCQ, opt.RecvCQ, opt.SRQ = s.cq, s.cq, s.srq
	for range qps {
		qp := labtest.Made(s.pd.CreateQP(opt))(s.t)
		s.lanes = append(s.lanes, &lane{qp: qp, local: labtest.Must(qp.Addr(1))(s.t)})
	}
}

// swapAddrs exchanges the addresses of the QPs and connects these. A server answers when its QPs
// are connected: the client then sends its first messages.
func (s *side) swapAddrs(conn net.Conn) (err error) {
	l := s.lanes[0]
	switch {
	case s.srq != nil:
		return s.swapMany(conn)
	case s.client:
		var peer verbs.QPAddr
		if peer, err = l.local.Offer(conn); err == nil {
			err = s.connect(peer)
		}
	default:
		_, err = l.local.Answer(conn, func(peer verbs.QPAddr) error { return s.connect(peer) })
	}
	return err
}

// swapMany is swapAddrs of ibv_srq_pingpong.
func (s *side) swapMany(conn net.Conn) (err error) {
	const done = "done\x00" // of the client
	if s.client {
		err = s.writeAddrs(conn)
	}
	if err == nil {
		err = s.readAddrs(conn)
	}
	if err == nil && s.client {
		_, err = io.WriteString(conn, done)
	} else if err == nil {
		if err = s.writeAddrs(conn); err == nil {
			_, err = io.ReadFull(conn, make([]byte, len(done)))
		}
	}
	return err
}

// writeAddrs sends all addresses in one write: the C programs receive one in a single read.
func (s *side) writeAddrs(conn net.Conn) error {
	addrs, text := make([]verbs.QPAddr, srqMax), ""
	for i, l := range s.lanes {
		addrs[i] = l.local
	}
	for _, a := range addrs {
		text += a.String() + "\x00"
	}
	_, err := io.WriteString(conn, text)
	return err
}

// readAddrs receives the peer's addresses, connects the QPs and posts the receives.
func (s *side) readAddrs(conn net.Conn) error {
	var peers []verbs.QPAddr
	for range srqMax {
		text := make([]byte, len(verbs.QPAddr{}.String())+1)
		if _, err := io.ReadFull(conn, text); err != nil {
			return err
		}
		addr, err := verbs.ParseQPAddr(string(text[:len(text)-1]))
		if err != nil {
			return err
		}
		peers = append(peers, addr)
	}
	return s.connect(peers[:len(s.lanes)]...)
}

// connect connects the QPs and posts the receives.
func (s *side) connect(peers ...verbs.QPAddr) error {
	for i, l := range s.lanes {
		if err := s.connectOne(l, peers[i]); err != nil {
			return err
		}
	}
	for slot := range s.slots {
		if err := s.postRecv(slot); err != nil {
			return err
		}
	}
	return nil
}

func (s *side) connectOne(l *lane, peer verbs.QPAddr) error {
	if s.Type != "ud" {
		return l.qp.Connect(l.local, peer, uverbs.ConnectOptions{PathMTU: verbs.MTU1024}) // C's default
	}
	if err := l.qp.StartUD(1, qKey); err != nil {
		return err
	}
	l.to = labtest.Made(s.pd.CreateAH(peer.PathFrom(l.local)))(s.t).To(peer.QPNum, qKey)
	return nil
}

func (s *side) postRecv(slot int) error {
	post := s.lanes[0].qp.PostRecv
	if s.srq != nil {
		post = s.srq.PostRecv
	}
	each := s.head + s.Size
	_, err := post(verbs.RecvWR{ID: uint64(slot), SGL: []verbs.SGE{s.mr.SGE(slot*each, each)}})
	return err
}

// message returns the message in a slot, and where it is in the memory.
func (s *side) message(slot int) ([]byte, verbs.SGE) {
	at := slot*(s.head+s.Size) + s.head
	return s.mr.Bytes()[at : at+s.Size], s.mr.SGE(at, s.Size)
}

// exchange ends when this side has sent and received all its messages, over all QPs. The C
// programs end then too, so that neither side leaves while the other waits for it.
func (s *side) exchange(ctx context.Context) error {
	for _, l := range s.lanes {
		l.awaiting = true
		if s.client {
			if err := s.send(l); err != nil {
				return err
			}
		}
	}
	for s.sent < s.Iters || s.received < s.Iters {
		wc, err := s.completion(ctx)
		if err == nil {
			err = s.completed(&wc)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *side) completion(ctx context.Context) (verbs.WC, error) {
	if s.Events {
		return s.cq.Next(ctx)
	}
	var wc [1]verbs.WC
	for ctx.Err() == nil {
		if s.cq.Poll(wc[:]) > 0 {
			return wc[0], wc[0].Err()
		}
	}
	return wc[0], ctx.Err()
}

func (s *side) completed(wc *verbs.WC) error {
	l := s.lanes[slices.IndexFunc(s.lanes, func(l *lane) bool { return l.qp.Num() == wc.QPNum })]
	if wc.ID == sendID {
		l.sending = false
		s.sent++
	} else {
		if err := s.check(l, int(wc.ID), int(wc.ByteLen)); err != nil {
			return err
		}
		l.awaiting = false
		s.received++
		if err := s.postRecv(int(wc.ID)); err != nil {
			return err
		}
	}
	if l.sending || l.awaiting || s.sent >= s.Iters {
		return nil
	}
	l.awaiting = true
	return s.send(l)
}

func (s *side) send(l *lane) error {
	data, sge := s.message(s.slots)
	for i := range data {
		data[i] = s.pattern(l.sent, i)
	}
	wr := verbs.SendWR{ID: sendID, Opcode: verbs.OpSend, Flags: verbs.SendSignaled, To: l.to}
	if s.Size <= int(l.qp.Cap().MaxInline) {
		wr.Inline = data
	} else {
		wr.SGL = []verbs.SGE{sge}
	}
	_, err := l.qp.PostSend(wr)
	l.sending = true
	l.sent++
	return err
}

// check compares a message and overwrites it, so that it is not mistaken for a later one. The C
// programs send back what they received. As clients they begin with other data, which is not
// checked, and lag behind by one.
func (s *side) check(l *lane, slot, n int) error {
	if n -= s.head; n != s.Size {
		return fmt.Errorf("a message of %d bytes, not %d", n, s.Size)
	}
	at := l.received
	l.received++
	if !s.client {
		at--
	}
	if at < 0 {
		return nil
	}
	got, _ := s.message(slot)
	for i, b := range got {
		if want := s.pattern(at, i); b != want {
			return fmt.Errorf("message %d on QP %d: byte %d is %#02x, not %#02x", l.received, l.qp.Num(), i, b, want)
		}
		got[i] = 0xa5 // with which no message starts
	}
	return nil
}

// pattern returns byte i of the n-th message on a QP. The check of the C programs requires a zero
// at the start of each page. All other bytes depend on n, and on i so that shifts are found.
// ibv_srq_pingpong has one buffer for the messages of all QPs, so these are the same.
func (s *side) pattern(n, i int) byte {
	if s.srq != nil {
		n = 0
	}
	if i%4096 == 0 {
		return 0
	}
	return byte(31*n + i + i>>8 + i>>16)
}
