package s3rdma

import (
	"strings"
	"testing"

	"github.com/goverbs/verbs"
)

var testGID = verbs.GID{10: 0xff, 11: 0xff, 12: 10, 13: 1, 14: 2, 15: 3}

// TestTokens has the two fixed forms digit by digit.
func TestTokens(t *testing.T) {
	dc := DCToken{Addr: 0x7f0011223344, Size: 1 << 20, RKey: 0x1700, LID: 5, QPNum: 0x1234, Global: true, GID: testGID}
	want := "00007f0011223344:00100000:00001700:0005:001234:1:00000000000000000000ffff0a010203"
	if got := dc.String(); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if got, err := ParseDCToken(want); got != dc || err != nil {
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
	good := DCToken{QPNum: 1}.String()
	for _, s := range []string{"", ":", good[1:], good + "0", good + ":", "x" + good[1:], "+" + good[1:], strings.Replace(good, ":0:", ":2:", 1)} {
		if v, err := ParseDCToken(s); err == nil {
			t.Errorf("DC token %q: %+v", s, v)
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
	f.Add(QPToken{Size: 7, GID: testGID}.String())
	f.Fuzz(func(t *testing.T, s string) {
		if v, err := ParseDCToken(s); err == nil && !strings.EqualFold(v.String(), s) {
			t.Errorf("%q: %v", s, v)
		}
		if v, err := ParseQPToken(s); err == nil && !strings.EqualFold(v.String(), s) {
			t.Errorf("%q: %v", s, v)
		}
	})
}
