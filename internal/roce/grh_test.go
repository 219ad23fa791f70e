package roce

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/goverbs/verbs"
)

// TestGRH compares with the headers of IP packets.
func TestGRH(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 1000 {
		h := randomIP(r, i%2 == 0)
		h.flags, h.label = dfFlag, 0
		g := GRH{
			Src: h.src.Addr(), Dst: h.dst.Addr(), TrafficClass: h.tos, HopLimit: h.ttl, Length: r.IntN(5000),
		}
		packet := h.datagram(make([]byte, g.Length))
		want := packet[:40]
		if g.Src.Is4() {
			g.ID = h.id
			want = append(make([]byte, 20), packet[:20]...)
		}
		b := [verbs.GRHSize]byte{0xff, 1, 2, 39: 3}
		g.Put(&b)
		if string(b[:]) != string(want) {
			t.Fatalf("%+v:\n%x\n%x", g, b, want)
		}
	}
}

// TestGRHMapped compares the header of addresses that map IPv4 to IPv6 with that of IPv4.
func TestGRHMapped(t *testing.T) {
	mapped := GRH{Src: netip.MustParseAddr("::ffff:10.0.0.1"), Dst: netip.MustParseAddr("::ffff:10.0.0.2"), Length: 16}
	plain := GRH{Src: mapped.Src.Unmap(), Dst: mapped.Dst.Unmap(), Length: 16}
	var got, want [verbs.GRHSize]byte
	mapped.Put(&got)
	plain.Put(&want)
	if got != want {
		t.Errorf("%x, of IPv4 %x", got, want)
	}
}

// TestOnesSum sums words, an odd byte, and the carries of carries.
func TestOnesSum(t *testing.T) {
	for _, test := range []struct {
		b    []byte
		sum  uint32
		want uint16
	}{
		{nil, 0, 0}, {nil, 0x10000, 1}, {[]byte{1, 2}, 0, 0x102}, {[]byte{1, 2, 3}, 4, 0x406}, {[]byte{0xff}, 0x101, 2},
		{[]byte{0xff, 0xff, 0, 1}, 0, 1}, {[]byte{0xff, 0xff}, 0xffff, 0xffff}, {nil, 0xffffffff, 0xffff}, {nil, 0x1ffff, 1},
		{[]byte{0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0xb8, 0x61, 0xc0, 0xa8, 0, 1, 0xc0, 0xa8, 0, 0xc7}, 0, 0xffff},
	} {
		if got := OnesSum(test.b, test.sum); got != test.want {
			t.Errorf("sum of %x and %#x: %#x, want %#x", test.b, test.sum, got, test.want)
		}
	}
}
