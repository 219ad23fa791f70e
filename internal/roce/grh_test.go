package roce

import (
	"math/rand/v2"
	"net/netip"
	"testing"
)

// TestGRH compares with the headers of IP packets.
func TestGRH(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 1000 {
		h := randomIP(r, i%2 == 0)
		g := GRH{
			Src: h.src.Addr(), Dst: h.dst.Addr(), TrafficClass: h.tos, HopLimit: h.ttl, Length: r.IntN(5000),
		}
		packet := h.datagram(make([]byte, g.Length))
		want := packet[:40]
		if g.Src.Is4() {
			g.ID, g.Fragmentable = h.id, h.flags == 0
			want = append(make([]byte, 20), packet[:20]...)
		} else {
			g.FlowLabel = h.label
		}
		b := [GRHSize]byte{0xff, 1, 2, 39: 3}
		g.Put(&b)
		if string(b[:]) != string(want) {
			t.Fatalf("%+v:\n%x\n%x", g, b, want)
		}
		var got GRH
		if !got.Decode(&b) || got != g {
			t.Fatalf("%+v\n%+v", got, g)
		}
		// The kernel copies 20 bytes for IPv4: those before may be anything.
		if g.Src.Is4() {
			for j := range 20 {
				b[j] = byte(r.Uint32())
			}
			if !got.Decode(&b) || got != g {
				t.Fatalf("after garbage %x: %+v\n%+v", b[:20], got, g)
			}
		}
	}
}

func TestGRHNeither(t *testing.T) {
	var g GRH
	for _, b := range [][GRHSize]byte{{}, {0: 0x50}, {20: 0x60}} {
		if g.Decode(&b) {
			t.Errorf("%x: %+v", b, g)
		}
	}
	mapped := GRH{Src: netip.MustParseAddr("::ffff:10.0.0.1"), Dst: netip.MustParseAddr("::ffff:10.0.0.2"), Length: 16}
	var b [GRHSize]byte
	mapped.Put(&b)
	if !g.Decode(&b) || g.Src != mapped.Src.Unmap() || g.Dst != mapped.Dst.Unmap() || g.Length != 16 {
		t.Errorf("mapped addresses: %+v", g)
	}
}
