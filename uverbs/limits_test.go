//go:build linux

package uverbs_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

// TestLimitsAreNamed makes objects larger than a device can: each error names the size that is
// too large, and the device's limit.
func TestLimitsAreNamed(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		labtest.Needs(t, device, uverbs.FeatureSRQ)
		ctx := labtest.OpenDevice(t, device)
		attr := labtest.Must(ctx.QueryDevice())(t)
		pd := labtest.Must(ctx.AllocPD())(t)
		labtest.Close(t, pd)
		cq := labtest.Made(ctx.CreateCQ(uverbs.CQOptions{Depth: 8}))(t)
		srq := labtest.Made(pd.CreateSRQ(uverbs.SRQOptions{MaxWR: 8}))(t)
		small := labtest.Made(pd.CreateQP(uverbs.QPOptions{SendCQ: cq, RecvCQ: cq}))(t)
		inline := labtest.MaxInline(t, device)
		over := func(most int) int {
			if device == labtest.MLX5 { // which says less of a queue than it can, as requests differ in size
				return 64 * most
			}
			return most + 1
		}
		qp := func(c verbs.QPCap) error {
			_, err := pd.CreateQP(uverbs.QPOptions{SendCQ: cq, RecvCQ: cq, Cap: c})
			return err
		}
		newCQ := func(opt uverbs.CQOptions) error { _, err := ctx.CreateCQ(opt); return err }
		newSRQ := func(opt uverbs.SRQOptions) error { _, err := pd.CreateSRQ(opt); return err }
		for _, test := range []struct {
			name  string
			most  int
			value int
			do    func(value int) error
		}{
			{"MaxSendWR", attr.MaxQPWR, over(attr.MaxQPWR), func(n int) error { return qp(verbs.QPCap{MaxSendWR: n}) }},
			{"MaxRecvWR", attr.MaxQPWR, over(attr.MaxQPWR), func(n int) error { return qp(verbs.QPCap{MaxRecvWR: n}) }},
			{"MaxSendSGE", attr.MaxSGE, over(attr.MaxSGE), func(n int) error { return qp(verbs.QPCap{MaxSendSGE: n}) }},
			{"MaxRecvSGE", attr.MaxSGE, over(attr.MaxSGE), func(n int) error { return qp(verbs.QPCap{MaxRecvSGE: n}) }},
			{"MaxInline", inline, over(inline), func(n int) error { return qp(verbs.QPCap{MaxInline: n}) }},
			{"Depth", attr.MaxCQE, attr.MaxCQE + 1, func(n int) error { return newCQ(uverbs.CQOptions{Depth: n}) }},
			{"Vector", ctx.CompVectors() - 1, ctx.CompVectors(), func(n int) error { return newCQ(uverbs.CQOptions{Depth: 8, Vector: n}) }},
			{"MaxWR", attr.MaxSRQWR, attr.MaxSRQWR + 1, func(n int) error { return newSRQ(uverbs.SRQOptions{MaxWR: n}) }},
			{"MaxSGE", attr.MaxSRQSGE, attr.MaxSRQSGE + 1, func(n int) error { return newSRQ(uverbs.SRQOptions{MaxSGE: n}) }},
			{"depth", attr.MaxCQE, attr.MaxCQE + 1, cq.Resize},
			{"MaxWR", attr.MaxSRQWR, attr.MaxSRQWR + 1, srq.Resize},
			{"limit", 9999, 10_000, srq.SetLimit},
			{"MaxRDAtomic", attr.MaxQPInitRDAtomic, attr.MaxQPInitRDAtomic + 1, func(n int) error {
				if labtest.IWARP(t, device) { // which ignores it
					return errors.ErrUnsupported
				}
				return small.Modify(verbs.QPAttr{MaxRDAtomic: uint8(n)}, verbs.MaskMaxRDAtomic)
			}},
		} {
			err := test.do(test.value)
			if errors.Is(err, errors.ErrUnsupported) || errors.Is(err, unix.EOPNOTSUPP) {
				continue
			}
			want := fmt.Sprintf("%s %d of at most %d", test.name, test.value, test.most)
			if device == labtest.MLX5 && strings.HasPrefix(test.name, "MaxSend") || test.name == "MaxInline" || device == labtest.MLX5 && strings.HasPrefix(test.name, "MaxRecv") {
				want = fmt.Sprintf("%s %d", test.name, test.value) // the driver's limit is exact
			}
			if test.name == "limit" { // the kernel may have made it larger than asked
				want = "limit 10000 of at most "
			}
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v; want it to contain %q", err, want)
			}
		}
	})
}

// TestQueryCap queries QPs of several sizes for what they were created with.
func TestQueryCap(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		ctx := labtest.OpenDevice(t, device)
		pd := labtest.Made(ctx.AllocPD())(t)
		cq := labtest.Made(ctx.CreateCQ(uverbs.CQOptions{Depth: 8}))(t)
		most := labtest.Must(ctx.QueryDevice())(t).MaxSGE
		for _, want := range []verbs.QPCap{{}, {MaxSendWR: 5, MaxRecvWR: 3, MaxSendSGE: min(2, most), MaxRecvSGE: min(3, most), MaxInline: 40}} {
			qp := labtest.Made(pd.CreateQP(uverbs.QPOptions{SendCQ: cq, RecvCQ: cq, Cap: want}))(t)
			if got := labtest.Must(qp.Query())(t).Cap; got != qp.Cap() || got.MaxSendWR < want.MaxSendWR || got.MaxRecvSGE < want.MaxRecvSGE {
				t.Errorf("%+v was queried, the QP has %+v, asked for were %+v", got, qp.Cap(), want)
			}
		}
	})
}

// TestSRQLimit makes SRQs with a limit, which not all drivers look at when they make one.
func TestSRQLimit(t *testing.T) {
	labtest.RequireBoth(t)
	labtest.Each(t, func(t *testing.T, device string) {
		labtest.Needs(t, device, uverbs.FeatureSRQ)
		ctx := labtest.OpenDevice(t, device)
		pd := labtest.Made(ctx.AllocPD())(t)
		srq := labtest.Made(pd.CreateSRQ(uverbs.SRQOptions{MaxWR: 8, Limit: 3}))(t)
		if got := labtest.Must(srq.Query())(t); got.Limit != 3 {
			t.Errorf("%+v", got)
		}
	})
}
