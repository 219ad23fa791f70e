package verbstest_test

import (
	"errors"
	"io"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/rconn"
	"github.com/goverbs/verbs/rmsg"
	"github.com/goverbs/verbs/rsock"
	"github.com/goverbs/verbs/uverbs"
	"github.com/goverbs/verbs/verbstest"
)

// rtuFilters are what a network may do with the confirmation of a connection, which is sent once.
var rtuFilters = map[string]verbstest.Action{
	"late": {Delay: 300 * time.Millisecond},
	"lost": verbstest.Drop,
}

// withRTU runs a test for each thing that may happen to the client's RTU. The connection must be
// handed over long before the server's connection manager repeats its reply after 4 s.
func withRTU(t *testing.T, test func(t *testing.T, client, server *cm.Transport)) {
	for name, action := range rtuFilters {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				isRTU := func(p *verbstest.Packet) bool { return p.CM == "RTU" }
				network := verbstest.NewNetwork(verbstest.Options{Filter: verbstest.Nth(1, isRTU, action)})
				verbstest.TraceOnFailure(t, network)
				client, server := verbstest.NewHost(t, network, "10.0.0.1"), verbstest.NewHost(t, network, "10.0.0.2")
				begin := time.Now()
				test(t, client, server)
				if took := time.Since(begin); took > time.Second {
					t.Errorf("the connection took %v", took)
				}
			})
		})
	}
}

// postReceives returns a Setup that posts receives.
func postReceives(mr **uverbs.MR, n int) func(*cm.Endpoint) error {
	return func(e *cm.Endpoint) (err error) {
		if *mr, err = e.AllocMR(16, verbs.AccessLocalWrite); err != nil {
			return err
		}
		for i := range n {
			if _, err := e.QP.PostRecv(verbs.RecvWR{ID: uint64(i), SGL: []verbs.SGE{(*mr).SGE(0, 16)}}); err != nil {
				return err
			}
		}
		return nil
	}
}

// TestShortConnectionCM tests that Accept returns a connection whose peer sent a message and
// disconnected before its RTU arrived, with the message.
func TestShortConnectionCM(t *testing.T) {
	withRTU(t, func(t *testing.T, client, server *cm.Transport) {
		l, err := (&cm.ListenConfig{Transport: server}).Listen(t.Context(), addr)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		sent := make(chan error, 1)
		go func() {
			e, err := (&cm.Dialer{Transport: client}).Dial(t.Context(), addr)
			if err != nil {
				sent <- err
				return
			}
			defer e.Close()
			e.QP.PostSend(verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled, Inline: []byte("hello")})
			_, err = e.SendCQ.Next(t.Context())
			e.Disconnect()
			sent <- err
		}()
		req, err := l.Accept(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var mr *uverbs.MR
		e, err := req.Accept(t.Context(), cm.Options{Setup: postReceives(&mr, 2)})
		if serr := <-sent; serr != nil {
			t.Error(serr)
		}
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		wc, err := e.RecvCQ.Next(t.Context())
		if got := string(mr.Bytes()[:wc.ByteLen]); err != nil || got != "hello" {
			t.Errorf("received %q, %v", got, err)
		}
		if _, err := e.RecvCQ.Next(t.Context()); !errors.Is(err, verbs.WCFlushErr) {
			t.Errorf("second receive: %v", err)
		}
		<-e.Done()
		if err := e.Err(); !errors.Is(err, verbs.ErrDisconnected) {
			t.Errorf("the end: %v", err)
		}
		if s := l.Stats(); s.Accepted != 1 || s.Failed != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// TestFirstMessageEstablishesCM tests that the first message makes Accept return when the RTU is
// lost, and that the connection then works.
func TestFirstMessageEstablishesCM(t *testing.T) {
	withRTU(t, func(t *testing.T, client, server *cm.Transport) {
		l, err := (&cm.ListenConfig{Transport: server}).Listen(t.Context(), addr)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		go func() {
			e, err := (&cm.Dialer{Transport: client}).Dial(t.Context(), addr)
			if err != nil {
				t.Error(err)
				return
			}
			defer e.Close()
			e.QP.PostSend(verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled, Inline: []byte("hello")})
			e.SendCQ.Next(t.Context())
			<-e.Done()
		}()
		req, err := l.Accept(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var mr *uverbs.MR
		begin := time.Now()
		e, err := req.Accept(t.Context(), cm.Options{Setup: postReceives(&mr, 2)})
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begin); took > 50*time.Millisecond {
			t.Errorf("Accept took %v", took)
		}
		if _, err := e.RecvCQ.Next(t.Context()); err != nil {
			t.Error(err)
		}
		if err := e.Err(); err != nil {
			t.Errorf("the connection has ended: %v", err)
		}
		e.Close()
	})
}

// TestShortConnectionLoop tests that a Loop reports a connection that ended before its RTU as
// established, and then as disconnected.
func TestShortConnectionLoop(t *testing.T) {
	withRTU(t, func(t *testing.T, client, server *cm.Transport) {
		loop, err := server.NewChannel()
		if err != nil {
			t.Fatal(err)
		}
		defer loop.Close()
		id, err := loop.NewID(cm.PortSpaceTCP)
		if err != nil {
			t.Fatal(err)
		}
		defer id.Close()
		if err := errors.Join(id.Bind(netip.MustParseAddrPort(addr)), id.Listen(0)); err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			e, err := (&cm.Dialer{Transport: client}).Dial(t.Context(), addr)
			if err != nil {
				t.Error(err)
				return
			}
			e.Disconnect()
			time.Sleep(100 * time.Millisecond) // Close ends the repetition of the disconnect request
			e.Close()
		}()
		var events []cm.EventType
		for len(events) < 3 {
			ev, err := loop.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			events = append(events, ev.Type)
			switch ev.Type {
			case cm.ConnectRequest:
				if _, err := loop.Accept(ev, cm.Options{}); err != nil {
					t.Fatal(err)
				}
			case cm.Established:
				if ev.Endpoint.Err() != nil {
					t.Error("it has ended before it was reported as established")
				}
			case cm.Disconnected:
				if err := ev.Endpoint.Err(); !errors.Is(err, verbs.ErrDisconnected) {
					t.Errorf("the end: %v", err)
				}
				ev.Endpoint.Close()
			}
		}
		if events[1] != cm.Established || events[2] != cm.Disconnected {
			t.Errorf("events: %v", events)
		}
		<-ended
	})
}

// TestShortConnectionRconn is TestShortConnectionCM for package rconn.
func TestShortConnectionRconn(t *testing.T) {
	withRTU(t, func(t *testing.T, client, server *cm.Transport) {
		l, err := (&rconn.ListenConfig{Transport: server}).Listen(t.Context(), addr)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		go func() {
			c, err := (&rconn.Dialer{Transport: client}).Dial(t.Context(), addr)
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			if err := c.Post(rconn.SendInline([]byte("hello")).With(0, verbs.SendSignaled)); err != nil {
				t.Error(err)
			}
			var wc [1]verbs.WC
			if err := c.Await(t.Context(), rconn.Sends, wc[:]); err != nil || wc[0].Err() != nil {
				t.Error(err, wc[0].Err())
			}
		}()
		req, err := l.Accept(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var region *rconn.LocalRegion
		c, err := req.Accept(t.Context(), rconn.Options{Setup: func(c *rconn.Conn) (err error) {
			if region, err = c.Alloc(16, rconn.LocalWrite); err != nil {
				return err
			}
			return c.PostRecv(1, region.Span(0, 16))
		}})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		var wc [1]verbs.WC
		err = c.Await(t.Context(), rconn.Recvs, wc[:])
		if got := string(region.Bytes()[:wc[0].ByteLen]); err != nil || got != "hello" {
			t.Errorf("received %q, %v", got, err)
		}
		if err := c.AwaitDisconnect(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestShortConnectionRsock tests that the server reads all that the client's Close has reported as
// delivered, and then io.EOF.
func TestShortConnectionRsock(t *testing.T) {
	withRTU(t, func(t *testing.T, client, server *cm.Transport) {
		l, err := (&rsock.ListenConfig{Transport: server}).Listen(t.Context(), "rdma", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		defer time.AfterFunc(30*time.Second, func() { l.Close() }).Stop() // ends an Accept that would wait forever
		go func() {
			c, err := (&rsock.Dialer{Transport: client}).Dial("rdma", addr)
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := c.Write([]byte("hello")); err != nil {
				t.Error(err)
			}
			if err := c.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		}()
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(c); string(got) != "hello" || err != nil {
			t.Errorf("read %q, %v", got, err)
		}
		if err := c.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		if s := l.(*rsock.Listener).Stats(); s.Accepted != 1 || s.Failed != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// TestShortConnectionRmsg tests the same with package rmsg, whose sockets share a CQ.
func TestShortConnectionRmsg(t *testing.T) {
	withRTU(t, func(t *testing.T, client, server *cm.Transport) {
		l, err := (&rmsg.ListenConfig{Options: rmsg.Options{Transport: server}}).Listen(t.Context(), addr)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		closed := make(chan error, 1)
		go func() {
			s, err := (&rmsg.Dialer{Options: rmsg.Options{Transport: client}}).Dial(t.Context(), addr)
			if err == nil {
				if err = s.Send(t.Context(), []byte("hello")); err == nil {
					s.Disconnect()
					<-s.Done()
					if err = s.Err(); errors.Is(err, verbs.ErrClosed) {
						err = nil
					}
				}
			}
			closed <- err
		}()
		s, err := l.Accept(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		m, err := s.Recv(t.Context())
		if err != nil || string(m.Bytes()) != "hello" {
			t.Fatalf("received %v", err)
		}
		m.Free()
		<-s.Done()
		if err := s.Err(); err != io.EOF {
			t.Errorf("the end: %v", err)
		}
		if err := <-closed; err != nil {
			t.Errorf("client: %v", err)
		}
	})
}
