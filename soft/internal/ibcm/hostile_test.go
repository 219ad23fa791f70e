package ibcm

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goverbs/verbs/internal/roce"
)

// answers passes messages from a peer to a manager with a listener, whose handler is h, and
// returns what it sends.
func answers(t *testing.T, h Handler, messages ...roce.CMMessage) (sent []roce.CMMessage, m *Manager) {
	t.Helper()
	s := &sink{addr: netip.MustParseAddr("10.0.0.1")}
	m = New()
	d := m.AddDevice(s)
	m.Lock()
	d.Listen(service, h)
	m.Unlock()
	for _, msg := range messages {
		mad, err := roce.AppendCM(nil, 7, msg)
		if err != nil {
			t.Fatal(err)
		}
		d.Receive(Source{Addr: netip.MustParseAddr("10.0.0.2")}, mad)
	}
	for _, mad := range s.mads {
		_, msg, err := roce.DecodeCM(mad)
		if err != nil {
			t.Fatal(err)
		}
		sent = append(sent, msg)
	}
	return sent, m
}

func hostileREQ(n uint32) *roce.REQ {
	return &roce.REQ{
		LocalCommID: n, ServiceID: service, LocalCAGUID: 2, LocalQPN: n,
		Primary: roce.CMPath{LocalGID: netip.MustParseAddr("10.0.0.2").As16(), RemoteGID: netip.MustParseAddr("10.0.0.1").As16()},
	}
}

// TestWrongGID rejects requests whose paths are not to this device, are between two families,
// or have an alternate path.
func TestWrongGID(t *testing.T) {
	here := netip.MustParseAddr("10.0.0.1").As16()
	foreign := hostileREQ(1)
	foreign.Primary.RemoteGID = netip.MustParseAddr("10.0.0.3").As16()
	mixed := hostileREQ(2)
	mixed.Primary.LocalGID = netip.MustParseAddr("fd00::2").As16()
	alternate := hostileREQ(3)
	alternate.Alternate.LocalLID = 1
	sent, m := answers(t, func(*ID, *Event) error { t.Error("the handler was called"); return nil }, foreign, mixed, alternate)
	for i, want := range []roce.RejectReason{roce.RejInvalidGID, roce.RejInvalidGID, roce.RejInvalidAltGID} {
		r, ok := sent[i].(*roce.REJ)
		if !ok || r.Reason != want || r.RemoteCommID != uint32(i+1) || r.LocalCommID != 0 || r.Message != roce.AnswersREQ || !bytes.HasPrefix(r.Info, here[:]) {
			t.Errorf("%d: %+v", i, sent[i])
		}
	}
	m.Lock()
	defer m.Unlock()
	if len(m.ids)+len(m.remoteIDs)+len(m.remoteQPs) != 0 {
		t.Error("something is left")
	}
}

// TestFlood sends many requests for which there is no room, no listener, or no willing
// program: nothing is kept.
func TestFlood(t *testing.T) {
	for _, err := range []error{ErrNoRoom, errTest} {
		var messages []roce.CMMessage
		for n := range uint32(1000) {
			r := hostileREQ(n)
			if n%3 == 0 {
				r.ServiceID++
			}
			messages = append(messages, r, &roce.SIDRREQ{RequestID: n, ServiceID: r.ServiceID})
		}
		sent, m := answers(t, func(*ID, *Event) error { return err }, messages...)
		want := 2000
		if err == ErrNoRoom {
			want = 334 + 1000 // SIDR_REQ is always answered
		}
		if len(sent) != want {
			t.Errorf("%v: %d answers, want %d", err, len(sent), want)
		}
		m.Lock()
		if n := len(m.ids) + len(m.remoteIDs) + len(m.remoteQPs) + len(m.requests); n != 0 {
			t.Errorf("%v: %d entries are left", err, n)
		}
		m.Unlock()
	}
}

// TestReplays repeats messages of a connection that has ended, and guesses numbers: nothing
// happens but that disconnect requests are answered.
func TestReplays(t *testing.T) {
	sent, _ := answers(t, func(*ID, *Event) error { return errTest },
		&roce.REP{LocalCommID: 1, RemoteCommID: 2}, &roce.RTU{LocalCommID: 1, RemoteCommID: 2},
		&roce.REJ{LocalCommID: 1, RemoteCommID: 2}, &roce.REJ{LocalCommID: 1, Reason: roce.RejTimeout, Info: make([]byte, 8)},
		&roce.REJ{LocalCommID: 1, Reason: roce.RejTimeout}, &roce.MRA{RemoteCommID: 2}, &roce.MRA{RemoteCommID: 2, Message: 3},
		&roce.DREP{LocalCommID: 1, RemoteCommID: 2}, &roce.SIDRREP{RequestID: 2}, &roce.DREQ{LocalCommID: 1, RemoteCommID: 2})
	if len(sent) != 1 {
		t.Fatalf("%d answers", len(sent))
	}
	if r, ok := sent[0].(*roce.DREP); !ok || r.LocalCommID != 2 || r.RemoteCommID != 1 {
		t.Errorf("%+v", sent[0])
	}
}

// TestIDs checks that communication IDs are neither zero nor consecutive.
func TestIDs(t *testing.T) {
	d := New().AddDevice(&sink{})
	seen := map[uint32]bool{}
	last := uint32(0)
	for range 1000 {
		id := d.newID().local
		if id == 0 || id == last+1 || seen[id] {
			t.Fatalf("%#x after %#x", id, last)
		}
		seen[id], last = true, id
	}
}

// TestSpoofedPeer sends requests with the GUID, the QP and the communication ID of a connected
// host from another host: the connection stays.
func TestSpoofedPeer(t *testing.T) {
	world(t, 1, func(t *testing.T, n *network, a, b *host) {
		s := acceptAll()
		b.listen(t, s)
		c, p := connected(t, a, b, 0x10, s)
		spoofer := n.host(New(), 1, "10.0.0.3") // with a's GUID
		other := confirming(spoofer.newEndpoint(t))
		other.local = c.local
		spoofer.manager.ids[c.local] = other.ID
		other.must(func() error { return other.Connect(request(spoofer.path(b), 0x10)) })
		wait(time.Second)
		guid := binary.BigEndian.AppendUint64(nil, 1)
		spoofer.manager.Lock()
		spoofer.device.send(&other.av.AddressVector, 1, &roce.REJ{LocalCommID: c.local, Reason: roce.RejTimeout, Info: guid})
		spoofer.manager.Unlock()
		wait(time.Second)
		if c.current() != Established || p.current() != Established {
			t.Errorf("%v %v, %v %v", c.current(), c.types(), p.current(), p.types())
		}
	})
}

// TestReflectedReply rejects a request whose path leads to another host than its sender, once and
// to the sender: the other host gets nothing.
func TestReflectedReply(t *testing.T) {
	r := hostileREQ(1)
	r.Primary.LocalGID = netip.MustParseAddr("10.0.0.3").As16()
	sent, m := answers(t, func(*ID, *Event) error { t.Error("the handler was called"); return nil }, r)
	if len(sent) != 1 {
		t.Fatalf("%d answers", len(sent))
	}
	if r, ok := sent[0].(*roce.REJ); !ok || r.Reason != roce.RejInvalidGID || r.Message != roce.AnswersREQ {
		t.Errorf("%+v", sent[0])
	}
	m.Lock()
	defer m.Unlock()
	if len(m.ids)+len(m.remoteIDs)+len(m.remoteQPs) != 0 {
		t.Error("something is left")
	}
}

// TestHostileTimes accepts requests with the shortest and the longest time until the reply is
// repeated: it is repeated at most twenty times a second, and at least every eight seconds. An
// announcement of the longest time delays it by a minute.
func TestHostileTimes(t *testing.T) {
	for _, test := range []struct {
		timeout uint8
		mra     bool
		within  time.Duration
		min     int
		max     int
	}{
		{0, false, 100 * time.Millisecond, 1, 3},
		{31, false, time.Minute, 7, 9},
		{31, true, 200 * time.Second, 2, 20},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &sink{addr: netip.MustParseAddr("10.0.0.1")}
			m := New()
			d := m.AddDevice(s)
			m.Lock()
			var accepted *ID
			d.Listen(service, func(id *ID, e *Event) error {
				if e.Type == RequestReceived {
					accepted = id
					return id.Accept(reply(0x20))
				}
				return nil
			})
			m.Unlock()
			r := hostileREQ(1)
			r.LocalCMResponseTimeout, r.MaxCMRetries = test.timeout, 15
			r.Primary.LocalACKTimeout = 31
			deliver := func(msg roce.CMMessage) {
				mad, err := roce.AppendCM(nil, 7, msg)
				if err != nil {
					t.Fatal(err)
				}
				d.Receive(Source{Addr: netip.MustParseAddr("10.0.0.2")}, mad)
			}
			deliver(r)
			if test.mra {
				deliver(&roce.MRA{LocalCommID: 1, RemoteCommID: accepted.local, Message: roce.AnswersREP, ServiceTimeout: 31})
			}
			wait(test.within)
			m.Lock()
			if n := len(s.mads); n < test.min || n > test.max {
				t.Errorf("%+v: %d replies", test, n)
			}
			accepted.Destroy()
			m.Unlock()
		})
	}
}
