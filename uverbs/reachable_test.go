//go:build linux

package uverbs_test

import (
	"net/netip"
	"runtime"
	"testing"
	"weak"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/soft"
	"github.com/goverbs/verbs/uverbs"
	"github.com/goverbs/verbs/verbstest"
)

// forgotten is a QP to which the program has no pointer, and what its peer knows of it.
type forgotten struct {
	qp   weak.Pointer[uverbs.QP]
	addr verbs.QPAddr
	mem  uint64
	rkey uint32
}

// forget makes a device's QP in RESET, calls start with it, and drops it with all that it was made
// from.
func forget(t *testing.T, device string, opt uverbs.QPOptions, start func(*uverbs.QP, verbs.QPAddr) error) forgotten {
	t.Helper()
	ctx := labtest.Must(uverbs.Open(device))(t)
	pd := labtest.Must(ctx.AllocPD())(t)
	opt.SendCQ = labtest.Must(ctx.CreateCQ(uverbs.CQOptions{Depth: 4}))(t)
	opt.RecvCQ = labtest.Must(ctx.CreateCQ(uverbs.CQOptions{Depth: 4, Channel: labtest.Must(ctx.CreateCompChannel())(t)}))(t)
	if opt.Type != verbs.UD {
		opt.SRQ = labtest.Must(pd.CreateSRQ(uverbs.SRQOptions{MaxWR: 4}))(t)
	}
	mr := labtest.Must(pd.AllocMR(4096, verbs.AccessLocalWrite|verbs.AccessRemoteWrite, uverbs.MROptions{}))(t)
	qp := labtest.Must(pd.CreateQP(opt))(t)
	addr := labtest.Must(qp.Addr(1))(t)
	labtest.Check(t, start(qp, addr))
	return forgotten{weak.Make(qp), addr, mr.Addr(), mr.RKey()}
}

// collect runs collections until a QP that no peer can reach, and what it was made from, is gone.
func collect(t *testing.T, device string) {
	t.Helper()
	before := kernelObjects(t)
	forget(t, device, uverbs.QPOptions{}, func(*uverbs.QP, verbs.QPAddr) error { return nil })
	labtest.Until(t, "the release of a QP in RESET", func() bool { runtime.GC(); return kernelObjects(t) <= before })
}

// TestReachableByPeer drops QPs that peers use: they stay, with all they need, until they leave the
// states in which a peer can use them.
func TestReachableByPeer(t *testing.T) {
	labtest.RequireBoth(t)
	before := kernelObjects(t)
	t.Run("RC", func(t *testing.T) {
		ctx := labtest.Open(t)
		pd := labtest.Made(ctx.AllocPD())(t)
		cq := labtest.Made(ctx.CreateCQ(uverbs.CQOptions{Depth: 4}))(t)
		qp := labtest.Made(pd.CreateQP(uverbs.QPOptions{SendCQ: cq, RecvCQ: cq}))(t)
		self := labtest.Must(qp.Addr(1))(t)
		server := forget(t, ctx.Device().Name, uverbs.QPOptions{}, func(q *uverbs.QP, addr verbs.QPAddr) error {
			return q.Connect(addr, self, uverbs.ConnectOptions{Access: verbs.AccessRemoteWrite})
		})
		labtest.Check(t, qp.Connect(self, server.addr, uverbs.ConnectOptions{}))
		collect(t, ctx.Device().Name)
		send(t, qp, verbs.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, RemoteAddr: server.mem, RKey: server.rkey, Inline: []byte("x")})
		next(t, cq)
		leave(t, server, verbs.StateErr)
	})
	t.Run("UD", func(t *testing.T) {
		q := forget(t, labtest.Open(t).Device().Name, uverbs.QPOptions{Type: verbs.UD}, func(q *uverbs.QP, _ verbs.QPAddr) error { return q.StartUD(1, 1) })
		collect(t, labtest.Open(t).Device().Name)
		leave(t, q, verbs.StateReset)
	})
	labtest.Until(t, "the release of the QPs", func() bool { runtime.GC(); return kernelObjects(t) == before })
}

// TestReachableOnLostDevice drops a QP whose device is removed: no peer can reach it any more.
func TestReachableOnLostDevice(t *testing.T) {
	d := labtest.Must(soft.New(soft.Options{
		Name: "lost0", Addrs: []netip.Addr{netip.MustParseAddr("10.9.1.1")}, Network: verbstest.NewNetwork(verbstest.Options{}),
	}))(t)
	q := forget(t, "lost0", uverbs.QPOptions{Type: verbs.UD}, func(q *uverbs.QP, _ verbs.QPAddr) error { return q.StartUD(1, 1) })
	labtest.Collect()
	if q.qp.Value() == nil {
		t.Error("a QP that its peer can use was collected")
	}
	labtest.Check(t, d.Close())
	labtest.Until(t, "the release of the QP", func() bool { runtime.GC(); return q.qp.Value() == nil })
}

// leave moves a QP that is still there to a state in which no peer can use it.
func leave(t *testing.T, f forgotten, to verbs.QPState) {
	t.Helper()
	qp := f.qp.Value()
	if qp == nil {
		t.Fatal("a QP that its peer can use was collected")
	}
	if now := labtest.Must(qp.Query())(t); now.State != verbs.StateRTS {
		t.Errorf("the QP is in %v", now.State)
	}
	labtest.Check(t, qp.Modify(verbs.QPAttr{State: to}, verbs.MaskState))
}

// TestReachableIWARP drops a QP that the connection manager connects by its number.
func TestReachableIWARP(t *testing.T) {
	labtest.RequireKernel(t)
	before := kernelObjects(t)
	q := forget(t, labtest.SIW, uverbs.QPOptions{}, func(q *uverbs.QP, _ verbs.QPAddr) error {
		return q.Modify(verbs.QPAttr{State: verbs.StateInit, Port: 1}, verbs.MaskState|verbs.MaskPort|verbs.MaskPKeyIndex|verbs.MaskAccess)
	})
	collect(t, labtest.SIW)
	qp := q.qp.Value()
	if qp == nil {
		t.Fatal("a QP in INIT was collected")
	}
	labtest.Check(t, qp.Close())
	qp = nil
	labtest.Until(t, "the release of what it was made from", func() bool { runtime.GC(); return kernelObjects(t) == before })
}

// TestForgottenHandle drops a peer's address handle, which a [verbs.UDAddr] names by its number.
func TestForgottenHandle(t *testing.T) {
	labtest.RequireBoth(t)
	before := kernelObjects(t)
	func() {
		ctx := labtest.Must(uverbs.Open(""))(t)
		pd := labtest.Must(ctx.AllocPD())(t)
		cq := labtest.Must(ctx.CreateCQ(uverbs.CQOptions{Depth: 8}))(t)
		qp := labtest.Must(pd.CreateQP(uverbs.QPOptions{Type: verbs.UD, SendCQ: cq, RecvCQ: cq}))(t)
		labtest.Check(t, qp.StartUD(1, 1))
		self := labtest.Must(qp.Addr(1))(t)
		to := func() verbs.UDAddr { return labtest.Must(pd.CreateAH(self.PathFrom(self)))(t).To(qp.Num(), 1) }()
		collect(t, ctx.Device().Name)
		mr := labtest.Must(pd.AllocMR(4096, verbs.AccessLocalWrite, uverbs.MROptions{}))(t)
		recv(t, qp, verbs.RecvWR{SGL: []verbs.SGE{mr.SGE(0, 4096)}})
		send(t, qp, verbs.SendWR{Opcode: verbs.OpSend, To: to, Inline: []byte("x")})
		next(t, cq)
		labtest.Check(t, qp.Close())
	}()
	labtest.Until(t, "the release of the handle with its PD", func() bool { runtime.GC(); return kernelObjects(t) == before })
}
