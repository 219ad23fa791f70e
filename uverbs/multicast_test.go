//go:build linux

package uverbs_test

import (
	"net/netip"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rdmatest"
	"github.com/goverbs/verbs/uverbs"
)

// TestCloseAttached closes QPs that are attached to multicast groups, which the
// kernel refuses to destroy.
func TestCloseAttached(t *testing.T) {
	labtest.RequireBoth(t)
	ctx := labtest.OpenDevice(t, labtest.RoCE)
	pd := labtest.Made(ctx.AllocPD())(t)
	cq := labtest.Made(ctx.CreateCQ(uverbs.CQOptions{Depth: 4}))(t)
	const mlid = 0xc001 // on InfiniBand, of which it is the second; RoCE has none
	groups := []verbs.GID{
		netip.MustParseAddr("::ffff:239.1.2.3").As16(), netip.MustParseAddr("::ffff:239.1.2.4").As16(),
	}
	for _, attached := range []int{0, 1, 2} {
		qp := labtest.Must(pd.CreateQP(uverbs.QPOptions{Type: verbs.UD, SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}}))(t)
		if err := qp.StartUD(1, rdmatest.QKey); err != nil {
			t.Fatal(err)
		}
		for _, g := range groups {
			for range 2 { // the kernel counts a group once
				if err := qp.AttachMulticast(g, mlid); err != nil {
					t.Fatal(err)
				}
			}
		}
		for _, g := range groups[attached:] {
			if err := qp.DetachMulticast(g, mlid); err != nil {
				t.Fatal(err)
			}
		}
		if err := qp.Close(); err != nil {
			t.Errorf("in %d groups: %v", attached, err)
		}
	}
}
