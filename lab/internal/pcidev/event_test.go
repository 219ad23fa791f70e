package pcidev

import "testing"

// TestArmBehindManyEntries arms a CQ whose driver has polled without events for more entries than half of the indexes.
func TestArmBehindManyEntries(t *testing.T) {
	var a Arming
	for _, solicited := range []bool{false, true} {
		a.Fired(0)
		for pi := range uint32(20_000_000) {
			if a.Solicited = 0; solicited {
				a.Solicited = pi + 1
			}
			if a.Due(pi + 1) {
				t.Fatalf("due at %d", pi)
			}
			if pi%100_000 != 99_999 {
				continue
			}
			if !a.Arm(pi+1, pi, solicited) {
				t.Fatalf("no event for entry %d", pi)
			}
			a.State = NotArmed
			if a.Arm(pi+1, pi+1, solicited) {
				t.Fatalf("an event behind entry %d", pi)
			}
			a.State = NotArmed
		}
	}
}
