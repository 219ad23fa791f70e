package provider

import (
	"testing"

	"github.com/goverbs/verbs"
)

func TestWCExtra(t *testing.T) {
	var wc verbs.WC
	SetImm(&wc, 0x01020304)
	if wc.Imm() != 0x01020304 || wc.Flags != verbs.WCWithImm {
		t.Errorf("immediate %#x, flags %v", wc.Imm(), wc.Flags)
	}
	wc = verbs.WC{QPNum: 7}
	SetInvalidatedRKey(&wc, 0x01020304)
	if wc.InvalidatedRKey() != 0x01020304 || wc.Flags != verbs.WCWithInv || wc.QPNum != 7 {
		t.Errorf("key %#x, flags %v", wc.InvalidatedRKey(), wc.Flags)
	}
}
