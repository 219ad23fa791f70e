package verbs_test

import (
	"net/netip"
	"testing"

	"github.com/goverbs/verbs"
)

// TestGRHAddrs reads headers behind which older ones show, and headers of IPv6 whose addresses look
// like IPv4's header.
func TestGRHAddrs(t *testing.T) {
	ipv4 := [20]byte{0x45, 0, 0, 152, 0x12, 0x34, 0x40, 0, 64, 17, 0x14, 0x08, 10, 9, 0, 7, 10, 9, 0, 1}
	bad := ipv4
	bad[10]++
	old := [20]byte{0x60, 6: 17, 7: 64, 8: 0xfd, 11: 1, 13: 2, 15: 3, 17: 4, 19: 5}
	v4, v6 := netip.MustParseAddr("10.9.0.7"), netip.MustParseAddr("fd00:1:2:3:4:5:4500:98")
	for _, test := range []struct {
		name  string
		flags verbs.WCFlags
		head  [20]byte
		tail  [20]byte
		want  netip.Addr
	}{
		{"IPv4", 0, [20]byte{}, ipv4, v4},
		{"IPv4, checksum not computed", 0, [20]byte{}, bad, v4},
		{"IPv4 in the buffer of IPv6", 0, old, ipv4, v4},
		{"IPv6", 0, old, bad, v6},
		{"IPv4, as the device says", verbs.WCIPv4, old, bad, v4},
		{"IPv6, as the device says", verbs.WCIPv6, old, ipv4, v6},
		{"IPv6, as the device says, with another header", verbs.WCIPv6, [20]byte{}, ipv4, netip.Addr{}},
		{"nothing", 0, [20]byte{}, [20]byte{}, netip.Addr{}},
	} {
		wc := verbs.WC{Flags: verbs.WCGRH | test.flags}
		src, dst := wc.GRHAddrs(append(test.head[:], test.tail[:]...))
		if src != test.want || dst.IsValid() != src.IsValid() || src == v4 && dst != netip.MustParseAddr("10.9.0.1") {
			t.Errorf("%s: from %v to %v, want %v", test.name, src, dst, test.want)
		}
	}
	if src, _ := new(verbs.WC).GRHAddrs(make([]byte, 100)); src.IsValid() {
		t.Errorf("without a header: %v", src)
	}
}

// FuzzGRHAddrs reads any header: addresses are those of one family, where that has them.
func FuzzGRHAddrs(f *testing.F) {
	ipv4 := []byte{0x45, 0, 0, 152, 0x12, 0x34, 0x40, 0, 64, 17, 0x14, 0x08, 10, 9, 0, 7, 10, 9, 0, 1}
	f.Add(append(append([]byte{0x60}, make([]byte, 19)...), ipv4...), uint16(0))
	f.Add(append(append([]byte{0x60}, make([]byte, 19)...), ipv4...), uint16(verbs.WCIPv6))
	f.Add(append(make([]byte, 20), ipv4...), uint16(verbs.WCIPv4))
	f.Fuzz(func(t *testing.T, b []byte, flags uint16) {
		wc := verbs.WC{Flags: verbs.WCFlags(flags) | verbs.WCGRH}
		src, dst := wc.GRHAddrs(b)
		switch {
		case !src.IsValid() && !dst.IsValid():
		case src.Is4() && dst.Is4():
			if src.As4() != [4]byte(b[32:]) || dst.As4() != [4]byte(b[36:]) || wc.Flags&(verbs.WCIPv4|verbs.WCIPv6) == verbs.WCIPv6 {
				t.Errorf("% x, %v: from %v to %v", b, wc.Flags, src, dst)
			}
		case src.Is6() && dst.Is6():
			if src.As16() != [16]byte(b[8:]) || dst.As16() != [16]byte(b[24:]) || wc.Flags&verbs.WCIPv4 != 0 {
				t.Errorf("% x, %v: from %v to %v", b, wc.Flags, src, dst)
			}
		default:
			t.Errorf("% x, %v: from %v to %v", b, wc.Flags, src, dst)
		}
	})
}
