//go:build linux

package labtest

import (
	"cmp"
	"context"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/uverbs"
)

// Side is one end of a connection.
type Side struct {
	PD     *uverbs.PD
	SendCQ *uverbs.CQ
	RecvCQ *uverbs.CQ
	SRQ    *uverbs.SRQ // nil unless PairOptions.SRQ is set
	QP     *uverbs.QP
	MR     *uverbs.MR
	Peer   verbs.UDAddr // the other side, on UD
}

// PostRecv posts receives to the SRQ, if there is one, or else to the QP.
func (s *Side) PostRecv(wrs ...verbs.RecvWR) (int, error) {
	if s.SRQ != nil {
		return s.SRQ.PostRecv(wrs...)
	}
	return s.QP.PostRecv(wrs...)
}

// PairOptions describe what NewPair makes. The zero value is usable.
type PairOptions struct {
	Device string       // the first if empty
	Type   verbs.QPType // RC if zero
	Cap    verbs.QPCap
	Memory int          // of each MR; 64 KiB if zero
	Access verbs.Access // of each MR; AccessAll if zero
	Events bool
	All    bool // SignalAll
	SRQ    bool
	OneCQ  bool                  // for both queues of a side
	Depth  int                   // of each CQ; enough for all requests if zero
	RC     uverbs.ConnectOptions // Access is AccessAll if zero
}

// QKey is the Q_Key of UD pairs.
const QKey = 0x11111111

// NewPair makes two QPs on one device, connected to each other. On iWARP only
// the connection manager can do that, and only a sends first.
func NewPair(t testing.TB, opt PairOptions) (a, b *Side) {
	t.Helper()
	ctx := OpenDevice(t, opt.Device)
	opt.Type = cmp.Or(opt.Type, verbs.RC)
	if opt.Cap == (verbs.QPCap{}) {
		opt.Cap = verbs.QPCap{MaxSendWR: 64, MaxRecvWR: 64, MaxSendSGE: 4, MaxRecvSGE: 4, MaxInline: 64}
	}
	opt.RC.Access = cmp.Or(opt.RC.Access, verbs.AccessAll)
	opt.Memory = cmp.Or(opt.Memory, 64<<10)
	if opt.Access == 0 {
		opt.Access = verbs.AccessAll
		if ctx.Driver() == "siw" {
			opt.Access &^= verbs.AccessRemoteAtomic
		}
	}
	a, b = newSide(t, ctx, opt), newSide(t, ctx, opt)
	if ctx.Driver() == "siw" {
		connectByCM(t, a, b, opt)
		return a, b
	}
	for _, s := range []*Side{a, b} {
		s.QP = Made(s.PD.CreateQP(uverbs.QPOptions{
			Type: opt.Type, SendCQ: s.SendCQ, RecvCQ: s.RecvCQ, SRQ: s.SRQ, Cap: opt.Cap, SignalAll: opt.All,
		}))(t)
	}
	ea, eb := Must(a.QP.Addr(1))(t), Must(b.QP.Addr(1))(t)
	ea.PSN, eb.PSN = 0x123456, 0xfffff0
	if opt.Type == verbs.UD {
		startUD(t, a, ea, eb)
		startUD(t, b, eb, ea)
		return a, b
	}
	Check(t, a.QP.Connect(ea, eb, opt.RC))
	Check(t, b.QP.Connect(eb, ea, opt.RC))
	return a, b
}

func newSide(t testing.TB, ctx *uverbs.Context, opt PairOptions) *Side {
	t.Helper()
	s := &Side{PD: Made(ctx.AllocPD())(t)}
	cqopt := uverbs.CQOptions{Depth: cmp.Or(opt.Depth, opt.Cap.MaxSendWR+opt.Cap.MaxRecvWR+1)}
	if opt.Events {
		cqopt.Channel = Made(ctx.CreateCompChannel())(t)
	}
	s.SendCQ = Made(ctx.CreateCQ(cqopt))(t)
	if s.RecvCQ = s.SendCQ; !opt.OneCQ {
		s.RecvCQ = Made(ctx.CreateCQ(cqopt))(t)
	}
	s.MR = Made(s.PD.AllocMR(opt.Memory, opt.Access, uverbs.MROptions{}))(t)
	if opt.SRQ {
		s.SRQ = Made(s.PD.CreateSRQ(uverbs.SRQOptions{MaxWR: opt.Cap.MaxRecvWR, MaxSGE: opt.Cap.MaxRecvSGE}))(t)
	}
	return s
}

func startUD(t testing.TB, s *Side, local, peer verbs.QPAddr) {
	t.Helper()
	Check(t, s.QP.StartUD(1, QKey))
	ah := Made(s.PD.CreateAH(peer.PathFrom(local)))(t)
	s.Peer = ah.To(peer.QPNum, QKey)
}

func connectByCM(t testing.TB, a, b *Side, opt PairOptions) {
	t.Helper()
	options := func(s *Side) cm.Options {
		return cm.Options{PD: s.PD, Cap: opt.Cap, SendCQ: s.SendCQ, RecvCQ: s.RecvCQ, SRQ: s.SRQ, SignalAll: opt.All}
	}
	ea, eb := Connect(t.Context(), t, AddrOf(opt.Device)+":0", options(a), options(b))
	Close(t, ea)
	Close(t, eb)
	a.QP, b.QP = ea.QP, eb.QP
}

// Connect connects two endpoints through a new listener, and returns them. The
// caller must close them.
func Connect(ctx context.Context, t testing.TB, addr string, dial, accept cm.Options) (client, server *cm.Endpoint) {
	t.Helper()
	return ConnectIn(ctx, t, cm.PortSpaceTCP, addr, dial, accept)
}

// ConnectIn is like Connect, in any port space.
func ConnectIn(ctx context.Context, t testing.TB, space cm.PortSpace, addr string, dial, accept cm.Options) (client, server *cm.Endpoint) {
	t.Helper()
	l := Must((&cm.ListenConfig{PortSpace: space}).Listen(ctx, addr))(t)
	defer func() { Check(t, l.Close()) }()
	return DialAccept(t, func() (*cm.Endpoint, error) {
		return (&cm.Dialer{PortSpace: space, Options: dial}).Dial(ctx, l.Addr().String())
	}, func() (*cm.Endpoint, error) {
		r, err := l.Accept(ctx)
		if err != nil {
			return nil, err
		}
		return r.Accept(ctx, accept)
	})
}
