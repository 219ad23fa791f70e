//go:build linux

package labtest

import (
	"net/netip"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/soft"
	"github.com/goverbs/verbs/verbstest"
)

// softDevice is the device of [Soft]. Its network is this process's own, so tests of several
// packages can run at the same time. It has the name and the addresses of the lab's rxe0; there
// is no siw0.
var softDevice *soft.Device

func init() {
	if !Soft {
		return
	}
	var err error
	softDevice, err = soft.New(soft.Options{
		Name:    RXE,
		Addrs:   []netip.Addr{netip.MustParseAddr(AddrOf(RXE)), netip.MustParseAddr(Addr6Of(RXE))},
		Network: verbstest.NewNetwork(verbstest.Options{MTU: 1500}),
	})
	if err != nil {
		panic(err)
	}
	cm.DefaultTransport().Host = softDevice
}
