package rsock

import (
	"bytes"
	"net/netip"
	"testing"
)

// TestPacketHeaders compares the headers with those of C.
func TestPacketHeaders(t *testing.T) {
	for _, test := range []struct {
		from     string
		ud, ctrl string
	}{
		{
			"10.9.0.1:7174", "\x04\x08\x1c\x06\x0a\x09\x00\x01",
			"UUUU\x04\x07\x10\x00\x00\x00\x12\x34\x0a\x09\x00\x01",
		},
		{
			"[fd00:9::1]:7174", "\x06\x18\x1c\x06\x00\x00\x00\x00\xfd\x00\x00\x09\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01",
			"UUUU\x06\x07\x1c\x00\x00\x00\x12\x34\xfd\x00\x00\x09\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01",
		},
	} {
		from := netip.MustParseAddrPort(test.from)
		ud := appendHeader(nil, from)
		if string(ud) != test.ud {
			t.Errorf("header % x, want % x", ud, test.ud)
		}
		if got, data, ok := parseHeader(append(ud, "data"...)); got != from || string(data) != "data" || !ok {
			t.Errorf("parsed as %v, %q, %v", got, data, ok)
		}
		ctrl := appendUDPHeader(nil, from.Addr(), udpCtrl, 0x1234)
		if string(ctrl) != test.ctrl {
			t.Errorf("UDP header % x, want % x", ctrl, test.ctrl)
		}
		if op, qpn, data, ok := parseUDPHeader(append(ctrl, "data"...), from.Addr()); op != udpCtrl || qpn != 0x1234 || string(data) != "data" || !ok {
			t.Errorf("parsed as %d, %#x, %q, %v", op, qpn, data, ok)
		}
		for n := range ud {
			if _, _, ok := parseHeader(ud[:n]); ok {
				t.Errorf("header of %d bytes accepted", n)
			}
		}
		for n := range ctrl {
			if _, _, _, ok := parseUDPHeader(ctrl[:n], from.Addr()); ok {
				t.Errorf("UDP header of %d bytes accepted", n)
			}
		}
	}
}

func FuzzPacketHeaders(f *testing.F) {
	f.Add(appendHeader(nil, netip.MustParseAddrPort("10.9.0.1:7174")))
	f.Add(appendUDPHeader(nil, netip.MustParseAddr("fd00:9::1"), udpData, 5))
	f.Fuzz(func(t *testing.T, b []byte) {
		if from, data, ok := parseHeader(b); ok && !bytes.HasSuffix(b, data) {
			t.Error(from, data)
		}
		for _, a := range []string{"1.2.3.4", "fd00::1"} {
			if _, qpn, data, ok := parseUDPHeader(b, netip.MustParseAddr(a)); ok && (qpn >= 1<<24 || !bytes.HasSuffix(b, data)) {
				t.Error(qpn, data)
			}
		}
	})
}
