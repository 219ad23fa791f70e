package sys

import "testing"

func TestSplitOp(t *testing.T) {
	for _, test := range [][4]string{
		{"create QP in", "PD 3", "create", "QP in PD 3"},
		{"wait on", "CQ 5", "wait", "CQ 5"},
		{"query device", "", "query", "device"},
		{"dial", "10.9.0.1:1", "dial", "10.9.0.1:1"},
		{"close", "", "close", ""},
	} {
		if verb, object := SplitOp(test[0], test[1]); verb != test[2] || object != test[3] {
			t.Errorf("%q on %q: %q, %q", test[0], test[1], verb, object)
		}
	}
}
