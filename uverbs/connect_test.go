//go:build linux

package uverbs_test

import (
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rdmatest"
	"github.com/goverbs/verbs/uverbs"
)

// TestConnectNegative connects with negative options, which mean 0.
func TestConnectNegative(t *testing.T) {
	labtest.Require(t)
	ctx := labtest.OpenDevice(t, labtest.RXE)
	pd := labtest.Made(ctx.AllocPD())(t)
	qp := labtest.Made(pd.CreateQP(uverbs.QPOptions{}))(t)
	self := labtest.Must(qp.Addr(1))(t)
	opt := uverbs.ConnectOptions{MaxRDAtomic: -1, MaxDestRDAtomic: -1, RetryCount: -1, RNRRetry: -1, PKeyIndex: -1}
	labtest.Check(t, qp.Connect(self, self, opt))
	if got, err := qp.Query(); err != nil || got.MaxRDAtomic != 0 || got.RetryCount != 0 || got.RNRRetry != 0 || got.PKeyIndex != 0 {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestConnectGrantsNothing connects with zero options, and checks that the peer may
// send, and not write even where the memory allows it.
func TestConnectGrantsNothing(t *testing.T) {
	labtest.RequireBoth(t)
	a, b := labtest.NewPair(t, labtest.RoCE, rdmatest.PairOptions{})
	ends := [2]verbs.QPAddr{}
	for i, s := range []*rdmatest.Endpoint{a, b} {
		ends[i] = labtest.Must(s.QP.Addr(1))(t)
		if err := s.QP.Modify(verbs.QPAttr{State: verbs.StateReset}, verbs.MaskState); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(a.QP.Connect(ends[0], ends[1], uverbs.ConnectOptions{}), b.QP.Connect(ends[1], ends[0], uverbs.ConnectOptions{})); err != nil {
		t.Fatal(err)
	}
	recv(t, b.QP, verbs.RecvWR{SGL: []verbs.SGE{b.MR.SGE(0, 8)}})
	send(t, a.QP, verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled, SGL: []verbs.SGE{a.MR.SGE(0, 8)}})
	next(t, a.SendCQ)
	next(t, b.RecvCQ)
	send(t, a.QP, verbs.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGL: []verbs.SGE{a.MR.SGE(0, 8)}, RemoteAddr: b.MR.Addr(), RKey: b.MR.RKey()})
	if wc := nextAny(t, a.SendCQ); wc.Status != verbs.WCRemInvReqErr {
		t.Errorf("a write that was not granted completes with %v", wc.Err())
	}
}

// TestResetAfterFailure moves QPs to RESET as soon as a request has failed: they are in RESET then. rxe reports
// the failure before it moves them to ERR.
func TestResetAfterFailure(t *testing.T) {
	labtest.RequireBoth(t)
	a, b := labtest.NewPair(t, labtest.RoCE, rdmatest.PairOptions{})
	ends := [2]verbs.QPAddr{labtest.Must(a.QP.Addr(1))(t), labtest.Must(b.QP.Addr(1))(t)}
	ctx := labtest.Within(t, time.Minute)
	for i := range 300 {
		for _, s := range []*rdmatest.Endpoint{a, b} {
			labtest.Check(t, s.QP.Modify(verbs.QPAttr{State: verbs.StateReset}, verbs.MaskState))
			if got, err := s.QP.Query(); err != nil || got.State != verbs.StateReset {
				t.Fatalf("round %d: %v, %v", i, got.State, err)
			}
		}
		labtest.Check(t, a.QP.Connect(ends[0], ends[1], uverbs.ConnectOptions{}), b.QP.Connect(ends[1], ends[0], uverbs.ConnectOptions{}))
		send(t, a.QP, verbs.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGL: []verbs.SGE{a.MR.SGE(0, 8)}, RemoteAddr: b.MR.Addr(), RKey: b.MR.RKey()})
		for wcs := make([]verbs.WC, 1); a.SendCQ.Poll(wcs) == 0; runtime.Gosched() { // a sleep would be too long
			labtest.Check(t, ctx.Err())
		}
	}
}

// TestConnectForMoreReads connects a QP again, for more READs than before, which older versions of rxe answer by
// writing to memory of others: they are not asked.
func TestConnectForMoreReads(t *testing.T) {
	labtest.RequireBoth(t)
	ctx := labtest.OpenDevice(t, labtest.RoCE)
	qp := labtest.Made(labtest.Made(ctx.AllocPD())(t).CreateQP(uverbs.QPOptions{}))(t)
	self := labtest.Must(qp.Addr(1))(t)
	for _, reads := range []int{1, 8} {
		labtest.Check(t, qp.Modify(verbs.QPAttr{State: verbs.StateReset}, verbs.MaskState))
		err := qp.Connect(self, self, uverbs.ConnectOptions{MaxDestRDAtomic: reads})
		if reads > 1 && ctx.Driver() == "rxe" && labtest.Lab && labtest.Older(7, 3) {
			if !errors.Is(err, errors.ErrUnsupported) {
				t.Errorf("for %d: %v", reads, err)
			}
			return
		}
		labtest.Check(t, err)
		if got := labtest.Must(qp.Query())(t); int(got.MaxDestRDAtomic) < reads {
			t.Errorf("for %d: %d", reads, got.MaxDestRDAtomic)
		}
	}
}
