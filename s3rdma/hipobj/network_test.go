//go:build linux

package hipobj

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/soft"
	"github.com/goverbs/verbs/uverbs"
	"github.com/goverbs/verbs/verbstest"
)

const serverAddr, clientAddr = "10.0.0.1", "10.0.0.2"

// newHosts makes a server and a client on a network in memory.
func newHosts(t *testing.T, opt Options) (*verbstest.Network, *site, *Client) {
	t.Helper()
	labtest.Require(t)
	n := verbstest.NewNetwork(verbstest.Options{})
	verbstest.TraceOnFailure(t, n)
	open := func(addr string) *uverbs.Context {
		d := labtest.Made(soft.New(soft.Options{Network: n, Host: addr, Addrs: []netip.Addr{netip.MustParseAddr(addr)}}))(t)
		return labtest.Made(uverbs.Open(d.Name()))(t)
	}
	s := newSite(t, open(serverAddr), opt)
	return n, s, s.newClient(t, open(clientAddr), "u")
}

// TestPutsAreSentOnce counts the packets of PUTs that are sent again. The client's WRITE completes
// before READY is sent, so none can have waited for it.
func TestPutsAreSentOnce(t *testing.T) {
	n, s, c := newHosts(t, Options{})
	c.Connect.Timeout = 20 // 4 s: what is sent again was dropped, and not slow
	type packet struct{ qp, psn uint32 }
	var mu sync.Mutex
	seen, again := map[packet]bool{}, 0
	n.SetFilter(func(p *verbstest.Packet) verbstest.Action {
		mu.Lock()
		defer mu.Unlock()
		if id := (packet{p.QP, p.PSN}); p.Kind == verbstest.Write && seen[id] {
			again++
		} else if p.Kind == verbstest.Write {
			seen[id] = true
		}
		return verbstest.Pass
	})
	const puts = 100
	m := c.memory(t, make([]byte, 4096))
	for range puts {
		labtest.Must(c.Put(t.Context(), "/b/k", m))(t)
	}
	for range puts {
		x, _ := s.prepared(t, c, Put, "/b/k", m)
		labtest.Check(t, x.post(t, verbs.SendWR{Opcode: verbs.OpRDMAWriteImm, Imm: x.Cookie, RemoteAddr: x.addr, RKey: x.rkey}))
		labtest.Must(x.send(t.Context(), "ready"))(t)
	}
	mu.Lock()
	defer mu.Unlock()
	if again > 0 || len(seen) < 2*puts {
		t.Errorf("of %d packets %d were sent again", len(seen), again)
	}
}

// TestLateReceive has a client that posts its receive of a GET when the server has been refused
// more often than a queue pair repeats.
func TestLateReceive(t *testing.T) {
	for _, size := range []int{100, 20000} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			n, s, c := newHosts(t, Options{})
			want := labtest.RandomBytes(size, size)
			s.store.objects.Store("/b/k", want)
			m := c.memory(t, make([]byte, size))
			x := labtest.Must(c.begin(Request{Op: Get, Target: "/b/k"}, m))(t)
			defer x.qp.Close()
			h := labtest.Must(x.send(t.Context(), "prepare"))(t)
			x.session = get(h, "session")
			token := labtest.Must(s.Session("u", x.session))(t).Token()
			labtest.Check(t, x.qp.Connect(x.Peer, verbs.QPAddr{QPNum: token.QPNum, PSN: uint32(labtest.Must(s.Session("u", x.session))(t).PSN()), GID: token.GID}, uverbs.ConnectOptions{Access: verbs.AccessRemoteWrite}))
			refused := make(chan struct{}, 1000)
			n.SetFilter(func(p *verbstest.Packet) verbstest.Action {
				if p.Kind == verbstest.RNRNak {
					refused <- struct{}{}
				}
				return verbstest.Pass
			})
			answer := make(chan error, 1)
			go func() {
				_, err := x.send(t.Context(), "ready")
				answer <- err
			}()
			for range 10 {
				<-refused
			}
			labtest.Must(x.qp.PostRecv(verbs.RecvWR{}))(t)
			labtest.Check(t, <-answer, x.complete(labtest.Within(t, waitTime)))
			if string(m.MR.Bytes()) != string(want) {
				t.Error("contents differ")
			}
		})
	}
}

// TestNoReceive has a client that posts no receive at all.
func TestNoReceive(t *testing.T) {
	_, s, c := newHosts(t, Options{})
	s.store.objects.Store("/b/k", make([]byte, 100))
	x := labtest.Must(c.begin(Request{Op: Get, Target: "/b/k"}, c.memory(t, make([]byte, 100))))(t)
	defer x.qp.Close()
	h := labtest.Must(x.send(t.Context(), "prepare"))(t)
	x.session = get(h, "session")
	session := labtest.Must(s.Session("u", x.session))(t)
	labtest.Check(t, x.qp.Connect(x.Peer, verbs.QPAddr{QPNum: session.Token().QPNum, PSN: session.PSN(), GID: session.Token().GID}, uverbs.ConnectOptions{Access: verbs.AccessRemoteWrite}))
	if _, err := x.send(t.Context(), "ready"); statusOfAnswer(err) != http.StatusConflict {
		t.Errorf("READY: %v", err)
	}
	labtest.Must(x.send(t.Context(), "cancel"))(t)
}

// TestLostAcknowledgement loses all that the server sends after the bytes of a PUT. The object is
// stored, and the client learns it from READY, also if it has given up before.
func TestLostAcknowledgement(t *testing.T) {
	for _, late := range []bool{false, true} {
		n, s, c := newHosts(t, Options{})
		c.Connect = fast
		n.SetFilter(func(p *verbstest.Packet) verbstest.Action {
			if p.Kind == verbstest.Ack {
				return verbstest.Drop
			}
			return verbstest.Pass
		})
		if late {
			cancelled := make(chan struct{})
			c.HTTP = &http.Client{Transport: transport(func(step string, next func() (*http.Response, error)) (*http.Response, error) {
				resp, err := next()
				switch step {
				case "ready":
					<-cancelled
				case "cancel":
					close(cancelled)
				}
				return resp, err
			})}
		}
		if _, err := c.Put(t.Context(), "/b/k", c.memory(t, []byte("bytes"))); err != nil || string(s.store.get("/b/k")) != "bytes" {
			t.Errorf("answer after the failure: %v: %v, stored %q", late, err, s.store.get("/b/k"))
		}
	}
}

// TestNetworkFails cuts the network of RDMA. Both sides end, and hold nothing.
func TestNetworkFails(t *testing.T) {
	n, s, c := newHosts(t, Options{Connect: fast, MoveTime: 5 * time.Second})
	c.Connect = fast
	s.store.objects.Store("/b/k", make([]byte, 100000))
	m := c.memory(t, make([]byte, 100000))
	n.Partition(netip.MustParseAddr(serverAddr))
	if _, err := c.Get(t.Context(), "/b/k", 0, m); statusOfAnswer(err) != http.StatusConflict {
		t.Errorf("GET: %v", err)
	}
	if _, err := c.Put(t.Context(), "/b/new", m); !errors.Is(err, verbs.WCRetryExcErr) {
		t.Errorf("PUT: %v", err)
	}
	if n := s.Stats().Sessions; n != 0 || s.store.get("/b/new") != nil {
		t.Errorf("%d sessions, and stored %d bytes", n, len(s.store.get("/b/new")))
	}
	n.Heal()
	labtest.Must(c.Put(t.Context(), "/b/new", m))(t)
}
