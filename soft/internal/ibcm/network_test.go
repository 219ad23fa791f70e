package ibcm

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/roce"
)

// network carries datagrams between the hosts of a test. Its faults are seeded.
type network struct {
	mu    sync.Mutex
	rand  *rand.Rand
	hosts map[netip.Addr]*host
	sent  []roce.CMAttr // each message, also those that are lost

	loss, duplicate float64
	delay, jitter   time.Duration
	order           time.Duration
	drop            func(from, to netip.Addr, m roce.CMMessage) bool
}

func newNetwork(seed uint64) *network {
	return &network{rand: rand.New(rand.NewPCG(seed, 1)), hosts: map[netip.Addr]*host{}, delay: time.Millisecond}
}

// count returns the number of messages of a kind that were sent.
func (n *network) count(a roce.CMAttr) (count int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, s := range n.sent {
		if s == a {
			count++
		}
	}
	return count
}

func (n *network) send(from, to netip.Addr, mad []byte) {
	_, m, err := roce.DecodeCM(mad)
	if err != nil {
		panic(err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.sent = append(n.sent, m.Attr())
	host := n.hosts[to]
	if host == nil || n.drop != nil && n.drop(from, to, m) {
		return
	}
	copies := 1
	if n.rand.Float64() < n.loss {
		copies = 0
	} else if n.rand.Float64() < n.duplicate {
		copies = 2
	}
	for range copies {
		n.order += time.Microsecond // messages arrive in order, unless there is jitter
		delay := n.delay + n.order + time.Duration(n.rand.Float64()*float64(n.jitter))
		time.AfterFunc(delay, func() {
			host.device.Receive(Source{GIDIndex: host.gidIndex(to), Addr: from}, slices.Clone(mad))
		})
	}
}

// host is a device with a manager.
type host struct {
	net     *network
	addrs   []netip.Addr
	guid    verbs.GUID
	manager *Manager
	device  *Device
}

func (n *network) host(m *Manager, guid byte, addrs ...string) *host {
	h := &host{net: n, guid: verbs.GUID{7: guid}, manager: m}
	for _, a := range addrs {
		h.addrs = append(h.addrs, netip.MustParseAddr(a))
	}
	h.device = m.AddDevice(h)
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, a := range h.addrs {
		n.hosts[a] = h
	}
	return h
}

func (h *host) gidIndex(a netip.Addr) int { return slices.Index(h.addrs, a) }

func (h *host) GIDIndex(a netip.Addr) int { return h.gidIndex(a) }

func (h *host) GID(i int) (verbs.GID, bool) {
	if i < 0 || i >= len(h.addrs) {
		return verbs.GID{}, false
	}
	return h.addrs[i].As16(), true
}

func (h *host) Attr() verbs.DeviceAttr {
	return verbs.DeviceAttr{NodeGUID: h.guid, LocalCAAckDelay: 15}
}

func (*host) Acknowledge(uint32) {}

func (h *host) SendMAD(i int, dst netip.Addr, _ uint8, mad []byte) error {
	h.net.send(h.addrs[i], dst, mad)
	return nil
}

// path returns the path from the host to another.
func (h *host) path(to *host) *Path {
	return &Path{SGID: h.addrs[0].As16(), DGID: to.addrs[0].As16(), HopLimit: 64, PKey: 0xffff, MTU: 3, Lifetime: 16, Reversible: true}
}

// endpoint is this side of a connection, with the events that it got.
type endpoint struct {
	*ID
	t      *testing.T
	events []Event
	at     []time.Time // of events
	on     func(*endpoint, *Event) error
}

func (s *endpoint) handle(id *ID, e *Event) error {
	s.events = append(s.events, *e)
	s.at = append(s.at, time.Now())
	if s.on != nil {
		return s.on(s, e)
	}
	return nil
}

// types returns the types of the events.
func (s *endpoint) types() (types []EventType) {
	s.manager().Lock()
	defer s.manager().Unlock()
	for i := range s.events {
		types = append(types, s.events[i].Type)
	}
	return types
}

// expect waits until the side has got events of these types, and no others.
func (s *endpoint) expect(want ...EventType) {
	s.t.Helper()
	for range 10_000 {
		if len(s.types()) >= len(want) {
			break
		}
		wait(100 * time.Millisecond)
	}
	if got := s.types(); !slices.Equal(got, want) {
		s.t.Fatalf("events %v, want %v", got, want)
	}
}

// last returns the last event.
func (s *endpoint) last() *Event { return &s.events[len(s.events)-1] }

// do calls f with the manager's lock held.
func (s *endpoint) do(f func() error) error {
	s.manager().Lock()
	defer s.manager().Unlock()
	return f()
}

func (s *endpoint) must(f func() error) {
	s.t.Helper()
	if err := s.do(f); err != nil {
		s.t.Fatal(err)
	}
}

func (s *endpoint) destroy() { s.do(func() error { s.Destroy(); return nil }) }

// server listens and keeps the endpoints that it got.
type server struct {
	endpoints []*endpoint
	// answer is called for each request, with the lock held.
	answer func(*endpoint, *Event) error
	on     func(*endpoint, *Event) error // events of the endpoints
}

const service = 0x1060000 + 7471

func (h *host) listen(t *testing.T, s *server) *Listener {
	h.manager.Lock()
	defer h.manager.Unlock()
	return h.device.Listen(service, func(id *ID, e *Event) error {
		endpoint := &endpoint{ID: id, t: t, on: s.on}
		if s.answer != nil {
			if err := s.answer(endpoint, e); err != nil {
				return err
			}
		}
		id.Handler = endpoint.handle
		endpoint.events, endpoint.at = append(endpoint.events, *e), append(endpoint.at, time.Now())
		s.endpoints = append(s.endpoints, endpoint)
		return nil
	})
}

func (h *host) newEndpoint(t *testing.T) *endpoint {
	s := &endpoint{t: t}
	h.manager.Lock()
	defer h.manager.Unlock()
	s.ID = h.device.NewID(s.handle, nil)
	return s
}

func request(path *Path, qp uint32) (*Path, verbs.QPType, *roce.REQ) {
	return path, verbs.RC, &roce.REQ{
		ServiceID: service, LocalQPN: qp, StartingPSN: 0x111111, ResponderResources: 3, InitiatorDepth: 4,
		RetryCount: 5, RNRRetryCount: 6, LocalCMResponseTimeout: 20, RemoteCMResponseTimeout: 20, MaxCMRetries: 15,
		PrivateData: []byte("request"), VendorID: 0x15b3, ECEOptions: 0x1234,
	}
}

func reply(qp uint32) *roce.REP {
	return &roce.REP{LocalQPN: qp, StartingPSN: 0x222222, ResponderResources: 4, InitiatorDepth: 3, RNRRetryCount: 7, PrivateData: []byte("reply")}
}

// world runs a test with two hosts.
func world(t *testing.T, seed uint64, f func(t *testing.T, n *network, a, b *host)) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(seed)
		a, b := n.host(New(), 1, "10.0.0.1"), n.host(New(), 2, "10.0.0.2")
		f(t, n, a, b)
	})
}

// acceptAll makes a server that accepts each request with the QP 0x20 and those that follow.
func acceptAll() *server {
	s := &server{}
	qp := uint32(0x1f)
	s.answer = func(endpoint *endpoint, e *Event) error {
		qp++
		return endpoint.Accept(reply(qp))
	}
	return s
}

// confirming makes a side establish the connection when the reply comes.
func confirming(s *endpoint) *endpoint {
	s.on = func(s *endpoint, e *Event) error {
		if e.Type == ReplyReceived {
			return s.Establish()
		}
		return nil
	}
	return s
}

// checkEmpty checks that a manager holds nothing.
func checkEmpty(t *testing.T, m *Manager) {
	t.Helper()
	m.Lock()
	defer m.Unlock()
	if n := len(m.ids) + len(m.listeners) + len(m.remoteIDs) + len(m.remoteQPs) + len(m.requests); n != 0 {
		t.Errorf("%d entries are left: IDs %v, listeners %v, remote IDs %v, remote QPs %v, requests %v", n, m.ids, m.listeners, m.remoteIDs, m.remoteQPs, m.requests)
	}
}

// wait waits until a time has passed and everything that is due has been done.
func wait(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// current returns the side's state.
func (s *endpoint) current() State {
	s.manager().Lock()
	defer s.manager().Unlock()
	return s.State()
}
