package verbstest_test

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rconn"
	"github.com/goverbs/verbs/rmsg"
	"github.com/goverbs/verbs/rsock"
	"github.com/goverbs/verbs/soft"
	"github.com/goverbs/verbs/verbstest"
)

// machines are two machines on a network, the second of which listens.
type machines struct {
	*verbstest.Network
	client, server *cm.Transport
	listener       *cm.Listener
}

func newMachines(t *testing.T) *machines {
	t.Helper()
	m := &machines{Network: verbstest.NewNetwork(verbstest.Options{})}
	m.client, m.server = verbstest.NewHost(t, m.Network, "10.0.0.1"), verbstest.NewHost(t, m.Network, "10.0.0.2")
	var err error
	if m.listener, err = (&cm.ListenConfig{Transport: m.server, Backlog: 1 << 14}).Listen(t.Context(), addr); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.listener.Close() })
	return m
}

// connect connects the machines by a dialer, whose transport is that of the first.
func (m *machines) connect(t *testing.T, d cm.Dialer) (client, server *cm.Endpoint) {
	t.Helper()
	d.Transport = m.client
	return labtest.DialAccept(t, func() (*cm.Endpoint, error) { return d.Dial(t.Context(), addr) }, m.accept(t))
}

func (m *machines) accept(t *testing.T) func() (*cm.Endpoint, error) {
	return func() (*cm.Endpoint, error) {
		r, err := m.listener.Accept(t.Context())
		if err != nil {
			return nil, err
		}
		return r.Accept(t.Context(), cm.Options{SharePD: true})
	}
}

// lose loses all packets, or none.
func (m *machines) lose(all bool) {
	l := verbstest.Link{}
	if all {
		l.Loss = 1
	}
	m.SetLinks(l)
}

// TestLostEnd loses what says that a connection has ended, for a second. The peer learns of it
// nevertheless, whoever closes, and whatever the endpoint shares with others, which are released at
// once.
func TestLostEnd(t *testing.T) {
	shared := func(t *testing.T, m *machines) cm.Dialer {
		other, peer := m.connect(t, cm.Dialer{})
		t.Cleanup(func() { other.Close(); peer.Close() })
		return cm.Dialer{Options: cm.Options{PD: other.PD, SendCQ: other.SendCQ, RecvCQ: other.RecvCQ}}
	}
	own := func(*testing.T, *machines) cm.Dialer { return cm.Dialer{Options: cm.Options{SharePD: true}} }
	for _, c := range []struct {
		name   string
		dialer func(*testing.T, *machines) cm.Dialer
		end    func(m *machines, client, server *cm.Endpoint) (peer *cm.Endpoint, err error)
	}{
		{"close", own, func(_ *machines, c, s *cm.Endpoint) (*cm.Endpoint, error) { return s, c.Close() }},
		{"accepted", own, func(_ *machines, c, s *cm.Endpoint) (*cm.Endpoint, error) { return c, s.Close() }},
		{"accepted, and the port is used again", own, func(m *machines, c, s *cm.Endpoint) (*cm.Endpoint, error) {
			err := errors.Join(s.Close(), m.listener.Close())
			l, lerr := (&cm.ListenConfig{Transport: m.server}).Listen(context.Background(), addr)
			m.listener = l
			return c, errors.Join(err, lerr)
		}},
		{"shared CQs", shared, func(_ *machines, c, s *cm.Endpoint) (*cm.Endpoint, error) { return s, c.Close() }},
		{"fixed port", func(*testing.T, *machines) cm.Dialer {
			return cm.Dialer{LocalAddr: netip.MustParseAddrPort("10.0.0.1:5000")}
		}, func(_ *machines, c, s *cm.Endpoint) (*cm.Endpoint, error) { return s, c.Close() }},
		{"disconnect", own, func(_ *machines, c, s *cm.Endpoint) (*cm.Endpoint, error) {
			c.Disconnect()
			return s, c.Close()
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMachines(t)
				client, server := m.connect(t, c.dialer(t, m))
				defer client.Close()
				defer server.Close()
				begin, before := time.Now(), [...]int{m.client.Stats().Endpoints, m.server.Stats().Endpoints}
				m.lose(true)
				peer, err := c.end(m, client, server)
				if err != nil {
					t.Error(err)
				}
				if s, p := m.client.Stats(), m.server.Stats(); c.name != "shared CQs" && s.Endpoints+p.Endpoints != before[0]+before[1]-1 || s.Leaving+p.Leaving != 1 {
					t.Errorf("after Close: %+v, %+v", s, p)
				}
				time.Sleep(time.Second)
				m.lose(false)
				select {
				case <-peer.Done():
					t.Logf("the end is seen after %v: %v", time.Since(begin), peer.Err())
				case <-time.After(10 * time.Second):
					t.Error("the peer never learns of the end")
				}
				time.Sleep(100 * time.Millisecond) // for the answer
				if s, p := m.client.Stats(), m.server.Stats(); s.Leaving+p.Leaving != 0 {
					t.Errorf("after the answer: %+v, %+v", s, p)
				}
			})
		})
	}
}

// TestRejectedLate accepts connections whose confirmation does not come within the acceptor's time: to the
// dialing side, which has confirmed, the rejection is the end of the connection.
func TestRejectedLate(t *testing.T) {
	test := func(t *testing.T, client, server *cm.Transport, dial func() *cm.Endpoint) {
		l := labtest.Made((&cm.ListenConfig{Transport: server}).Listen(t.Context(), addr))(t)
		go func() {
			r, err := l.Accept(t.Context())
			if err == nil {
				ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
				defer cancel()
				_, err = r.Accept(ctx, cm.Options{})
			}
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("accept: %v", err)
			}
		}()
		e := dial()
		defer e.Close()
		select {
		case <-e.Done():
		case <-time.After(time.Minute):
			t.Fatal("the connection does not end")
		}
		if _, ok := errors.AsType[*cm.RejectedError](e.Err()); !ok || !errors.Is(e.Err(), verbs.ErrDisconnected) {
			t.Errorf("ended with %v", e.Err())
		}
	}
	t.Run("Dialer", func(t *testing.T) {
		withRTU(t, func(t *testing.T, client, server *cm.Transport) {
			test(t, client, server, func() *cm.Endpoint {
				return labtest.Must((&cm.Dialer{Transport: client}).Dial(t.Context(), addr))(t)
			})
		})
	})
	t.Run("Channel", func(t *testing.T) {
		withRTU(t, func(t *testing.T, client, server *cm.Transport) {
			test(t, client, server, func() *cm.Endpoint {
				ch := labtest.Made(client.NewChannel())(t)
				e := labtest.Must(ch.Connect(resolve(t, ch), cm.Options{}))(t)
				expectEvent(t, ch, cm.Established)
				expectEvent(t, ch, cm.Rejected)
				return e
			})
		})
	})
}

// TestChannelClosed closes the channel of a connection: its endpoint ends, and what it has posted is flushed.
func TestChannelClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := verbstest.NewNetwork(verbstest.Options{})
		client, server := verbstest.NewHost(t, network, "10.0.0.1"), verbstest.NewHost(t, network, "10.0.0.2")
		l := labtest.Made((&cm.ListenConfig{Transport: server}).Listen(t.Context(), addr))(t)
		go func() {
			if r, err := l.Accept(t.Context()); err == nil {
				r.Accept(t.Context(), cm.Options{})
			}
		}()
		ch := labtest.Made(client.NewChannel())(t)
		e := labtest.Must(ch.Connect(resolve(t, ch), cm.Options{}))(t)
		defer e.Close()
		expectEvent(t, ch, cm.Established)
		mr := labtest.Must(e.AllocMR(64, verbs.AccessLocalWrite))(t)
		if _, err := e.QP.PostRecv(verbs.RecvWR{ID: 7, SGL: []verbs.SGE{mr.SGE(0, 64)}}); err != nil {
			t.Fatal(err)
		}
		labtest.Check(t, ch.Close())
		select {
		case <-e.Done():
		case <-time.After(time.Minute):
			t.Fatal("the connection does not end")
		}
		var wcs [2]verbs.WC
		if n, err := e.RecvCQ.PollWait(t.Context(), wcs[:]); n != 1 || wcs[0].ID != 7 || wcs[0].Status != verbs.WCFlushErr || !errors.Is(e.Err(), verbs.ErrClosed) {
			t.Errorf("ended with %v, %d completions %+v, %v", e.Err(), n, wcs[:n], err)
		}
	})
}

// TestNeverConfirmed accepts a connection, without a limit, of a peer that never confirms: it does not make
// the QP ready, and asks for more time each time that the acceptance is repeated.
func TestNeverConfirmed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := verbstest.NewNetwork(verbstest.Options{})
		client, server := verbstest.NewHost(t, network, "10.0.0.1"), verbstest.NewHost(t, network, "10.0.0.2")
		l := labtest.Made((&cm.ListenConfig{Transport: server}).Listen(t.Context(), addr))(t)
		ch := labtest.Made(client.NewChannel())(t)
		id := resolve(t, ch).ID
		labtest.Close(t, id)
		labtest.Check(t, id.Connect(cm.ConnParam{QPNum: 1}))
		r := labtest.Must(l.Accept(t.Context()))(t)
		begin := time.Now()
		e, err := r.Accept(t.Context(), cm.Options{})
		if took := time.Since(begin); !errors.Is(err, context.DeadlineExceeded) || took < 70*time.Second || took > 71*time.Second {
			t.Errorf("accepted %v, %v, after %v", e, err, took)
		}
	})
}

// resolve resolves the way to addr for a new ID of a channel, and returns the last event.
func resolve(t *testing.T, ch *cm.Channel) cm.Event {
	t.Helper()
	id := labtest.Must(ch.NewID(0))(t)
	labtest.Check(t, id.ResolveAddr(netip.AddrPort{}, netip.MustParseAddrPort(addr), time.Second))
	expectEvent(t, ch, cm.AddrResolved)
	labtest.Check(t, id.ResolveRoute(time.Second))
	return expectEvent(t, ch, cm.RouteResolved)
}

// expectEvent returns the next event of a channel, which has a type.
func expectEvent(t *testing.T, ch *cm.Channel, want cm.EventType) cm.Event {
	t.Helper()
	ev, err := ch.Next(t.Context())
	if err != nil || ev.Type != want {
		t.Fatalf("%v, %v, want %v", ev.Type, err, want)
	}
	return ev
}

// TestLostEndOfChannel does so with an endpoint of a cm.Channel, whose program sees nothing of it.
func TestLostEndOfChannel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachines(t)
		ch := labtest.Made(m.client.NewChannel())(t)
		client := labtest.Must(ch.Connect(resolve(t, ch), cm.Options{}))(t)
		_, peer := labtest.DialAccept(t, func() (*cm.Endpoint, error) { expectEvent(t, ch, cm.Established); return client, nil }, m.accept(t))
		defer peer.Close()
		m.lose(true)
		if err := client.Close(); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
		m.lose(false)
		select {
		case <-peer.Done():
		case <-time.After(10 * time.Second):
			t.Error("the peer never learns of the end")
		}
		synctest.Wait()
		if ev, ok, err := ch.TryNext(); ok || err != nil {
			t.Errorf("event of a closed endpoint: %+v, %v", ev, err)
		}
	})
}

// TestLostEndOfLayers does so with what stands on cm: none needs its keep-alive.
func TestLostEndOfLayers(t *testing.T) {
	const port = ":7472"
	for name, connect := range map[string]func(*testing.T, *machines) (client interface{ Close() error }, ended func() error){
		"rsock": func(t *testing.T, m *machines) (interface{ Close() error }, func() error) {
			l := labtest.Made((&rsock.ListenConfig{Transport: m.server}).Listen(t.Context(), "rdma", "10.0.0.2"+port))(t)
			c, s := labtest.DialAccept(t, func() (net.Conn, error) { return (&rsock.Dialer{Transport: m.client}).Dial("rdma", "10.0.0.2"+port) }, l.Accept)
			labtest.Check(t, c.(*rsock.Conn).SetLinger(0)) // otherwise it sends a message, reliably
			labtest.Check(t, s.SetDeadline(time.Now().Add(time.Minute)))
			return c, func() error { defer s.Close(); _, err := s.Read(make([]byte, 1)); return err }
		},
		"rmsg": func(t *testing.T, m *machines) (interface{ Close() error }, func() error) {
			l := labtest.Made((&rmsg.ListenConfig{Options: rmsg.Options{Transport: m.server}}).Listen(t.Context(), "10.0.0.2"+port))(t)
			d := rmsg.Dialer{Options: rmsg.Options{Transport: m.client}}
			c, s := labtest.DialAccept(t, func() (*rmsg.Conn, error) { return d.Dial(t.Context(), "10.0.0.2"+port) },
				func() (*rmsg.Conn, error) { return l.Accept(t.Context()) })
			return c, func() error { defer s.Close(); _, err := s.Recv(labtest.Within(t, time.Minute)); return err }
		},
		"rconn": func(t *testing.T, m *machines) (interface{ Close() error }, func() error) {
			l := labtest.Made((&rconn.ListenConfig{Transport: m.server}).Listen(t.Context(), "10.0.0.2"+port))(t)
			c, s := labtest.DialAccept(t, func() (*rconn.Conn, error) {
				return (&rconn.Dialer{Transport: m.client}).Dial(t.Context(), "10.0.0.2"+port)
			},
				func() (*rconn.Conn, error) {
					r, err := l.Accept(t.Context())
					if err != nil {
						return nil, err
					}
					return r.Accept(t.Context(), rconn.Options{})
				})
			return c, func() error { defer s.Close(); return cmp.Or(awaitDone(labtest.Within(t, time.Minute), s), s.Err()) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMachines(t)
				client, ended := connect(t, m)
				m.lose(true)
				begin := time.Now()
				if err := client.Close(); err != nil {
					t.Error(err)
				}
				time.Sleep(time.Second)
				m.lose(false)
				err := ended()
				if took := time.Since(begin); err == nil || took > 10*time.Second {
					t.Errorf("the peer learns of the end after %v: %v", took, err)
				}
			})
		})
	}
}

// TestDeadPeer closes connections whose peer is gone: nothing is left after the last repetition,
// and the end of the transport waits a second at most.
func TestDeadPeer(t *testing.T) {
	for _, wait := range []time.Duration{0, 2 * time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			m := newMachines(t)
			client, server := m.connect(t, cm.Dialer{})
			m.lose(true)
			client.Close()
			time.Sleep(wait)
			if s := m.client.Stats(); wait > 0 && s.Channels != 0 {
				t.Errorf("after %v: %+v", wait, s)
			}
			begin := time.Now()
			if err := m.client.Close(); err != nil || time.Since(begin) > time.Second {
				t.Errorf("Close: %v after %v", err, time.Since(begin))
			}
			server.Close()
			m.server.CloseIdle() // does not wait
			if s := m.server.Stats(); s != (cm.TransportStats{Channels: 1, IDs: 1}) {
				t.Errorf("after CloseIdle: %+v", s)
			}
		})
	}
}

// TestManyEnds closes many connections at a time. Few peers are asked at a time: those of a machine
// that has died do not hold up others, and each is told once at least.
func TestManyEnds(t *testing.T) {
	const n, asked = 300, 64
	for _, dead := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			m := newMachines(t)
			var clients, servers [n]*cm.Endpoint
			for i := range n {
				clients[i], servers[i] = m.connect(t, cm.Dialer{Options: cm.Options{SharePD: true}})
			}
			begin := time.Now()
			m.lose(dead)
			for _, c := range clients {
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			}
			if !dead {
				for _, s := range servers {
					<-s.Done()
				}
				time.Sleep(100 * time.Millisecond)
				if s := m.client.Stats(); s.Leaving != 0 || time.Since(begin) > time.Second {
					t.Errorf("after %v: %+v", time.Since(begin), s)
				}
			} else {
				if s := m.client.Stats(); s.IDs != 0 || s.Leaving != n {
					t.Errorf("after Close: %+v", s)
				}
				time.Sleep(2 * time.Second)
				if s := m.client.Stats(); s.Leaving != asked {
					t.Errorf("after %v: %+v", time.Since(begin), s)
				}
				m.lose(false)
				for _, s := range servers[:asked] {
					<-s.Done()
				}
				if took := time.Since(begin); took > 10*time.Second {
					t.Errorf("the ends were seen after %v", took)
				}
			}
			for _, s := range servers {
				s.Close()
			}
		})
	}
}

// TestMoreEnds closes more connections than the transport remembers: the rest ends at once.
func TestMoreEnds(t *testing.T) {
	if testing.Short() {
		t.Skip("4,200 connections")
	}
	const most, n = 4096, 4200
	synctest.Test(t, func(t *testing.T) {
		m := newMachines(t)
		small := cm.Options{SharePD: true, Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1}}
		var clients, servers []*cm.Endpoint
		for range n {
			c, s := m.connect(t, cm.Dialer{Options: small})
			clients, servers = append(clients, c), append(servers, s)
		}
		m.lose(true)
		for _, c := range clients {
			c.Close()
		}
		if s := m.client.Stats(); s.Leaving != most || s.IDs != 0 {
			t.Errorf("after Close: %+v", s)
		}
		for _, s := range servers {
			s.Close()
		}
	})
}

// TestSamePort dials again from a port whose connection has just been closed, and listens there.
func TestSamePort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachines(t)
		local := netip.MustParseAddrPort("10.0.0.1:5000")
		for range 10 {
			c, s := m.connect(t, cm.Dialer{LocalAddr: local})
			m.lose(true) // the answers
			c.Close()
			s.Close()
			m.lose(false)
		}
		l, err := (&cm.ListenConfig{Transport: m.client}).Listen(t.Context(), local.String())
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
	})
}

// TestLeavingRemoval removes a device while a peer has not answered.
func TestLeavingRemoval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachines(t)
		device := labtest.Must(soft.New(soft.Options{Network: m.Network, Host: "removed", Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.3")}}))(t)
		m.client = &cm.Transport{Host: device}
		client, server := m.connect(t, cm.Dialer{})
		defer server.Close()
		m.lose(true)
		client.Close()
		if s := m.client.Stats(); s.Leaving != 1 {
			t.Errorf("before: %+v", s)
		}
		if err := device.Close(); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if s := m.client.Stats(); s.Leaving != 0 {
			t.Errorf("after removal: %+v", s)
		}
		if err := m.client.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestCloseBurst closes all connections at a moment, by the real clock, between two devices and on
// one.
func TestCloseBurst(t *testing.T) {
	for name, both := range map[string]bool{"one device": false, "two devices": true} {
		t.Run(name, func(t *testing.T) {
			const n = 600
			ctx := labtest.Within(t, time.Minute)
			m := newMachines(t)
			if !both {
				m.client = m.server
			}
			var clients, servers [n]*cm.Endpoint
			for i := range n {
				clients[i], servers[i] = m.connect(t, cm.Dialer{Options: cm.Options{SharePD: true, Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1}}})
			}
			var all sync.WaitGroup
			for _, c := range clients {
				all.Go(func() {
					if err := c.Close(); err != nil {
						t.Error(err)
					}
				})
			}
			all.Wait()
			for i, s := range servers {
				if err := awaitDone(ctx, s); err != nil {
					t.Fatalf("connection %d has not ended: %v", i, err)
				}
				s.Close()
			}
		})
	}
}

func awaitDone(ctx context.Context, e interface{ Done() <-chan struct{} }) error {
	select {
	case <-e.Done():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// TestLateRequests dials rmsg's listener while nobody accepts: requests that were rejected by time take no place in its
// backlog.
func TestLateRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachines(t)
		lc := rmsg.ListenConfig{Options: rmsg.Options{Transport: m.server}, Backlog: 1}
		l := labtest.Made(lc.Listen(t.Context(), "10.0.0.2:2"))(t)
		d := rmsg.Dialer{Options: rmsg.Options{Transport: m.client}}
		for range 3 {
			if _, err := d.Dial(t.Context(), "10.0.0.2:2"); err == nil {
				t.Fatal("accepted")
			}
		}
		c, s := labtest.DialAccept(t, func() (*rmsg.Conn, error) { return d.Dial(t.Context(), "10.0.0.2:2") }, func() (*rmsg.Conn, error) {
			for l.Stats().Waiting == 0 {
				time.Sleep(time.Millisecond)
			}
			return l.Accept(t.Context())
		})
		labtest.Check(t, c.Close(), s.Close())
	})
}
