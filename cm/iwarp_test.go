package cm_test

import (
	"testing"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

// TestInitOfIWARP asks the connection manager what a QP of iWARP needs to move to
// INIT, which endpoints take for granted.
func TestInitOfIWARP(t *testing.T) {
	labtest.Require(t)
	_, request := labtest.Request(t, "siw0", cm.ConnParam{})
	attr, mask, err := request.NewID.InitQPAttr(uverbs.StateInit)
	if err != nil {
		t.Fatal(err)
	}
	if want := uverbs.AccessRemoteWrite | uverbs.AccessRemoteRead; attr.Access != want {
		t.Errorf("access %v, not %v", attr.Access, want)
	}
	attr.State, attr.Access, attr.Port = 0, 0, 0 // a device of iWARP has one port
	if more := mask &^ (uverbs.MaskState | uverbs.MaskAccess | uverbs.MaskPort); more != 0 || attr != (uverbs.QPAttr{}) {
		t.Errorf("besides %#x: %+v", more, attr)
	}
}
