package verbstest_test

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rconn"
	"github.com/goverbs/verbs/rmsg"
	"github.com/goverbs/verbs/rsock"
	"github.com/goverbs/verbs/verbstest"
)

// idleServer makes connections between two machines, and calls ended for each that the server sees
// end.
type idleServer func(t *testing.T, server, client *cm.Transport, keepAlive time.Duration, n int, ended func(error))

// idleServers has a server for each package. None polls or sends.
var idleServers = map[string]idleServer{
	"rsock": func(t *testing.T, server, client *cm.Transport, keepAlive time.Duration, n int, ended func(error)) {
		opt := rsock.Options{KeepAlive: keepAlive}
		l := labtest.Made((&rsock.ListenConfig{Transport: server, Options: opt}).Listen(t.Context(), "rdma", addr))(t)
		for range n {
			c, s := labtest.DialAccept(t, func() (net.Conn, error) {
				return (&rsock.Dialer{Transport: client, Options: rsock.Options{KeepAlive: -1}}).Dial("rdma", addr)
			}, l.Accept)
			t.Cleanup(func() { c.Close(); s.Close() })
			go func() {
				_, err := s.Read(make([]byte, 1))
				ended(err)
				s.Close()
			}()
		}
	},
	"rmsg": func(t *testing.T, server, client *cm.Transport, keepAlive time.Duration, n int, ended func(error)) {
		l := labtest.Made((&rmsg.ListenConfig{Options: rmsg.Options{Transport: server, KeepAlive: keepAlive}}).Listen(t.Context(), addr))(t)
		d := rmsg.Dialer{Options: rmsg.Options{Transport: client, KeepAlive: -1}}
		for range n {
			c, s := labtest.DialAccept(t, func() (*rmsg.Conn, error) { return d.Dial(t.Context(), addr) },
				func() (*rmsg.Conn, error) { return l.Accept(t.Context()) })
			t.Cleanup(func() { c.Close(); s.Close(); <-c.Done(); <-s.Done() })
			go func() {
				<-s.Done()
				ended(s.Err())
				s.Close()
			}()
		}
	},
	"rconn": func(t *testing.T, server, client *cm.Transport, keepAlive time.Duration, n int, ended func(error)) {
		l := labtest.Made((&rconn.ListenConfig{Transport: server}).Listen(t.Context(), addr))(t)
		d := rconn.Dialer{Transport: client, Options: rconn.Options{Options: cm.Options{KeepAlive: -1}}}
		for range n {
			c, s := labtest.DialAccept(t, func() (*rconn.Conn, error) { return d.Dial(t.Context(), addr) }, func() (*rconn.Conn, error) {
				r, err := l.Accept(t.Context())
				if err != nil {
					return nil, err
				}
				return r.Accept(t.Context(), rconn.Options{Options: cm.Options{KeepAlive: keepAlive}})
			})
			t.Cleanup(func() { c.Close(); s.Close() })
			go func() {
				<-s.Done()
				ended(s.Err())
				s.Close()
			}()
		}
	},
	"cm": func(t *testing.T, server, client *cm.Transport, keepAlive time.Duration, n int, ended func(error)) {
		if keepAlive == 0 { // which is none
			keepAlive = 15 * time.Second
		}
		l := labtest.Made((&cm.ListenConfig{Transport: server}).Listen(t.Context(), addr))(t)
		d := cm.Dialer{Transport: client}
		for range n {
			c, s := labtest.DialAccept(t, func() (*cm.Endpoint, error) { return d.Dial(t.Context(), addr) }, func() (*cm.Endpoint, error) {
				r, err := l.Accept(t.Context())
				if err != nil {
					return nil, err
				}
				return r.Accept(t.Context(), cm.Options{KeepAlive: keepAlive, Cap: verbs.QPCap{MaxSendWR: 1}})
			})
			t.Cleanup(func() { c.Close(); s.Close() })
			go func() {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				go func() { <-s.Done(); cancel() }()
				for {
					wc, err := s.SendCQ.Next(ctx)
					if err != nil {
						break
					}
					if wc.ID != cm.KeepAliveID {
						t.Errorf("completion %+v", wc)
					}
				}
				<-s.Done()
				ended(s.Err())
				s.Close()
			}()
		}
	},
}

// TestDeadIdlePeers ends the machine of clients that do nothing: the server notices, unless it does
// not want to.
func TestDeadIdlePeers(t *testing.T) {
	const peers = 20
	for name, start := range idleServers {
		for _, keepAlive := range []time.Duration{0, time.Second, time.Minute, -1} {
			t.Run(name+"/"+keepAlive.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					network := verbstest.NewNetwork(verbstest.Options{TraceLimit: -1})
					server, client := verbstest.NewHost(t, network, "10.0.0.2"), verbstest.NewHost(t, network, "10.0.0.1")
					var ended atomic.Int64
					start(t, server, client, keepAlive, peers, func(err error) {
						if !errors.Is(err, verbs.ErrDisconnected) && name != "rsock" && t.Context().Err() == nil {
							t.Error(err)
						}
						ended.Add(1)
					})
					interval := cmp.Or(max(keepAlive, 0), 15*time.Second)
					time.Sleep(100 * interval) // the tests would fill the queues, if they stayed there
					if n := ended.Load(); n > 0 {
						t.Fatalf("%d of %d idle connections have ended", n, peers)
					}
					network.Remove(netip.MustParseAddr("10.0.0.1"))
					limit, want := interval+6*time.Second, int64(peers)
					if keepAlive < 0 {
						limit, want = 24*time.Hour, 0
					}
					time.Sleep(limit)
					if n := ended.Load(); n != want {
						t.Errorf("%d of %d connections have ended %v after the death of the peer", n, peers, limit)
					}
				})
			})
		}
	}
}

// TestKeepAliveRoom uses all of the shortest send queue while tests are in flight.
func TestKeepAliveRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := verbstest.NewNetwork(verbstest.Options{Link: verbstest.Link{Delay: 10 * time.Millisecond}})
		server, client := verbstest.NewHost(t, network, "10.0.0.2"), verbstest.NewHost(t, network, "10.0.0.1")
		l := labtest.Made((&rconn.ListenConfig{Transport: server}).Listen(t.Context(), addr))(t)
		d := rconn.Dialer{Transport: client, Options: rconn.Options{Options: cm.Options{KeepAlive: time.Second, Cap: verbs.QPCap{MaxSendWR: 1}}}}
		c, s := labtest.DialAccept(t, func() (*rconn.Conn, error) { return d.Dial(t.Context(), addr) }, func() (*rconn.Conn, error) {
			r, err := l.Accept(t.Context())
			if err != nil {
				return nil, err
			}
			return r.Accept(t.Context(), rconn.Options{})
		})
		defer s.Close()
		defer c.Close()
		for range 3 {
			time.Sleep(time.Second + time.Millisecond - time.Duration(time.Now().Nanosecond()))
			if err := s.PostRecv(0); err != nil {
				t.Fatal(err)
			}
			if err := c.Post(rconn.Send().With(7, verbs.SendSignaled)); err != nil {
				t.Fatal(err)
			}
			var wc [2]verbs.WC
			if err := c.Await(t.Context(), rconn.Sends, wc[:1]); err != nil || wc[0].ID != 7 {
				t.Errorf("%+v, %v", wc[0], err)
			}
			if n := c.Poll(rconn.Sends, wc[:]); n != 0 {
				t.Errorf("the completion of a test: %+v", wc[:n])
			}
		}
	})
}

// TestKeepAliveRefused asks for tests where none are possible.
func TestKeepAliveRefused(t *testing.T) {
	network := verbstest.NewNetwork(verbstest.Options{})
	host := verbstest.NewHost(t, network, "10.0.0.2")
	for name, d := range map[string]cm.Dialer{
		"single-threaded": {Options: cm.Options{KeepAlive: 1, SingleThreaded: true}},
		"datagrams":       {Options: cm.Options{KeepAlive: 1}, PortSpace: cm.PortSpaceUDP},
	} {
		d.Transport = host
		if _, err := d.Dial(t.Context(), addr); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
