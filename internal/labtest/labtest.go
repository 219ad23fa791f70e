// Package labtest is what the real-kernel tests of all packages start from.
package labtest

import (
	"os"
	"testing"

	"github.com/goverbs/verbs/uverbs"
)

// Require skips a test outside the lab, where there is no kernel for it. In
// the lab nothing may be missing, so there it never skips.
func Require(t testing.TB) {
	t.Helper()
	if os.Getenv("VERBS_LAB") == "" {
		t.Skip("needs RDMA in the kernel: run by make test, or with go test -exec build/lab")
	}
}

// Addr is rxe0's address in the lab.
const Addr = "10.9.0.1"

// Open opens the lab's device.
func Open(t testing.TB) *uverbs.Context {
	t.Helper()
	Require(t)
	ctx, err := uverbs.Open("")
	if err != nil {
		t.Fatal(err)
	}
	Close(t, ctx)
	return ctx
}

// Close closes c when the test ends, and insists that it works.
func Close(t testing.TB, c interface{ Close() error }) {
	t.Helper()
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

// Must unwraps a value that cannot fail in a sound test.
func Must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// Side is one end of a connection.
type Side struct {
	PD     *uverbs.PD
	SendCQ *uverbs.CQ
	RecvCQ *uverbs.CQ
	QP     *uverbs.QP
	MR     *uverbs.MR
}

// PairOptions describe what NewPair makes. The zero value is usable.
type PairOptions struct {
	Cap    uverbs.QPCap
	Memory int // of each MR; 64 KiB if zero
	Events bool
	All    bool // SignalAll
	RC     uverbs.ConnectOptions
}

// NewPair makes two RC QPs on one device, connected to each other.
func NewPair(t testing.TB, opt PairOptions) (a, b *Side) {
	t.Helper()
	ctx := Open(t)
	if opt.Cap == (uverbs.QPCap{}) {
		opt.Cap = uverbs.QPCap{MaxSendWR: 64, MaxRecvWR: 64, MaxSendSGE: 4, MaxRecvSGE: 4, MaxInline: 64}
	}
	if opt.Memory == 0 {
		opt.Memory = 64 << 10
	}
	side := func() *Side {
		s := &Side{PD: Must(ctx.AllocPD())(t)}
		Close(t, s.PD)
		cqopt := uverbs.CQOptions{Depth: int(opt.Cap.MaxSendWR+opt.Cap.MaxRecvWR) + 1}
		if opt.Events {
			cqopt.Channel = Must(ctx.CreateCompChannel())(t)
			Close(t, cqopt.Channel)
		}
		s.SendCQ = Must(ctx.CreateCQ(cqopt))(t)
		Close(t, s.SendCQ)
		s.RecvCQ = Must(ctx.CreateCQ(cqopt))(t)
		Close(t, s.RecvCQ)
		s.MR = Must(s.PD.AllocMR(opt.Memory, uverbs.AccessAll, uverbs.MROptions{}))(t)
		Close(t, s.MR)
		s.QP = Must(s.PD.CreateQP(uverbs.QPOptions{SendCQ: s.SendCQ, RecvCQ: s.RecvCQ, Cap: opt.Cap, SignalAll: opt.All}))(t)
		Close(t, s.QP)
		return s
	}
	a, b = side(), side()
	ea := Must(a.QP.Endpoint(1, 0x123456))(t)
	eb := Must(b.QP.Endpoint(1, 0xfffff0))(t)
	if err := a.QP.Connect(ea, eb, opt.RC); err != nil {
		t.Fatal(err)
	}
	if err := b.QP.Connect(eb, ea, opt.RC); err != nil {
		t.Fatal(err)
	}
	return a, b
}
