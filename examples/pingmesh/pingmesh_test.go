//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/soft"
	"github.com/goverbs/verbs/uverbs"
	"github.com/goverbs/verbs/verbstest"
)

// mesh is hosts a, b, ... with addresses 10.0.0.1, 10.0.0.2, ..., which is all that they tell each
// other over HTTP.
type mesh struct {
	*testing.T
	network *verbstest.Network
	agents  sync.Map // http.Handler by host
}

// RoundTrip implements [http.RoundTripper] within a bubble, where sockets are not.
func (m *mesh) RoundTrip(r *http.Request) (*http.Response, error) {
	h, ok := m.agents.Load(r.URL.Host)
	if !ok {
		return nil, errors.New("connection refused")
	}
	w := httptest.NewRecorder()
	h.(http.Handler).ServeHTTP(w, r)
	return w.Result(), nil
}

func addr(host string) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, host[0] - 'a' + 1}) }

// device makes the device of a host.
func (m *mesh) device(host string) *soft.Device {
	d, err := soft.New(soft.Options{Name: "dev-" + host, Network: m.network, Host: host, Addrs: []netip.Addr{addr(host)}})
	if err != nil {
		m.Fatal(err)
	}
	return d
}

// start runs the agent of a host until stop.
func (m *mesh) start(host string, peers ...string) (a *agent, stop func()) {
	a = newAgent(&options{devices: []string{"dev-" + host}, peers: peers, rate: 100, paths: 2,
		timeout: 500 * time.Millisecond, window: time.Second}, &http.Client{Transport: m})
	m.agents.Store(host, a)
	ctx, cancel := context.WithCancel(m.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.run(ctx, func(*report) {}) }()
	return a, func() {
		m.agents.Delete(host)
		if cancel(); <-ended != nil {
			m.Error("the agent failed")
		}
	}
}

// figures returns what an agent says of all paths to a peer in the last window.
func (a *agent) figures(peer string) (answered, lost int, rtt, responder figures) {
	for _, r := range a.report().Pairs {
		if r.Peer == peer {
			answered, lost, rtt, responder = answered+r.Answered, lost+r.Lost, r.RTT, r.Responder
		}
	}
	return
}

// inMesh runs a test with hosts a and b, on links of 1 and 2 ms.
func inMesh(t *testing.T, test func(m *mesh, a, b *soft.Device)) {
	synctest.Test(t, func(t *testing.T) {
		m := &mesh{T: t, network: verbstest.NewNetwork(verbstest.Options{})}
		verbstest.TraceOnFailure(t, m.network)
		m.network.SetLink(addr("a"), addr("b"), verbstest.Link{Delay: time.Millisecond})
		m.network.SetLink(addr("b"), addr("a"), verbstest.Link{Delay: 2 * time.Millisecond})
		a, b := m.device("a"), m.device("b")
		test(m, a, b)
		for _, d := range []*soft.Device{a, b} {
			for object, n := range d.Resources() {
				if n > 0 {
					t.Errorf("%s has %d %s", d.Name(), n, object)
				}
			}
			d.Close()
		}
	})
}

func near(d, want time.Duration) bool { return d >= want && d < want+20*time.Microsecond }

// The figures show the network's delay and loss, and nothing else.
func TestFigures(t *testing.T) {
	inMesh(t, func(m *mesh, _, _ *soft.Device) {
		a, stopA := m.start("a", "b", "a")
		_, stopB := m.start("b", "a")
		time.Sleep(4500 * time.Millisecond)
		answered, lost, rtt, responder := a.figures("b")
		if answered != 50 || lost != 0 || !near(rtt.Min, 3*time.Millisecond) || !near(rtt.P99, 3*time.Millisecond) || responder.P99 != 0 {
			t.Errorf("answered %d, lost %d, %v, %v", answered, lost, rtt, responder)
		}
		// Of each tenth probe one of the three datagrams is lost.
		dropped := 0
		m.network.SetFilter(func(p *verbstest.Packet) verbstest.Action {
			msg, ok := parse(p.Data[20:][:p.PayloadLen])
			to := map[uint8]string{kindProbe: "b", kindACK: "a", kindDelay: "a"}[msg.kind]
			if ok && p.Src != p.Dst && p.Dst.Addr() == addr(to) && msg.seq%10 == 0 && uint64(msg.kind) == 1+msg.seq/10%3 {
				dropped++
				return verbstest.Drop
			}
			return verbstest.Pass
		})
		answered, lost = 0, 0
		for i := range 11 {
			time.Sleep(time.Second)
			if i == 9 { // the last window is without loss
				m.network.SetFilter(nil)
			}
			n, l, _, _ := a.figures("b")
			answered, lost = answered+n, lost+l
		}
		if answered+lost != 11*50 || lost != dropped || lost < 40 {
			t.Errorf("answered %d, lost %d, dropped %d", answered, lost, dropped)
		}
		stopA()
		stopB()
	})
}

// A cut link loses all probes, a restarted peer none as soon as it is known again.
func TestPeerRestarts(t *testing.T) {
	inMesh(t, func(m *mesh, _, _ *soft.Device) {
		a, stopA := m.start("a", "b")
		_, stopB := m.start("b", "a")
		expect := func(when string, answered, lost int) {
			t.Helper()
			time.Sleep(4 * time.Second)
			if n, l, _, _ := a.figures("b"); n != answered || max(l-lost, lost-l) > 1 { // a loss may be noticed as the window ends
				t.Errorf("%s: answered %d, lost %d", when, n, l)
			}
		}
		time.Sleep(500 * time.Millisecond)
		expect("at first", 100, 0)
		m.network.Partition(addr("b"))
		expect("cut", 0, 100)
		m.network.Heal()
		expect("healed", 100, 0)
		stopB()
		expect("stopped", 0, 100)
		_, stopB = m.start("b", "a")
		expect("restarted", 100, 0)
		stopA()
		stopB()
	})
}

// A removed device is reported, and opened again when it is back.
func TestDeviceReturns(t *testing.T) {
	inMesh(t, func(m *mesh, device, _ *soft.Device) {
		a, stopA := m.start("a", "b")
		b, stopB := m.start("b", "a")
		time.Sleep(4500 * time.Millisecond)
		m.network.Remove(addr("a"))
		time.Sleep(4 * time.Second)
		if r := a.report(); r.Endpoints[0].Error == "" || len(r.Pairs) > 0 {
			t.Errorf("without its device the agent says %+v", r)
		}
		if r := b.report(); len(r.Pairs) > 0 {
			t.Errorf("without the peer's device the agent says %+v", r)
		}
		defer m.device("a").Close()
		time.Sleep(5 * time.Second)
		for peer, agent := range map[string]*agent{"a": b, "b": a} {
			if answered, lost, _, _ := agent.figures(peer); answered != 100 || lost != 0 {
				t.Errorf("with another device: to %s answered %d, lost %d", peer, answered, lost)
			}
		}
		stopA()
		stopB()
	})
}

// A peer that lies makes no figures: whatever it does is counted.
func TestLies(t *testing.T) {
	inMesh(t, func(m *mesh, _, _ *soft.Device) {
		liar, err := uverbs.Find("dev-b")
		if err != nil {
			t.Fatal(err)
		}
		e, err := openEndpoint(liar, &options{paths: 1, peers: []string{"a"}})
		if err != nil {
			t.Fatal(err)
		}
		claim := func(d document) {
			m.agents.Store("b", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { json.NewEncoder(w).Encode(d) }))
		}
		endpoints := []remote{{"x", e.addr, e.qkey}}
		claim(document{Instance: "liar", Endpoints: endpoints})
		a, stop := m.start("a", "b")
		time.Sleep(500 * time.Millisecond)
		e.update("a", a.document().Endpoints, true, func(string) *probeStats { return &probeStats{} })
		to := e.table.Load().probed[0].to[0]
		say := func(b []byte) {
			copy(e.mr.Bytes(), b)
			wr := verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled, SGL: []verbs.SGE{e.mr.SGE(0, len(b))}, To: to}
			if _, err := e.qp.PostSend(wr); err != nil {
				t.Fatal(err)
			}
		}
		lie := func(m message) {
			b := make([]byte, messageSize)
			m.put(b)
			say(b)
		}
		for _, size := range []int{0, 1, messageSize - 1, messageSize, messageSize + 1, 1024, 4096} { // bad
			say(bytes.Repeat([]byte{0xff}, size))
		}
		lie(message{kind: 4})                    // bad
		lie(message{kind: kindACK, path: 200})   // bad
		lie(message{kind: kindDelay, delay: -1}) // bad
		lie(message{kind: kindACK, seq: 1})      // stale
		lie(message{kind: kindProbe, path: 15})  // answered on a path that there is
		time.Sleep(time.Second)
		counts := func() [3]uint64 {
			return [3]uint64{a.report().Endpoints[0].Unknown, a.report().Endpoints[0].Bad, a.report().Endpoints[0].Stale}
		}
		if got := counts(); got != [3]uint64{0, 10, 1} {
			t.Errorf("unknown, bad, stale: %v", got)
		}
		// Now it is probed, and says that it has taken a longer time than there was, or answers
		// twice.
		claim(document{Instance: "liar", Endpoints: endpoints, Knows: map[string]int{a.id: 1}})
		done := make(chan bool)
		go func() {
			defer close(done)
			for n := 0; n < 100; {
				wc, err := e.cq.Next(m.Context())
				if err != nil {
					t.Error(err)
					return
				}
				if msg, ok := parse(e.mr.Bytes()[int(wc.ID)*e.room:][verbs.GRHSize:max(verbs.GRHSize, wc.ByteLen)]); ok && wc.Opcode == verbs.WCRecv && msg.kind == kindProbe {
					n++
					lie(message{kind: kindACK, seq: msg.seq})
					lie(message{kind: kindACK, seq: msg.seq})
					lie(message{kind: kindDelay, seq: msg.seq, delay: int64(time.Hour)})
				}
			}
		}()
		<-done
		time.Sleep(10 * time.Millisecond)
		if got := counts(); got != [3]uint64{0, 110, 101} {
			t.Errorf("after impossible delays: unknown, bad, stale: %v", got)
		}
		// It is not known any more.
		claim(document{Instance: "liar"})
		time.Sleep(2 * time.Second)
		lie(message{kind: kindProbe})
		time.Sleep(2 * time.Second)
		if got := counts(); got != [3]uint64{1, 110, 101} {
			t.Errorf("as an unknown sender: unknown, bad, stale: %v", got)
		}
		stop()
		if err := e.close(); err != nil {
			t.Error(err)
		}
	})
}

// A peer's document is bounded.
func TestDocuments(t *testing.T) {
	good := remote{"mlx5_0", verbs.QPAddr{GID: verbs.GID{10: 0xff, 11: 0xff, 12: 10, 15: 1}, QPNum: 17}, 1}
	if err := (&document{Endpoints: []remote{good}}).check(); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(d *document){
		"name":      func(d *document) { d.Endpoints[0].Name = "a\n" },
		"long name": func(d *document) { d.Endpoints[0].Name = strings.Repeat("a", 65) },
		"GSI":       func(d *document) { d.Endpoints[0].Addr.QPNum = 1 },
		"QKey":      func(d *document) { d.Endpoints[0].QKey = 1 << 31 },
		"no GID":    func(d *document) { d.Endpoints[0].Addr.GID = verbs.GID{} },
		"multicast": func(d *document) { d.Endpoints[0].Addr.GID = verbs.GID{0: 0xff} },
		"instance":  func(d *document) { d.Instance = strings.Repeat("a", 65) },
		"many":      func(d *document) { d.Endpoints = slices.Repeat(d.Endpoints, 65) },
	} {
		d := document{Endpoints: []remote{good}}
		if change(&d); d.check() == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// Probes, their answers and their figures allocate nothing.
func TestAllocations(t *testing.T) {
	labtest.Require(t)
	device := labtest.Must(uverbs.Find(labtest.RoCE))(t)
	e := labtest.Must(openEndpoint(device, &options{paths: 2, peers: []string{""}}))(t)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- e.receive(ctx) }()
	p := &probeStats{paths: make([]window, 2)}
	e.update("", []remote{{"", e.addr, e.qkey}}, true, func(string) *probeStats { return p })
	probes := 0
	allocs := testing.AllocsPerRun(100, func() {
		if ok, err := e.probe(e.now()); !ok || err != nil {
			t.Fatal(ok, err)
		}
		for probes++; ; runtime.Gosched() {
			p.mu.Lock()
			n := p.paths[0].answered + p.paths[1].answered
			p.mu.Unlock()
			if n == probes {
				return
			}
		}
	})
	if allocs > 0 && !labtest.Race {
		t.Errorf("a probe allocates %v times", allocs)
	}
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	labtest.Check(t, e.close())
}
