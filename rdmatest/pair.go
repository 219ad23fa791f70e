package rdmatest

import (
	"cmp"
	"errors"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/uverbs"
)

// Side is one end of a [NewPair].
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

// NewPair makes two QPs, of one device or of two, connected to each other, which are closed when
// the test ends. On iWARP only the connection manager can do that, and only a sends first.
func NewPair(t testing.TB, ctxA, ctxB *uverbs.Context, opt PairOptions) (a, b *Side) {
	t.Helper()
	iwarp := ctxA.Device().IWARP()
	opt.Type = cmp.Or(opt.Type, verbs.RC)
	if opt.Cap == (verbs.QPCap{}) {
		opt.Cap = verbs.QPCap{MaxSendWR: 64, MaxRecvWR: 64, MaxSendSGE: 4, MaxRecvSGE: 4, MaxInline: 64}
	}
	opt.RC.Access = cmp.Or(opt.RC.Access, verbs.AccessAll)
	opt.Memory = cmp.Or(opt.Memory, 64<<10)
	if opt.Access == 0 {
		opt.Access = verbs.AccessAll
		if iwarp {
			opt.Access &^= verbs.AccessRemoteAtomic
		}
	}
	a, b = newSide(t, ctxA, opt), newSide(t, ctxB, opt)
	if iwarp {
		connectByCM(t, ctxA, a, b, opt)
		return a, b
	}
	for _, s := range []*Side{a, b} {
		s.QP = made(s.PD.CreateQP(uverbs.QPOptions{
			Type: opt.Type, SendCQ: s.SendCQ, RecvCQ: s.RecvCQ, SRQ: s.SRQ, Cap: opt.Cap, SignalAll: opt.All,
		}))(t)
	}
	ea, err := a.QP.Addr(1)
	check(t, err)
	eb, err := b.QP.Addr(1)
	check(t, err)
	ea.PSN, eb.PSN = 0x123456, 0xfffff0
	if opt.Type == verbs.UD {
		startUD(t, a, ea, eb)
		startUD(t, b, eb, ea)
		return a, b
	}
	check(t, a.QP.Connect(ea, eb, opt.RC), b.QP.Connect(eb, ea, opt.RC))
	return a, b
}

func newSide(t testing.TB, ctx *uverbs.Context, opt PairOptions) *Side {
	t.Helper()
	s := &Side{PD: made(ctx.AllocPD())(t)}
	cqopt := uverbs.CQOptions{Depth: cmp.Or(opt.Depth, 2*(opt.Cap.MaxSendWR+opt.Cap.MaxRecvWR)+1)} // drivers round queues up, at most to twice the size
	if opt.Events {
		cqopt.Channel = made(ctx.CreateCompChannel())(t)
	}
	s.SendCQ = made(ctx.CreateCQ(cqopt))(t)
	if s.RecvCQ = s.SendCQ; !opt.OneCQ {
		s.RecvCQ = made(ctx.CreateCQ(cqopt))(t)
	}
	s.MR = made(s.PD.AllocMR(opt.Memory, opt.Access, uverbs.MROptions{}))(t)
	if opt.SRQ {
		s.SRQ = made(s.PD.CreateSRQ(uverbs.SRQOptions{MaxWR: opt.Cap.MaxRecvWR, MaxSGE: opt.Cap.MaxRecvSGE}))(t)
	}
	return s
}

func startUD(t testing.TB, s *Side, local, peer verbs.QPAddr) {
	t.Helper()
	check(t, s.QP.StartUD(1, QKey))
	ah := made(s.PD.CreateAH(peer.PathFrom(local)))(t)
	s.Peer = ah.To(peer.QPNum, QKey)
}

func connectByCM(t testing.TB, ctx *uverbs.Context, a, b *Side, opt PairOptions) {
	t.Helper()
	addrs, err := cm.DeviceAddrs(ctx.Device())
	check(t, err)
	options := func(s *Side) cm.Options {
		return cm.Options{PD: s.PD, Cap: opt.Cap, SendCQ: s.SendCQ, RecvCQ: s.RecvCQ, SRQ: s.SRQ, SignalAll: opt.All}
	}
	ea, eb := Connect(t, Device{Addr: best(addrs)}, options(a), options(b))
	a.QP, b.QP = ea.QP, eb.QP
}

// check ends the test if one of the errors is not nil.
func check(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// made returns a function that closes v when the test ends, or ends the test now if err is not nil.
func made[T interface{ Close() error }](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		check(t, err)
		closeLater(t, v)
		return v
	}
}
