package cm

import (
	"net/netip"
	"testing"

	"github.com/goverbs/verbs"
)

// TestSenderStale gets datagrams of one sender in buffers that hold different old headers: it is
// the same.
func TestSenderStale(t *testing.T) {
	wc, want := verbs.WC{Flags: verbs.WCGRH, SrcQP: 17}, netip.MustParseAddr("10.9.0.7")
	var first Sender
	for i, version := range []byte{0, 0x60, 0x45, 0xff} {
		grh := make([]byte, verbs.GRHSize)
		grh[0], grh[6], grh[7], grh[19] = version, 17, 64, byte(i)
		copy(grh[20:], []byte{0x45, 0, 0, 152, 0x12, 0x34, 0x40, 0, 64, 17, 0x14, 0x08, 10, 9, 0, 7, 10, 9, 0, 1})
		s := senderOf(&wc, grh)
		if s.Addr() != want {
			t.Errorf("byte %#x: the sender is %v, want %v", version, s.Addr(), want)
		}
		if i == 0 {
			first = s
		} else if s != first {
			t.Errorf("byte %#x: another sender: %+v, %+v", version, s, first)
		}
	}
}
