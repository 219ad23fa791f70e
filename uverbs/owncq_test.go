//go:build linux

package uverbs_test

import (
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

// TestQPMakesItsCQ makes QPs without CQs, uses the CQs that they have made, and closes them with the
// QPs alone.
func TestQPMakesItsCQ(t *testing.T) {
	labtest.EachClean(t, func(t *testing.T, device string) {
		labtest.Needs(t, device, uverbs.FeatureSRQ)
		ctx := labtest.OpenDevice(t, device)
		pd := labtest.Made(ctx.AllocPD())(t)
		srq := labtest.Made(pd.CreateSRQ(uverbs.SRQOptions{MaxWR: 8, MaxSGE: 1}))(t)
		for name, opt := range map[string]uverbs.QPOptions{
			"default": {},
			"small":   {Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}},
			"SRQ":     {SRQ: srq, Cap: verbs.QPCap{MaxSendWR: 1}},
			"no recv": {Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: -1}},
		} {
			qp := labtest.Must(pd.CreateQP(opt))(t)
			cq, want := qp.SendCQ(), opt.Cap.WithDefaults()
			if opt.SRQ != nil {
				want.MaxRecvWR = srq.Cap()
			}
			if cq == nil || qp.RecvCQ() != cq || cq.Cap() < want.MaxSendWR+want.MaxRecvWR {
				t.Errorf("%s: send CQ %p, receive CQ %p of %d, want one of %+v", name, cq, qp.RecvCQ(), cq.Cap(), want)
			}
			if err := cq.Close(); !errors.Is(err, verbs.ErrInUse) {
				t.Errorf("%s: Close of the CQ: %v", name, err)
			}
			waiting := make(chan error)
			go func() {
				_, err := cq.Next(labtest.Within(t, 20*time.Second))
				waiting <- err
			}()
			labtest.Check(t, qp.Close())
			if err := <-waiting; !errors.Is(err, verbs.ErrClosed) {
				t.Errorf("%s: a wait during Close: %v", name, err)
			}
			labtest.Check(t, qp.Close())
			if err := cq.Arm(false); !errors.Is(err, verbs.ErrClosed) {
				t.Errorf("%s: the CQ after Close of the QP: %v", name, err)
			}
		}
	})
}

// TestCQOfAClosedQP lends the CQ of a QP to another one: Close destroys the QP, and the CQ when it can.
func TestCQOfAClosedQP(t *testing.T) {
	labtest.EachClean(t, func(t *testing.T, device string) {
		ctx := labtest.OpenDevice(t, device)
		pd := labtest.Made(ctx.AllocPD())(t)
		qp := labtest.Must(pd.CreateQP(uverbs.QPOptions{}))(t)
		other := labtest.Must(pd.CreateQP(uverbs.QPOptions{SendCQ: qp.SendCQ(), RecvCQ: qp.SendCQ()}))(t)
		if err := qp.Close(); !errors.Is(err, verbs.ErrInUse) {
			t.Errorf("Close while another QP uses the CQ: %v", err)
		}
		if _, err := qp.Query(); !errors.Is(err, verbs.ErrClosed) {
			t.Errorf("the QP is not closed: %v", err)
		}
		labtest.Check(t, other.Close())
		labtest.Check(t, qp.Close())
	})
}

// TestQPWithoutCQsFails makes QPs that cannot be: nothing is left of their CQs.
func TestQPWithoutCQsFails(t *testing.T) {
	labtest.EachClean(t, func(t *testing.T, device string) {
		ctx := labtest.OpenDevice(t, device)
		pd, cq := labtest.Must(ctx.AllocPD())(t), labtest.Made(ctx.CreateCQ(uverbs.CQOptions{Depth: 8}))(t)
		for text, opt := range map[string]uverbs.QPOptions{
			"or neither":  {SendCQ: cq},
			"MaxSendSGE":  {Cap: verbs.QPCap{MaxSendSGE: 1000}},
			"Depth":       {Cap: verbs.QPCap{MaxSendWR: 1 << 30}},
			"a DCT recei": {Type: verbs.DCT},
		} {
			if _, err := pd.CreateQP(opt); err == nil || !strings.Contains(err.Error(), text) {
				t.Errorf("%+v: %v, want %q", opt, err, text)
			}
		}
		if _, err := pd.CreateQP(uverbs.QPOptions{RecvCQ: cq}); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("no send CQ: %v", err)
		}
		labtest.Check(t, pd.Close())
		if _, err := pd.CreateQP(uverbs.QPOptions{}); !errors.Is(err, verbs.ErrClosed) {
			t.Errorf("in a closed PD: %v", err)
		}
	})
}
