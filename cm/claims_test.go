package cm

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/goverbs/verbs"
)

// TestClaims checks what an endpoint takes from the attributes that come from the peer's message.
func TestClaims(t *testing.T) {
	const roce, infiniBand = verbs.LinkEthernet, verbs.LinkInfiniBand
	for _, test := range []struct {
		remote, gid string
		link        verbs.LinkLayer
		mtu         verbs.MTU
		want        []string // in the error
	}{
		{"10.9.0.1", "::ffff:10.9.0.1", roce, 3, nil},
		{"::ffff:10.9.0.1", "::ffff:10.9.0.1", roce, 3, nil},
		{"fd00::1", "fd00::1", roce, 1, nil},
		{"fe80::1%v0", "fe80::1", roce, 3, nil},
		{"10.9.0.99", "::ffff:10.9.0.66", roce, 3, []string{"10.9.0.99", "10.9.0.66"}},
		{"fd00::1", "::ffff:10.9.0.66", roce, 3, []string{"fd00::1", "10.9.0.66"}},
		{"10.9.0.1", "fe80::1", roce, 3, []string{"10.9.0.1", "fe80::1"}},
		{"10.9.0.1", "fe80::f452:1403:7b:cba1", infiniBand, 3, nil}, // IPoIB
		{"10.9.0.1", "::ffff:10.9.0.1", roce, 5, []string{"4096", "1024"}},
		{"10.9.0.1", "fe80::f452:1403:7b:cba1", infiniBand, 4, []string{"2048", "1024"}},
	} {
		attr := verbs.QPAttr{AV: verbs.AddressVector{DGID: netip.MustParseAddr(test.gid).As16()}, PathMTU: test.mtu}
		err := checkPath(netip.MustParseAddr(test.remote), &attr, &verbs.PortAttr{LinkLayer: test.link, ActiveMTU: 3})
		if (err == nil) != (test.want == nil) {
			t.Errorf("%+v: %v", test, err)
			continue
		}
		for _, w := range test.want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%+v: %v", test, err)
			}
		}
	}

	e := &Endpoint{id: &ID{}, plan: plan{resources: 2, depth: 3}}
	attr := verbs.QPAttr{MaxRDAtomic: 200, MaxDestRDAtomic: 200, Timeout: 31}
	if err := e.checkRTR(&attr, false); err != nil {
		t.Error(err)
	}
	e.checkRTS(&attr)
	if attr.MaxRDAtomic != 3 || attr.MaxDestRDAtomic != 2 || attr.Timeout != maxACKTimeout {
		t.Errorf("%+v", attr)
	}
	e.id.ackTimeoutSet.Store(true)
	attr.Timeout = 31
	if e.checkRTS(&attr); attr.Timeout != 31 {
		t.Errorf("the program's ACK timeout became %d", attr.Timeout)
	}
}

// TestSetDepths plans the READs in flight within the limits of the program, the device and the
// peer.
func TestSetDepths(t *testing.T) {
	attr := &verbs.DeviceAttr{MaxQPRDAtomic: 20, MaxQPInitRDAtomic: 8}
	for _, test := range []struct {
		opt     Options
		request *Event
		want    [2]uint8
		err     error
	}{
		{want: [2]uint8{16, 8}}, // the defaults, lowered to the device's limits
		{opt: Options{ResponderResources: 20, InitiatorDepth: -1}, want: [2]uint8{20, 0}},
		{opt: Options{ResponderResources: 21}, err: verbs.ErrRange},
		{request: &Event{ConnParam: ConnParam{ResponderResources: 2, InitiatorDepth: 200}}, want: [2]uint8{2, 8}},
		{request: &Event{}, want: [2]uint8{0, 0}},
		{opt: Options{InitiatorDepth: 9}, request: &Event{ConnParam: ConnParam{ResponderResources: 1, InitiatorDepth: 1}}, err: verbs.ErrRange},
	} {
		p := plan{Options: test.opt, accepting: test.request != nil}
		err := p.setDepths(attr, "rxe0", test.request)
		if !errors.Is(err, test.err) || err == nil && [2]uint8{p.resources, p.depth} != test.want {
			t.Errorf("%+v: %d, %d, %v", test, p.resources, p.depth, err)
		}
	}
}
