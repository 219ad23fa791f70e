package lifetime

import (
	"context"
	"flag"
	"net/netip"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rconn"
	"github.com/goverbs/verbs/rmsg"
	"github.com/goverbs/verbs/rsock"
	"github.com/goverbs/verbs/uverbs"
)

var times = flag.Int("times", 1, "how often everything is done")

// waitTimeout is how long tests wait for what should happen immediately.
const waitTimeout = 60 * time.Second

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
	t.Cleanup(cancel)
	return ctx
}

// objectSet is a device with one object of each type of package uverbs.
type objectSet struct {
	ctx *uverbs.Context
	pd  *uverbs.PD
	ch  *uverbs.CompChannel
	cq  *uverbs.CQ
	mr  *uverbs.MR
	srq *uverbs.SRQ // nil if the device has none
	qp  *uverbs.QP
	mw  *uverbs.MW // on rxe only
	ah  *uverbs.AH // on rxe only
}

func newObjectSet(t testing.TB, device string) *objectSet {
	t.Helper()
	s := &objectSet{ctx: labtest.Must(uverbs.Open(device))(t)}
	s.pd = labtest.Must(s.ctx.AllocPD())(t)
	s.ch = labtest.Must(s.ctx.CreateCompChannel())(t)
	s.cq = labtest.Must(s.ctx.CreateCQ(uverbs.CQOptions{Depth: 64, Channel: s.ch}))(t)
	s.mr = labtest.Must(s.pd.AllocMR(4096, verbs.AccessLocalWrite|verbs.AccessRemoteWrite, uverbs.MROptions{}))(t)
	if labtest.Has(t, device, uverbs.FeatureSRQ) {
		s.srq = labtest.Must(s.pd.CreateSRQ(uverbs.SRQOptions{MaxWR: 8, MaxSGE: 1}))(t)
	}
	s.qp = labtest.Must(s.pd.CreateQP(uverbs.QPOptions{SendCQ: s.cq, RecvCQ: s.cq, Cap: verbs.QPCap{MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 1, MaxRecvSGE: 1}}))(t)
	if labtest.Has(t, device, uverbs.FeatureMWType2) && labtest.Has(t, device, uverbs.FeatureAH) {
		s.mw = labtest.Must(s.pd.AllocMW(verbs.MWType2))(t)
		gid := labtest.Must(s.ctx.FindGID(1, netip.MustParseAddr(labtest.AddrOf(device))))(t)
		s.ah = labtest.Must(s.pd.CreateAH(verbs.AddressVector{Global: true, DGID: gid.GID, SGIDIndex: uint8(gid.Index), HopLimit: 1, Port: 1}))(t)
	}
	return s
}

type closer interface{ Close() error }

// objects returns the objects of the set, children first.
func (s *objectSet) objects() []closer {
	all := []closer{s.qp, s.mr, s.cq, s.ch, s.pd, s.ctx}
	if s.srq != nil {
		all = append([]closer{s.srq}, all...)
	}
	if s.mw != nil {
		all = append([]closer{s.mw, s.ah}, all...)
	}
	return all
}

func (s *objectSet) close(t testing.TB) {
	t.Helper()
	for _, c := range s.objects() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

// endpoints connects two endpoints.
func endpoints(t testing.TB, device string, opt cm.Options) (a, b *cm.Endpoint) {
	t.Helper()
	return labtest.Connect(within(t), t, labtest.AddrOf(device)+":0", opt, opt)
}

// conns connects two Conns of package rconn.
func conns(t testing.TB, device string) (a, b *rconn.Conn) {
	t.Helper()
	ctx, opt := within(t), rconn.Options{Adverts: 2}
	l := labtest.Must(rconn.Listen(ctx, labtest.AddrOf(device)+":0"))(t)
	defer l.Close()
	return labtest.DialAccept(t, func() (*rconn.Conn, error) {
		return (&rconn.Dialer{Options: opt}).Dial(ctx, l.Addr().String())
	}, func() (*rconn.Conn, error) {
		r, err := l.Accept(ctx)
		if err != nil {
			return nil, err
		}
		return r.Accept(ctx, opt)
	})
}

// streams connects two Conns of package rsock.
func streams(t testing.TB, device string) (a, b *rsock.Conn) {
	t.Helper()
	opt := rsock.Options{ReadBuffer: 16 << 10, WriteBuffer: 16 << 10}
	l := labtest.Must((&rsock.ListenConfig{Options: opt}).Listen(t.Context(), "rdma", labtest.AddrOf(device)+":0"))(t)
	defer l.Close()
	d := rsock.Dialer{Options: opt, Timeout: waitTimeout}
	c := labtest.Must(d.Dial("rdma", l.Addr().String()))(t)
	s := labtest.Must(l.Accept())(t)
	return c.(*rsock.Conn), s.(*rsock.Conn)
}

// loop is a running rmsg.Loop.
type loop struct {
	*rmsg.Loop
	ran chan error
}

func newLoop(t testing.TB, opt rmsg.Options) *loop {
	t.Helper()
	l := &loop{labtest.Must(rmsg.NewLoop(opt))(t), make(chan error, 1)}
	go func() { l.ran <- l.Run(context.Background()) }()
	return l
}

// end closes the loop and waits until it has ended.
func (l *loop) end(t testing.TB) {
	t.Helper()
	l.Close()
	<-l.ran
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// sockets connects two sockets of a loop.
func sockets(t testing.TB, device string, l *loop) (a, b *rmsg.Conn, ln *rmsg.Listener) {
	t.Helper()
	ctx := within(t)
	ln = labtest.Must((&rmsg.ListenConfig{Loop: l.Loop}).Listen(ctx, labtest.AddrOf(device)+":0"))(t)
	a, b = labtest.DialAccept(t, func() (*rmsg.Conn, error) {
		return (&rmsg.Dialer{Loop: l.Loop}).Dial(ctx, ln.Addr().String())
	}, func() (*rmsg.Conn, error) { return ln.Accept(ctx) })
	return a, b, ln
}
