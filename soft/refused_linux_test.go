//go:build !nordma

package soft_test

import (
	"errors"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/rsock"
	"github.com/goverbs/verbs/soft"
)

// TestRefused dials a host that has no device: its kernel answers with ICMP, and the dial fails at
// once.
func TestRefused(t *testing.T) {
	const peer = "127.0.0.4:7471"
	d := must(soft.New(soft.Options{Addrs: []netip.Addr{netip.MustParseAddr("127.0.0.2")}, Port: 14793}))(t)
	defer d.Close()
	transport := &cm.Transport{Host: d}
	defer transport.Close()
	check := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, syscall.ECONNREFUSED) || !strings.Contains(err.Error(), "no RoCE device") {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, err := (&cm.Dialer{Transport: transport}).Dial(within(t), peer)
	check("Dial", err)
	_, err = (&cm.Dialer{Transport: transport, PortSpace: cm.PortSpaceUDP}).Dial(within(t), peer)
	check("Dial by UDP", err)
	_, err = (&rsock.Dialer{Transport: transport}).DialContext(within(t), "rdma", peer)
	check("rsock", err)
}
