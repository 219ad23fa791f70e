//go:build linux

package cm

import (
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/uverbs"
)

// TestManyMRs makes and closes regions: an endpoint forgets regions that are
// closed. Outside of the lab the device is that of labtest, which other tests here import.
func TestManyMRs(t *testing.T) {
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
	if len(e.own.mrs) > 16 || e.own.mrs[0] != open {
		t.Errorf("%d regions are remembered", len(e.own.mrs))
	}
}
