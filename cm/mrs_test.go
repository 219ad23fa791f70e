package cm

import (
	"os"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/uverbs"
)

// TestManyMRs makes and closes regions: an endpoint forgets regions that are
// closed.
func TestManyMRs(t *testing.T) {
	if os.Getenv("VERBS_LAB") == "" { // labtest imports this package
		t.Skip("needs RDMA in the kernel")
	}
	ctx, err := uverbs.Open("")
	if err != nil {
		t.Fatal(err)
	}
	defer ctx.Close()
	pd, err := ctx.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	defer pd.Close()
	e := &Endpoint{PD: pd}
	open, err := e.AllocMR(1, verbs.AccessLocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	for range 1000 {
		mr, err := e.RegisterMR(make([]byte, 1), verbs.AccessLocalWrite)
		if err != nil {
			t.Fatal(err)
		}
		if err := mr.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if len(e.mrs) > 16 || e.mrs[0] != open {
		t.Errorf("%d regions are remembered", len(e.mrs))
	}
}
