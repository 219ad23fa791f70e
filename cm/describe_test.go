//go:build linux

package cm

import (
	"net/netip"
	"strings"
	"syscall"
	"testing"
)

// TestDescribeLoopback describes the loopback interface, whose addresses lead to no device, and
// advises to use an address of a device only if one has an address.
func TestDescribeLoopback(t *testing.T) {
	text, reachable := describeInterface("lo")
	if text != " on lo, whose addresses lead to no device" || reachable {
		t.Errorf("%q, %v", text, reachable)
	}
	const advice = "use an address of a device"
	to := netip.MustParseAddr("127.0.0.1")
	for _, reachable := range []bool{true, false} {
		err := noRouteTo(to, []string{"lo0" + text}, reachable, syscall.ENODEV)
		if strings.Contains(err.Error(), advice) != reachable {
			t.Errorf("reachable %v: %v", reachable, err)
		}
	}
	if err := noRouteTo(netip.MustParseAddr("10.0.0.1"), nil, true, syscall.ENODEV); strings.Contains(err.Error(), advice) {
		t.Error(err)
	}
}
