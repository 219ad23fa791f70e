//go:build linux

package uverbs_test

import (
	"encoding/json"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

// TestECE connects queue pairs by hand to peers whose offers they know in part, do not know, or get
// from another vendor's device: they use what both have, and it is never an error.
func TestECE(t *testing.T) {
	labtest.RequireBoth(t)
	labtest.Each(t, func(t *testing.T, device string) {
		ctx := labtest.OpenDevice(t, device)
		if ctx.Device().IWARP() {
			return
		}
		pd := labtest.Made(ctx.AllocPD())(t)
		qp := labtest.Made(pd.CreateQP(uverbs.QPOptions{}))(t)
		self := labtest.Must(qp.Addr(1))(t)
		offer := verbs.ECE{}
		if ctx.Driver() == "mlx5" {
			offer = verbs.ECE{VendorID: 0x15b3, Options: 0x10000005}
		}
		if self.ECE != offer {
			t.Errorf("the address offers %+v, not %+v", self.ECE, offer)
		}
		text := labtest.Must(json.Marshal(self))(t)
		var peer verbs.QPAddr
		labtest.Check(t, json.Unmarshal(text, &peer))
		if peer.ECE != offer {
			t.Errorf("%s has %+v", text, peer.ECE)
		}
		for _, c := range []struct{ peer, want verbs.ECE }{
			{peer.ECE, offer},
			{verbs.ECE{VendorID: 0x15b3, Options: 1<<28 | 1<<2 | 1<<20}, verbs.ECE{VendorID: offer.VendorID, Options: offer.Options & (1<<28 | 1<<2)}},
			{verbs.ECE{VendorID: 0x8086, Options: 5}, verbs.ECE{}},
			{verbs.ECE{}, verbs.ECE{}},
		} {
			peer.ECE = c.peer
			labtest.Check(t, qp.Connect(self, peer, uverbs.ConnectOptions{}))
			if got := qp.ECE(); got != c.want {
				t.Errorf("with a peer that offers %+v: %+v, not %+v", c.peer, got, c.want)
			}
			labtest.Check(t, qp.Modify(verbs.QPAttr{State: verbs.StateReset}, verbs.MaskState))
			if got := qp.ECE(); got != offer {
				t.Errorf("after a reset: %+v", got)
			}
		}
	})
}
