package s3rdma

import (
	"strings"
	"testing"

	"github.com/goverbs/verbs"
)

var testGID = verbs.GID{10: 0xff, 11: 0xff, 12: 10, 13: 1, 14: 2, 15: 3}

// TestTokens has the fixed forms digit by digit.
func TestTokens(t *testing.T) {
	dc := DCToken{Addr: 0x7f0011223344, Size: 1 << 20, RKey: 0x1700, LID: 5, QPNum: 0x1234, Global: true, GID: testGID}
	want := "00007f0011223344:00100000:00001700:0005:001234:1:00000000000000000000ffff0a010203"
	if got := dc.String(); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if got, err := ParseDCToken(want); got != dc || err != nil {
		t.Errorf("%+v, %v", got, err)
	}
	for suffix, part := range map[string][2]uint64{":7f0011223344:100000": {0x7f0011223344, 1 << 20}, ":7f0011223345:fffff": {0x7f0011223345, 1<<20 - 1}, ":7f0011323344:0": {0x7f0011323344, 0}} {
		if got, err := ParseDCToken(want + suffix); err != nil || got.Addr != part[0] || got.Size != uint32(part[1]) || got.QPNum != dc.QPNum {
			t.Errorf("part %s: %+v, %v", suffix, got, err)
		}
	}
	rc := RCToken{Conn: "00112233445566778899aabbccddeeff", Addr: 0x7f0011223344, Size: 1 << 32, RKey: 0x1700}
	want = "rc:00112233445566778899aabbccddeeff:00007f0011223344:100000000:00001700"
	if got := rc.String(); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if got, err := ParseRCToken(want); got != rc || err != nil {
		t.Errorf("%+v, %v", got, err)
	}
	qp := QPToken{QPNum: 0x11, GID: testGID, RKey: 0x1700, Addr: 0x7f0011223344, Size: 1 << 20, Port: 1, LID: 5}
	want = "01" + "11000000" + "00000000000000000000ffff0a010203" + "00170000" + "443322110" + "07f0000" + "0000100000000000" + "01" + "0500"
	if got := qp.String(); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if got, err := ParseQPToken(want); got != qp || err != nil {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestBadTokens(t *testing.T) {
	good := DCToken{QPNum: 1, Size: 100, Addr: 0x1000}.String()
	for _, s := range []string{"", ":", good[1:], good + ":", good + ":1000", good + ":fff:1", good + ":1001:64", good + ":1000:65", good + ":1000:64:0", good + ":+1000:1",
		DCToken{Addr: 1<<64 - 1, Size: 2}.String(), good + "0", good + ":", "x" + good[1:], "+" + good[1:], strings.Replace(good, ":0:", ":2:", 1)} {
		if v, err := ParseDCToken(s); err == nil {
			t.Errorf("DC token %q: %+v", s, v)
		}
	}
	good = RCToken{Conn: strings.Repeat("0", 32), Addr: 0x1000, Size: 100}.String()
	for _, s := range []string{"", "rc:", good[1:], "RC" + good[2:], good + ":", good + "00", "rc:" + good[4:], good[:len(good)-8], good[:len(good)-8] + "-1",
		RCToken{Conn: strings.Repeat("0", 32), Addr: 2, Size: 1<<64 - 1}.String()} {
		if v, err := ParseRCToken(s); err == nil {
			t.Errorf("RC token %q: %+v", s, v)
		}
	}
	good = QPToken{QPNum: 1}.String()
	for _, s := range []string{"", good[2:], good + "00", "00" + good[2:], "x" + good[1:]} {
		if v, err := ParseQPToken(s); err == nil {
			t.Errorf("QP token %q: %+v", s, v)
		}
	}
}

func FuzzTokens(f *testing.F) {
	f.Add(DCToken{Size: 7, GID: testGID}.String())
	f.Add(DCToken{Size: 7, GID: testGID}.String() + ":0:1")
	f.Add(QPToken{Size: 7, GID: testGID}.String())
	f.Add(RCToken{Conn: strings.Repeat("0f", 16), Size: 7, RKey: 1}.String())
	f.Fuzz(func(t *testing.T, s string) {
		if v, err := ParseDCToken(s); err == nil && len(s) == dcTokenLen && !strings.EqualFold(v.String(), s) {
			t.Errorf("%q: %v", s, v)
		} else if err == nil && v.Addr+uint64(v.Size) < v.Addr {
			t.Errorf("%q: memory wraps: %v", s, v)
		}
		if v, err := ParseRCToken(s); err == nil {
			if again, err := ParseRCToken(v.String()); again != v || err != nil || v.Addr+v.Size < v.Addr {
				t.Errorf("%q: %v, %v, %v", s, v, again, err)
			}
		}
		if v, err := ParseQPToken(s); err == nil && !strings.EqualFold(v.String(), s) {
			t.Errorf("%q: %v", s, v)
		}
	})
}
