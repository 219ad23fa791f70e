package ibcm

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/roce"
)

// sink is a device that keeps what it sends.
type sink struct {
	addr netip.Addr
	mads [][]byte
}

func (*sink) Acknowledge(uint32) {}

func (s *sink) SendMAD(_ int, _ netip.Addr, _ uint8, mad []byte) error {
	s.mads = append(s.mads, mad)
	return nil
}

func (s *sink) GIDIndex(a netip.Addr) int {
	if a == s.addr {
		return 0
	}
	return -1
}

func (s *sink) GID(i int) (verbs.GID, bool) { return s.addr.As16(), i == 0 }
func (s *sink) Attr() verbs.DeviceAttr {
	return verbs.DeviceAttr{NodeGUID: verbs.GUID{7: 9}, LocalCAAckDelay: 15}
}

// FuzzMAD passes sequences of datagrams to a manager with a listener, whose handler accepts,
// rejects, delays or refuses requests, and with connections in other states. In each datagram
// the IDs of this side may stand for numbers that a peer knows. The manager does not panic,
// its tables agree with its IDs, what it sends are messages, and nothing is left in the end.
func FuzzMAD(f *testing.F) {
	peer := netip.MustParseAddr("10.0.0.2")
	local := netip.MustParseAddr("10.0.0.1")
	add := func(messages ...roce.CMMessage) {
		var b []byte
		for _, m := range messages {
			var err error
			if b, err = roce.AppendCM(append(b, 0), 7, m); err != nil {
				f.Fatal(err)
			}
		}
		f.Add(b)
	}
	path := roce.CMPath{LocalGID: peer.As16(), RemoteGID: local.As16(), HopLimit: 64, LocalACKTimeout: 17}
	req := &roce.REQ{LocalCommID: 5, ServiceID: service, LocalCAGUID: 2, LocalQPN: 3, Primary: path, MaxCMRetries: 15, PrivateData: []byte{4}}
	other := *req
	other.LocalCommID, other.LocalQPN = 6, 4
	add(req)
	add(req, req, &roce.RTU{LocalCommID: 5}, &roce.DREQ{LocalCommID: 5, RemoteQPN: 1}, &roce.DREP{LocalCommID: 5})
	add(req, &roce.REJ{LocalCommID: 5, Reason: roce.RejTimeout, Info: binary.BigEndian.AppendUint64(nil, 2)}, &other)
	add(req, &roce.MRA{LocalCommID: 5, Message: roce.AnswersREP, ServiceTimeout: 31}, &roce.RTU{LocalCommID: 5})
	add(&roce.REP{LocalCommID: 8, LocalQPN: 9, LocalCAGUID: 2}, &roce.REP{LocalCommID: 8, LocalQPN: 9, LocalCAGUID: 2}, &roce.DREQ{LocalCommID: 8})
	add(&roce.MRA{Message: roce.AnswersREQ}, &roce.REJ{Message: roce.AnswersREQ, Reason: roce.RejStaleConn})
	add(&roce.SIDRREQ{RequestID: 5, ServiceID: service}, &roce.SIDRREQ{RequestID: 5, ServiceID: service}, &roce.SIDRREP{QKey: 1})
	f.Fuzz(func(t *testing.T, data []byte) {
		m, s := New(), &sink{addr: local}
		d := m.AddDevice(s)
		var ids []*ID
		handle := func(id *ID, e *Event) error {
			if e.Type == ReplyReceived {
				return id.Establish()
			}
			return nil
		}
		m.Lock()
		l := d.Listen(service, func(id *ID, e *Event) error {
			if len(ids) > 20 {
				return ErrNoRoom
			}
			switch e.PrivateData[0] & 7 {
			case 0:
				return errTest
			case 1:
				return ErrNoRoom
			case 2:
				id.Reject(roce.RejConsumerDefined, nil)
			case 3:
				id.Delay(20)
			case 4:
				id.Accept(&roce.REP{LocalQPN: 1})
			case 5:
				id.Answer(&roce.SIDRREP{QPN: 1, QKey: 1})
			}
			id.Handler = handle
			ids = append(ids, id)
			return nil
		})
		to := &Path{SGID: local.As16(), DGID: peer.As16(), Lifetime: 16}
		connecting, resolving := d.NewID(handle, nil), d.NewID(handle, nil)
		connecting.Connect(to, verbs.RC, &roce.REQ{ServiceID: service, LocalQPN: 1, MaxCMRetries: 1})
		resolving.Resolve(to, 0, 1, &roce.SIDRREQ{ServiceID: service})
		ids = append(ids, connecting, resolving)
		m.Unlock()

		for mad := range slices.Chunk(data, 1+roce.MADSize) {
			which, mad := mad[0], slices.Clone(mad[1:])
			if len(mad) == roce.MADSize {
				// Put this side's ID where messages have it.
				m.Lock()
				id := ids[int(which>>1)%len(ids)]
				switch roce.CMAttr(binary.BigEndian.Uint16(mad[16:])) {
				case roce.AttrSIDRREP:
					binary.BigEndian.PutUint32(mad[roce.MADHeaderSize:], id.local)
				case roce.AttrREQ, roce.AttrSIDRREQ:
				default:
					binary.BigEndian.PutUint32(mad[roce.MADHeaderSize+4:], id.local)
				}
				m.Unlock()
			}
			d.Receive(Source{GIDIndex: int(which & 1), Addr: peer}, mad)
			m.Lock()
			checkTables(t, m)
			m.Unlock()
		}
		m.Lock()
		for _, id := range ids {
			id.Destroy()
		}
		l.Close()
		m.Unlock()
		checkEmpty(t, m)
		for _, mad := range s.mads {
			if _, _, err := roce.DecodeCM(mad); err != nil {
				t.Fatalf("sent %x: %v", mad, err)
			}
		}
	})
}

var errTest = errors.New("refused")

// checkTables checks that the tables have what the IDs say.
func checkTables(t *testing.T, m *Manager) {
	t.Helper()
	for key, id := range m.remoteIDs {
		if byID, _ := id.remoteKeys(); byID != key || !id.inRemote || id.state == Idle || id.state == Timewait {
			t.Fatalf("%v is %+v", key, id)
		}
	}
	for key, id := range m.remoteQPs {
		if _, byQP := id.remoteKeys(); byQP != key || !id.inRemote {
			t.Fatalf("%v is %+v", key, id)
		}
	}
	for key, id := range m.requests {
		if id.requestKey() != key || id.state != ResolveRcvd {
			t.Fatalf("%v is %+v", key, id)
		}
	}
	for local, id := range m.ids {
		repeated := id.state == RequestSent || id.state == MRARequestRcvd || id.state == ReplySent || id.state == MRAReplyRcvd ||
			id.state == DisconnectSent || id.state == ResolveSent
		if id.local != local || repeated != (id.pending != nil) {
			t.Fatalf("%d is %+v", local, id)
		}
	}
}
