package roce

import (
	"testing"
	"time"
)

func TestSyndrome(t *testing.T) {
	for _, test := range []struct {
		s     Syndrome
		class SyndromeClass
		value uint8
		name  string
	}{
		{ACKUnlimited, ClassACK, 31, "ACK"},
		{0, ClassACK, 0, "ACK credits 0"},
		{7, ClassACK, 7, "ACK credits 12"},
		{30, ClassACK, 30, "ACK credits 32768"},
		{RNRNAK(0), ClassRNRNAK, 0, "RNR NAK 655.36ms"},
		{RNRNAK(1), ClassRNRNAK, 1, "RNR NAK 10µs"},
		{RNRNAK(0xff), ClassRNRNAK, 31, "RNR NAK 491.52ms"},
		{0x20, ClassRNRNAK, 0, "RNR NAK 655.36ms"},
		{0x45, ClassReserved, 5, "syndrome 0x45"},
		{NAKSequence, ClassNAK, 0, "NAK sequence error"},
		{NAKInvalid, ClassNAK, 1, "NAK invalid request"},
		{NAKRemoteAccess, ClassNAK, 2, "NAK remote access error"},
		{NAKRemoteOp, ClassNAK, 3, "NAK remote operational error"},
		{NAKInvalidRDReq, ClassNAK, 4, "NAK invalid RD request"},
		{0x65, ClassNAK, 5, "syndrome 0x65"},
		{0x80 | NAKInvalid, ClassNAK, 1, "NAK invalid request"},
	} {
		if test.s.Class() != test.class || test.s.Value() != test.value || test.s.String() != test.name {
			t.Errorf("%#x: class %#x, value %d, %q", uint8(test.s), test.s.Class(), test.s.Value(), test.s)
		}
	}
}

func TestCredits(t *testing.T) {
	// Each second code doubles the count, the one between is the half more.
	for code := range uint8(31) {
		want := int(code)
		if code > 4 {
			want = 2 * CreditCount(code-2)
		}
		n, limited := Syndrome(code).Credits()
		if n != want || !limited || CreditCount(code) != want {
			t.Errorf("code %d: %d credits, not %d", code, n, want)
		}
	}
	for _, s := range []Syndrome{ACKUnlimited, RNRNAK(3), NAKSequence} {
		if n, limited := s.Credits(); n != 0 || limited {
			t.Errorf("%v: %d credits, %v", s, n, limited)
		}
	}
}

func TestRNRDelay(t *testing.T) {
	// enum ib_rnr_timeout of the kernel, in the units of its names: 10 µs.
	want := []int{
		65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
		1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
	}
	for timer, n := range want {
		if got := RNRDelay(uint8(timer)); got != time.Duration(n)*10*time.Microsecond {
			t.Errorf("timer %d: %v", timer, got)
		}
	}
	if RNRDelay(32) != RNRDelay(0) {
		t.Error("more than 5 bits count")
	}
}

func TestTimeout(t *testing.T) {
	for exp, want := range map[uint8]time.Duration{
		0: 4096, 1: 8192, 14: 67108864, 20: 4294967296, 31: 4096 << 31, 32: 4096,
	} {
		if got := Timeout(exp); got != want {
			t.Errorf("%d: %v, not %v", exp, got, want)
		}
	}
}
