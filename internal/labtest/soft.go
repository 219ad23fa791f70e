//go:build linux

package labtest

import (
	"net/netip"
	"os"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/soft"
	"github.com/goverbs/verbs/verbstest"
)

// Soft reports whether tests run on a device in user space instead of the lab's, for which
// VERBS_TEST_SOFT=1 asks. The device has the name and the addresses of the lab's rxe0; there is no
// siw0.
var Soft = os.Getenv("VERBS_TEST_SOFT") != ""

var softDevice *soft.Device

func init() {
	if !Soft {
		return
	}
	var err error
	softDevice, err = soft.New(soft.Options{
		Name:    RXE,
		Addrs:   []netip.Addr{netip.MustParseAddr(Addr), netip.MustParseAddr("fd00:9::1")},
		Network: verbstest.NewNetwork(verbstest.Options{MTU: 1500}),
	})
	if err != nil {
		panic(err)
	}
	cm.DefaultTransport().CM = softDevice.CM()
}
