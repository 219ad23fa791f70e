package host

import (
	"net/netip"
	"testing"
)

func TestListenAddr(t *testing.T) {
	v4, v6 := netip.MustParseAddrPort("10.0.0.1:1"), netip.MustParseAddrPort("[fd00::1]:1")
	for _, test := range []struct {
		addrs []netip.AddrPort
		want  netip.AddrPort
	}{
		{[]netip.AddrPort{v6, v4}, v4},
		{[]netip.AddrPort{v4, v6}, v4},
		{[]netip.AddrPort{v6}, v6},
	} {
		if got := ListenAddr(test.addrs); got != test.want {
			t.Errorf("of %v: %v", test.addrs, got)
		}
	}
}
