package ibcm

import (
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/roce"
)

// TestRequestMessage checks all fields of a REQ: they are those that ib_cm sends.
func TestRequestMessage(t *testing.T) {
	local, peer := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	s := &sink{addr: local}
	m := New()
	d := m.AddDevice(s)
	m.Lock()
	id := d.NewID(nil, nil)
	path := &Path{
		SGID: local.As16(), DGID: peer.As16(), FlowLabel: 0x12345, HopLimit: 64, TrafficClass: 0x68, SL: 3, PKey: 0xffff,
		MTU: 3, Lifetime: 16,
	}
	_, typ, r := request(path, 0x10)
	r.FlowControl, r.SRQ = true, true
	if err := id.Connect(path, typ, r); err != nil {
		t.Fatal(err)
	}
	m.Unlock()
	h, msg, err := roce.DecodeCM(s.mads[0])
	if err != nil {
		t.Fatal(err)
	}
	private := make([]byte, roce.REQPrivateData)
	copy(private, "request")
	want := &roce.REQ{
		LocalCommID: id.local, VendorID: 0x15b3, ECEOptions: 0x1234, ServiceID: service, LocalCAGUID: 9, LocalQPN: 0x10,
		ResponderResources: 3, InitiatorDepth: 4, RemoteCMResponseTimeout: 20, LocalCMResponseTimeout: 20, Transport: roce.CMTransportRC,
		FlowControl: true, SRQ: true, StartingPSN: 0x111111, RetryCount: 5, RNRRetryCount: 6, PKey: 0xffff, PathMTU: 3, MaxCMRetries: 15,
		Primary: roce.CMPath{
			LocalLID: 0xffff, RemoteLID: 0xffff, LocalGID: local.As16(), RemoteGID: peer.As16(), FlowLabel: 0x12345,
			TrafficClass: 0x68, HopLimit: 64, SL: 3, LocalACKTimeout: 17,
		},
		PrivateData: private,
	}
	if !reflect.DeepEqual(msg, want) {
		t.Errorf("%+v\nwant %+v", msg, want)
	}
	if uint32(h.TID) != id.local || h.TID>>32 == 0 {
		t.Errorf("transaction %#x", h.TID)
	}

	_, _, uc := request(path, 0x10)
	path.HopLimit, id.qpType = 1, verbs.UC
	id.complete(uc, path)
	if uc.Transport != roce.CMTransportUC || !uc.Primary.SubnetLocal || uc.Primary.LocalLID != 0 || uc.Primary.RemoteLID != 0 {
		t.Errorf("%+v", uc)
	}
}

func TestACKTimeout(t *testing.T) {
	for _, test := range []struct{ delay, lifetime, want uint8 }{
		{15, 16, 17}, {16, 16, 18}, {15, 14, 16}, {15, 15, 17}, {20, 16, 20}, {20, 18, 21}, {0, 0, 2}, {31, 31, 31}, {0, 63, 31},
	} {
		if got := ackTimeout(test.delay, test.lifetime); got != test.want {
			t.Errorf("%+v: %d", test, got)
		}
	}
}

func TestDuration(t *testing.T) {
	for n, want := range map[uint8]time.Duration{0: time.Millisecond, 8: time.Millisecond, 9: 2 * time.Millisecond, 20: 4096 * time.Millisecond, 31: 1 << 23 * time.Millisecond} {
		if got := duration(n); got != want {
			t.Errorf("%d: %v", n, got)
		}
	}
}
