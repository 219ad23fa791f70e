//go:build linux

package uverbs_test

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

// TestModifyRefused moves QPs from state to state with one attribute too few and with one
// too many: the errors explain why the kernel refuses.
func TestModifyRefused(t *testing.T) {
	labtest.RequireBoth(t)
	ctx := labtest.OpenDevice(t, labtest.RoCE)
	pd := labtest.Made(ctx.AllocPD())(t)
	cq := labtest.Made(ctx.CreateCQ(uverbs.CQOptions{Depth: 200}))(t)
	for typ, needs := range map[verbs.QPType][]verbs.QPAttrMask{
		verbs.RC: {
			verbs.MaskPKeyIndex | verbs.MaskPort | verbs.MaskAccess,
			verbs.MaskAV | verbs.MaskPathMTU | verbs.MaskDestQPNum | verbs.MaskRQPSN | verbs.MaskMaxDestRDAtomic | verbs.MaskMinRNRTimer,
			verbs.MaskSQPSN | verbs.MaskTimeout | verbs.MaskRetryCount | verbs.MaskRNRRetry | verbs.MaskMaxRDAtomic,
		},
		verbs.UC: {
			verbs.MaskPKeyIndex | verbs.MaskPort | verbs.MaskAccess,
			verbs.MaskAV | verbs.MaskPathMTU | verbs.MaskDestQPNum | verbs.MaskRQPSN,
			verbs.MaskSQPSN,
		},
		verbs.UD: {verbs.MaskPKeyIndex | verbs.MaskPort | verbs.MaskQKey, 0, verbs.MaskSQPSN},
	} {
		if testing.Short() && typ != verbs.RC {
			continue
		}
		// make returns a QP in the state before a step.
		make := func(step int) (*uverbs.QP, verbs.QPAttr) {
			qp := labtest.Must(pd.CreateQP(uverbs.QPOptions{Type: typ, SendCQ: cq, RecvCQ: cq}))(t)
			self := labtest.Must(qp.Addr(1))(t)
			a := verbs.QPAttr{Port: 1, PathMTU: verbs.MTU1024, DestQPNum: qp.Num(), MaxRDAtomic: 1, MaxDestRDAtomic: 1, AV: self.PathFrom(self)}
			for i, mask := range needs[:step] {
				a.State = verbs.StateInit + verbs.QPState(i)
				if err := qp.Modify(a, mask|verbs.MaskState); err != nil {
					t.Fatalf("%v: %v", typ, err)
				}
			}
			a.State = verbs.StateInit + verbs.QPState(step)
			return qp, a
		}
		for step, mask := range needs {
			for bit := verbs.MaskCurState; bit <= verbs.MaskDestQPNum; bit <<= 1 {
				if bit == verbs.MaskCap {
					continue // for drivers that change the size of a QP
				}
				qp, a := make(step)
				err := qp.Modify(a, mask^bit|verbs.MaskState)
				explained := err != nil && (strings.Contains(err.Error(), "QPs need "+bit.String()) || strings.Contains(err.Error(), "do not take "+bit.String()))
				switch {
				case mask&bit != 0 && !(errors.Is(err, unix.EINVAL) && explained):
					t.Errorf("%v to %v without %v: %v", typ, a.State, bit, err)
				case mask&bit == 0 && errors.Is(err, unix.EINVAL) && !explained && bit&(verbs.MaskAltPath|verbs.MaskPathMigState|verbs.MaskCurState) == 0:
					t.Errorf("%v to %v with %v: %v", typ, a.State, bit, err)
				case err == nil && explained:
					t.Errorf("%v to %v with %v: taken", typ, a.State, bit)
				}
				if err := qp.Close(); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}
