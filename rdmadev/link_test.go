package rdmadev

import (
	"errors"
	"strings"
	"testing"

	"github.com/goverbs/verbs"
)

// TestLongNames: names longer than a device's are refused, and not cut to the 16 bits of an attribute's
// length.
func TestLongNames(t *testing.T) {
	for _, n := range []int{maxName + 1, 1<<16 + 8} {
		name := strings.Repeat("x", n)
		for what, err := range map[string]error{
			"AddLink":          AddLink(name, "rxe", "lo"),
			"AddLink, type":    AddLink("x", name, "lo"),
			"AddLink, network": AddLink("x", "rxe", name),
			"Rename":           Device{Index: -1}.Rename(name),
			"AddSubdevice":     Device{Index: -1}.AddSubdevice(name),
		} {
			if !errors.Is(err, verbs.ErrRange) {
				t.Errorf("%s with %d bytes: %v", what, n, err)
			}
		}
	}
	if err := (Device{Index: -1}).Rename(strings.Repeat("x", maxName)); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("the longest name: %v", err)
	}
}
