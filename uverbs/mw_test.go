//go:build linux

package uverbs_test

import (
	"errors"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rdmatest"
	"github.com/goverbs/verbs/uverbs"
)

// TestBindClosed binds windows of which one, or its region, is closed: BindMW refuses that, and the QP
// still works.
func TestBindClosed(t *testing.T) {
	labtest.Require(t)
	labtest.Needs(t, labtest.RXE, uverbs.FeatureMWType2)
	a, _ := labtest.NewPair(t, labtest.RXE, rdmatest.PairOptions{})
	const access = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessMWBind
	alloc := func() (*uverbs.MW, *uverbs.MR) {
		mr := labtest.Made(a.PD.AllocMR(4096, access, uverbs.MROptions{}))(t) // closed after its window
		return labtest.Made(a.PD.AllocMW(verbs.MWType2))(t), mr
	}
	window, region := alloc()
	closedWindow, closedRegion := alloc()
	labtest.Check(t, closedWindow.Close(), closedRegion.Close())
	bind := func(mw *uverbs.MW, mr *uverbs.MR) error {
		_, err := a.QP.BindMW(mw, uverbs.BindOptions{Flags: verbs.SendSignaled, MR: mr, Length: 64, Access: verbs.AccessRemoteWrite})
		return err
	}
	for what, err := range map[string]error{"window": bind(closedWindow, region), "region": bind(window, closedRegion)} {
		if !errors.Is(err, verbs.ErrClosed) {
			t.Errorf("closed %s: %v", what, err)
		}
	}
	labtest.Check(t, bind(window, region))
	next(t, a.SendCQ)
}
