//go:build linux

package labtest

import (
	"net/netip"
	"testing"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/soft"
	"github.com/goverbs/verbs/verbstest"
)

// softDevice is the device of [Soft]. Its network is this process's own, so tests of several
// packages can run at the same time. It has the name and the addresses of the lab's rxe0; there
// is no siw0.
var softDevice *soft.Device

var softNetwork *verbstest.Network

func init() {
	if !Soft {
		return
	}
	softNetwork = verbstest.NewNetwork(verbstest.Options{MTU: 1500})
	var err error
	softDevice, err = soft.New(soft.Options{
		Name:    RXE,
		Addrs:   []netip.Addr{netip.MustParseAddr(AddrOf(RXE)), netip.MustParseAddr(Addr6Of(RXE))},
		Network: softNetwork,
	})
	if err != nil {
		panic(err)
	}
	cm.DefaultTransport().Host = softDevice
}

// TOS checks that all packets between the device of [Soft] and another one, which it makes for run,
// have a type of service. The other is on this machine if host is "". Elsewhere TOS skips the test, as
// packets of kernels cannot be seen.
func TOS(t *testing.T, want uint8, host string, run func(peer *soft.Device, addr string)) {
	t.Helper()
	if !Soft {
		t.Skip("packets of kernels are not seen")
	}
	const addr = "10.9.0.77"
	peer := Must(soft.New(soft.Options{Name: "peer0", Host: host, Addrs: []netip.Addr{netip.MustParseAddr(addr)}, Network: softNetwork}))(t)
	defer peer.Close()
	sent, others := 0, map[string]uint8{}
	softNetwork.SetFilter(func(p *verbstest.Packet) verbstest.Action {
		if sent++; p.TOS != want {
			others[p.String()] = p.TOS
		}
		return verbstest.Action{}
	})
	defer softNetwork.SetFilter(nil)
	run(peer, addr)
	softNetwork.SetFilter(nil)
	if sent == 0 || len(others) > 0 {
		t.Errorf("of %d packets, these have another TOS than %d: %v", sent, want, others)
	}
}
