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

// FuzzSender receives datagrams with any header: what differs between the packets of one sender does not
// make another, and its address is that of the header.
func FuzzSender(f *testing.F) {
	f.Add(append(make([]byte, 20), 0x45, 0, 0, 152, 0x12, 0x34, 0x40, 0, 64, 17, 0x14, 0x08, 10, 9, 0, 7, 10, 9, 0, 1), uint16(0), uint32(7))
	f.Add(append([]byte{0x60, 6: 17, 7: 64, 8: 0xfd, 24: 0xfd}, make([]byte, 15)...), uint16(verbs.WCIPv6), uint32(7))
	f.Fuzz(func(t *testing.T, grh []byte, flags uint16, noise uint32) {
		if len(grh) < verbs.GRHSize {
			return
		}
		wc := verbs.WC{Flags: verbs.WCFlags(flags) | verbs.WCGRH | verbs.WCIPv4}
		if flags&1 != 0 {
			wc.Flags = wc.Flags&^verbs.WCIPv4 | verbs.WCIPv6
		}
		s := senderOf(&wc, grh)
		if src, _ := wc.GRHAddrs(grh); s.Addr() != src {
			t.Errorf("% x: the sender is %v, want %v", grh, s.Addr(), src)
		}
		differ := []int{22, 23, 24, 25, 28, 30, 31}
		if wc.Flags&verbs.WCIPv6 != 0 {
			differ = []int{4, 5, 7}
		}
		again := append([]byte(nil), grh...)
		for i, at := range differ {
			again[at] ^= byte(noise >> i)
		}
		if other := senderOf(&wc, again); other != s {
			t.Errorf("% x and % x are two senders: %+v, %+v", grh, again, s, other)
		}
	})
}
