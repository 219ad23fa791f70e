package ibcm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/roce"
)

// TestConnect makes and ends a connection, and checks what each side learns of the other.
func TestConnect(t *testing.T) {
	world(t, 1, func(t *testing.T, n *network, a, b *host) {
		s := acceptAll()
		l := b.listen(t, s)
		c := a.newEndpoint(t)
		c.must(func() error { return c.Connect(request(a.path(b), 0x10)) })
		c.expect(ReplyReceived)
		passive := s.endpoints[0]
		e := passive.events[0]
		r := e.Request
		if r.LocalQPN != 0x10 || r.ResponderResources != 3 || r.InitiatorDepth != 4 || r.RetryCount != 5 || r.RNRRetryCount != 6 ||
			e.QPType != verbs.RC || r.ServiceID != service || r.VendorID != 0x15b3 || r.ECEOptions != 0x1234 || e.Path.DGID != a.addrs[0].As16() || e.Path.SGID != b.addrs[0].As16() {
			t.Errorf("request %+v", r)
		}
		if data := passive.events[0].PrivateData; len(data) != roce.REQPrivateData || !bytes.HasPrefix(data, []byte("request")) {
			t.Errorf("private data %q", data)
		}
		if data := c.last().PrivateData; len(data) != roce.REPPrivateData || !bytes.HasPrefix(data, []byte("reply")) {
			t.Errorf("private data %q", data)
		}
		if r := c.last().Reply; r.LocalQPN != 0x20 || r.ResponderResources != 4 || r.InitiatorDepth != 3 || r.RNRRetryCount != 7 {
			t.Errorf("reply %+v", r)
		}
		checkQPAttr(t, c, verbs.QPAttr{RQPSN: 0x111111, SQPSN: 0x222222, DestQPNum: 0x20, MaxDestRDAtomic: 3, MaxRDAtomic: 4, RetryCount: 5, RNRRetry: 7}, b)
		checkQPAttr(t, passive, verbs.QPAttr{RQPSN: 0x222222, SQPSN: 0x111111, DestQPNum: 0x10, MaxDestRDAtomic: 4, MaxRDAtomic: 3, RetryCount: 5, RNRRetry: 6}, a)
		c.must(c.Establish)
		passive.expect(RequestReceived, ReadyToUse)

		c.must(c.Disconnect)
		passive.expect(RequestReceived, ReadyToUse, DisconnectRequested)
		passive.must(passive.Disconnect)
		c.expect(ReplyReceived, Disconnected, TimewaitExit)
		passive.expect(RequestReceived, ReadyToUse, DisconnectRequested, TimewaitExit)
		for _, s := range []*endpoint{c, passive} {
			s.destroy()
		}
		b.manager.Lock()
		l.Close()
		b.manager.Unlock()
		checkEmpty(t, a.manager)
		checkEmpty(t, b.manager)
		want := []roce.CMAttr{roce.AttrREQ, roce.AttrREP, roce.AttrRTU, roce.AttrDREQ, roce.AttrDREP}
		if !slices.Equal(n.sent, want) {
			t.Errorf("messages %v, want %v", n.sent, want)
		}
	})
}

// checkQPAttr checks the attributes of a side's QP in each state.
func checkQPAttr(t *testing.T, s *endpoint, want verbs.QPAttr, peer *host) {
	t.Helper()
	init, mask, err := s.QPAttr(verbs.StateInit)
	if access := verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic; err != nil ||
		mask != verbs.MaskState|verbs.MaskAccess|verbs.MaskPKeyIndex|verbs.MaskPort || init.Access != access || init.Port != 1 {
		t.Errorf("INIT: %+v, %v, %v", init, mask, err)
	}
	rtr, mask, err := s.QPAttr(verbs.StateRTR)
	if err != nil || mask != verbs.MaskState|verbs.MaskAV|verbs.MaskPathMTU|verbs.MaskDestQPNum|verbs.MaskRQPSN|verbs.MaskMaxDestRDAtomic|verbs.MaskMinRNRTimer ||
		rtr.RQPSN != want.RQPSN || rtr.DestQPNum != want.DestQPNum || rtr.MaxDestRDAtomic != want.MaxDestRDAtomic || rtr.PathMTU != 3 ||
		rtr.AV.DGID != peer.addrs[0].As16() || !rtr.AV.Global || rtr.AV.Port != 1 {
		t.Errorf("RTR: %+v, %v, %v", rtr, mask, err)
	}
	rts, mask, err := s.QPAttr(verbs.StateRTS)
	if err != nil || mask != verbs.MaskState|verbs.MaskSQPSN|verbs.MaskRetryCount|verbs.MaskRNRRetry|verbs.MaskMaxRDAtomic|verbs.MaskTimeout ||
		rts.SQPSN != want.SQPSN || rts.MaxRDAtomic != want.MaxRDAtomic || rts.RetryCount != want.RetryCount || rts.RNRRetry != want.RNRRetry || rts.Timeout != 17 {
		t.Errorf("RTS: %+v, %v, %v", rts, mask, err)
	}
	if _, _, err := s.QPAttr(verbs.StateErr); err != syscall.EINVAL {
		t.Errorf("ERR: %v", err)
	}
}

// TestFaultyNetwork makes and ends connections while messages are lost, duplicated and
// reordered: every connection comes up and ends on both sides, and nothing is left.
func TestFaultyNetwork(t *testing.T) {
	for seed := range uint64(30) {
		world(t, seed, func(t *testing.T, n *network, a, b *host) {
			n.loss, n.duplicate, n.jitter = 0.2, 0.3, 200*time.Millisecond
			s := acceptAll()
			s.on = func(s *endpoint, e *Event) error {
				if e.Type == DisconnectRequested {
					return s.Disconnect()
				}
				return nil
			}
			l := b.listen(t, s)
			var clients []*endpoint
			for i := range 10 {
				c := confirming(a.newEndpoint(t))
				clients = append(clients, c)
				c.must(func() error { return c.Connect(request(a.path(b), 0x100+uint32(i))) })
			}
			wait(2 * time.Minute)
			if len(s.endpoints) != len(clients) {
				t.Fatalf("seed %d: %d requests of %d have arrived", seed, len(s.endpoints), len(clients))
			}
			for i, c := range clients {
				if p := s.endpoints[i]; c.current() != Established || p.current() != Established {
					t.Fatalf("seed %d: client %v %v, server %v %v", seed, c.current(), c.types(), p.current(), p.types())
				}
				c.must(c.Disconnect)
			}
			wait(3 * time.Minute)
			for i, c := range clients {
				c.expect(ReplyReceived, Disconnected, TimewaitExit)
				s.endpoints[i].expect(RequestReceived, ReadyToUse, DisconnectRequested, TimewaitExit)
				c.destroy()
				s.endpoints[i].destroy()
			}
			b.manager.Lock()
			l.Close()
			b.manager.Unlock()
			checkEmpty(t, a.manager)
			checkEmpty(t, b.manager)
		})
	}
}

// TestLostMessage loses the first message of one kind: it is repeated after the time of the
// protocol, and the connection comes up and ends nevertheless.
func TestLostMessage(t *testing.T) {
	const (
		request4 = 4608 * time.Millisecond // 2 * packet lifetime + response timeout
		reply4   = 4096 * time.Millisecond
	)
	for _, test := range []struct {
		lost  roce.CMAttr
		after time.Duration // the repetition
		sent  []roce.CMAttr
	}{
		{roce.AttrREQ, request4, []roce.CMAttr{roce.AttrREQ, roce.AttrREQ, roce.AttrREP, roce.AttrRTU, roce.AttrDREQ, roce.AttrDREP}},
		{roce.AttrREP, reply4, []roce.CMAttr{roce.AttrREQ, roce.AttrREP, roce.AttrREP, roce.AttrRTU, roce.AttrDREQ, roce.AttrDREP}},
		{roce.AttrRTU, reply4, []roce.CMAttr{roce.AttrREQ, roce.AttrREP, roce.AttrRTU, roce.AttrREP, roce.AttrRTU, roce.AttrDREQ, roce.AttrDREP}},
		{roce.AttrDREQ, request4, []roce.CMAttr{roce.AttrREQ, roce.AttrREP, roce.AttrRTU, roce.AttrDREQ, roce.AttrDREQ, roce.AttrDREP}},
		{roce.AttrDREP, request4, []roce.CMAttr{roce.AttrREQ, roce.AttrREP, roce.AttrRTU, roce.AttrDREQ, roce.AttrDREP, roce.AttrDREQ, roce.AttrDREP}},
	} {
		t.Run(test.lost.String(), func(t *testing.T) {
			world(t, 1, func(t *testing.T, n *network, a, b *host) {
				lost := false
				n.drop = func(_, _ netip.Addr, m roce.CMMessage) bool {
					drop := m.Attr() == test.lost && !lost
					lost = lost || drop
					return drop
				}
				s := acceptAll()
				s.on = func(s *endpoint, e *Event) error {
					if e.Type == DisconnectRequested {
						return s.Disconnect()
					}
					return nil
				}
				b.listen(t, s)
				start := time.Now()
				c := confirming(a.newEndpoint(t))
				c.must(func() error { return c.Connect(request(a.path(b), 0x10)) })
				wait(time.Minute)
				if c.current() != Established || s.endpoints[0].current() != Established {
					t.Fatal(c.current(), s.endpoints[0].current())
				}
				up := s.endpoints[0].at[1].Sub(start)
				down := time.Now()
				c.must(c.Disconnect)
				c.expect(ReplyReceived, Disconnected, TimewaitExit)
				took := up
				if test.lost == roce.AttrDREQ || test.lost == roce.AttrDREP {
					took = c.at[1].Sub(down)
				}
				if took < test.after || took > test.after+5*time.Millisecond {
					t.Errorf("it took %v, want %v", took, test.after)
				}
				if !slices.Equal(n.sent, test.sent) {
					t.Errorf("messages %v, want %v", n.sent, test.sent)
				}
				c.destroy()
				s.endpoints[0].destroy()
			})
		})
	}
}

// TestNoAnswer checks that each message that has no answer is sent 16 times, and when the side
// gives up.
func TestNoAnswer(t *testing.T) {
	for _, test := range []struct {
		lost roce.CMAttr // answers that are lost
		sent roce.CMAttr
		want EventType
		took time.Duration
	}{
		{roce.AttrREP, roce.AttrREQ, RequestFailed, 16 * 4608 * time.Millisecond},
		{roce.AttrREQ, roce.AttrREQ, RequestFailed, 16 * 4608 * time.Millisecond},
		{roce.AttrRTU, roce.AttrREP, ReplyFailed, 16 * 4096 * time.Millisecond},
		{roce.AttrDREP, roce.AttrDREQ, DisconnectFailed, 16 * 4608 * time.Millisecond},
		{roce.AttrSIDRREP, roce.AttrSIDRREQ, ResolveFailed, 16 * 4 * time.Second},
	} {
		t.Run(test.sent.String()+" without "+test.lost.String(), func(t *testing.T) {
			world(t, 1, func(t *testing.T, n *network, a, b *host) {
				n.drop = func(_, _ netip.Addr, m roce.CMMessage) bool { return m.Attr() == test.lost }
				s := acceptAll()
				if test.lost == roce.AttrSIDRREP {
					s.answer = nil
				}
				b.listen(t, s)
				c := confirming(a.newEndpoint(t))
				start := time.Now()
				c.must(func() error {
					if test.lost == roce.AttrSIDRREP {
						return c.Resolve(a.path(b), 4*time.Second, 15, &roce.SIDRREQ{ServiceID: service})
					}
					return c.Connect(request(a.path(b), 0x10))
				})
				failing := c
				switch test.lost {
				case roce.AttrRTU:
					wait(time.Second)
					failing = s.endpoints[0]
				case roce.AttrDREP:
					wait(time.Second)
					start = time.Now()
					c.must(c.Disconnect)
					wait(time.Second)
					s.endpoints[0].must(s.endpoints[0].Disconnect)
				}
				wait(5 * time.Minute)
				i := slices.Index(failing.types(), test.want)
				if i < 0 {
					t.Fatalf("events %v, want %v", failing.types(), test.want)
				}
				if took := failing.at[i].Sub(start); took < test.took || took > test.took+10*time.Millisecond {
					t.Errorf("gave up after %v, want %v", took, test.took)
				}
				if got := n.count(test.sent); got != 16 {
					t.Errorf("sent %d times, want 16", got)
				}
			})
		})
	}
}

// TestReject rejects a request in each way.
func TestReject(t *testing.T) {
	for _, test := range []struct {
		name    string
		server  *server // nil: there is no listener
		reason  roce.RejectReason
		private string
	}{
		{"no listener", nil, roce.RejInvalidServiceID, ""},
		{"by the handler", &server{answer: func(*endpoint, *Event) error { return errors.New("no") }}, roce.RejConsumerDefined, ""},
		{"by the program", &server{answer: func(s *endpoint, _ *Event) error {
			return s.Reject(roce.RejVendorOption, []byte("not you"))
		}}, roce.RejVendorOption, "not you"},
		{"by the program, late", &server{answer: func(s *endpoint, _ *Event) error {
			s.Delay(24)
			return s.Reject(roce.RejConsumerDefined, []byte("not you"))
		}}, roce.RejConsumerDefined, "not you"},
		{"after the reply", &server{answer: func(s *endpoint, _ *Event) error {
			s.Accept(reply(9))
			return s.Reject(roce.RejConsumerDefined, []byte("not you"))
		}}, roce.RejConsumerDefined, "not you"},
	} {
		t.Run(test.name, func(t *testing.T) {
			world(t, 1, func(t *testing.T, n *network, a, b *host) {
				if test.server != nil {
					b.listen(t, test.server)
				}
				c := a.newEndpoint(t)
				c.must(func() error { return c.Connect(request(a.path(b), 0x10)) })
				wait(time.Second)
				i := slices.Index(c.types(), Rejected)
				if i < 0 {
					t.Fatalf("events %v", c.types())
				}
				last := &c.events[i]
				if last.Rejection.Reason != test.reason ||
					len(last.PrivateData) != roce.REJPrivateData || strings.TrimRight(string(last.PrivateData), "\x00") != test.private {
					t.Errorf("%+v, %+v, %q", last, last.Rejection, last.PrivateData)
				}
				c.destroy()
				checkEmpty(t, a.manager)
			})
		})
	}
}

// TestRejectReply rejects a reply: the passive side learns of it.
func TestRejectReply(t *testing.T) {
	world(t, 1, func(t *testing.T, n *network, a, b *host) {
		s := acceptAll()
		b.listen(t, s)
		c := a.newEndpoint(t)
		c.must(func() error { return c.Connect(request(a.path(b), 0x10)) })
		c.expect(ReplyReceived)
		c.must(func() error { return c.Reject(roce.RejConsumerDefined, []byte("bye")) })
		s.endpoints[0].expect(RequestReceived, Rejected)
		if e := s.endpoints[0].last(); e.Rejection.Reason != roce.RejConsumerDefined || !bytes.HasPrefix(e.PrivateData, []byte("bye")) {
			t.Errorf("%+v", e)
		}
	})
}

// TestMRA delays the answer: a repeated request gets an MRA, and then the active side waits.
func TestMRA(t *testing.T) {
	world(t, 1, func(t *testing.T, n *network, a, b *host) {
		s := &server{answer: func(s *endpoint, _ *Event) error { return s.Delay(24) }}
		b.listen(t, s)
		c := confirming(a.newEndpoint(t))
		c.must(func() error { return c.Connect(request(a.path(b), 0x10)) })
		wait(60 * time.Second)
		if n.count(roce.AttrREQ) != 2 || n.count(roce.AttrMRA) != 1 || c.current() != MRARequestRcvd {
			t.Errorf("messages %v, state %v", n.sent, c.current())
		}
		p := s.endpoints[0]
		p.must(func() error { return p.Accept(reply(0x20)) })
		p.expect(RequestReceived, ReadyToUse)
	})
}

// TestDelayedConfirmation answers a reply late: a repeated reply gets an MRA.
func TestDelayedConfirmation(t *testing.T) {
	world(t, 1, func(t *testing.T, n *network, a, b *host) {
		s := acceptAll()
		b.listen(t, s)
		c := a.newEndpoint(t)
		c.must(func() error { return c.Connect(request(a.path(b), 0x10)) })
		c.expect(ReplyReceived)
		c.must(func() error { return c.Delay(24) })
		wait(60 * time.Second)
		if n.count(roce.AttrREP) != 2 || n.count(roce.AttrMRA) != 1 || s.endpoints[0].current() != MRAReplyRcvd {
			t.Errorf("messages %v, state %v", n.sent, s.endpoints[0].current())
		}
		c.must(c.Establish)
		s.endpoints[0].expect(RequestReceived, MRAReceived, ReadyToUse)
	})
}

// TestNoRoom drops requests without an answer until there is room.
func TestNoRoom(t *testing.T) {
	world(t, 1, func(t *testing.T, n *network, a, b *host) {
		refuse := 3
		s := &server{answer: func(s *endpoint, _ *Event) error {
			if refuse > 0 {
				refuse--
				return ErrNoRoom
			}
			return s.Accept(reply(0x20))
		}}
		b.listen(t, s)
		c := a.newEndpoint(t)
		c.must(func() error { return c.Connect(request(a.path(b), 0x10)) })
		c.expect(ReplyReceived)
		if n.count(roce.AttrREQ) != 4 || n.count(roce.AttrREJ) != 0 {
			t.Errorf("messages %v", n.sent)
		}
		if d := b.device.NoRoom(); d != 3 {
			t.Errorf("%d requests are counted, want 3", d)
		}
	})
}

// connected returns both sides of a new connection.
func connected(t *testing.T, a, b *host, qp uint32, s *server) (active, passive *endpoint) {
	t.Helper()
	c := confirming(a.newEndpoint(t))
	c.must(func() error { return c.Connect(request(a.path(b), qp)) })
	wait(time.Second)
	p := s.endpoints[len(s.endpoints)-1]
	if c.current() != Established || p.current() != Established {
		t.Fatal(c.current(), p.current())
	}
	return c, p
}

// TestDisconnectAtOnce disconnects on both sides at the same time.
func TestDisconnectAtOnce(t *testing.T) {
	for _, answering := range []bool{false, true} {
		world(t, 1, func(t *testing.T, n *network, a, b *host) {
			s := acceptAll()
			b.listen(t, s)
			c, p := connected(t, a, b, 0x10, s)
			c.must(c.Disconnect)
			p.must(p.Disconnect)
			wait(time.Second)
			for _, s := range []*endpoint{c, p} {
				if got := s.last().Type; got != DisconnectRequested {
					t.Errorf("%v", s.types())
				}
				if answering {
					s.must(s.Disconnect)
				}
			}
			wait(time.Minute)
			for _, s := range []*endpoint{c, p} {
				if answering && (s.current() != Idle || s.last().Type != TimewaitExit) {
					t.Errorf("%v, %v", s.current(), s.types())
				}
				s.destroy()
			}
			checkEmpty(t, a.manager)
		})
	}
}

// TestDestroy destroys an established connection: the peer is told, and repeated disconnect
// requests are answered although the ID does not exist any more.
func TestDestroy(t *testing.T) {
	world(t, 1, func(t *testing.T, n *network, a, b *host) {
		s := acceptAll()
		b.listen(t, s)
		c, p := connected(t, a, b, 0x10, s)
		c.destroy()
		p.expect(RequestReceived, ReadyToUse, DisconnectRequested)
		p.destroy()

		c, p = connected(t, a, b, 0x11, s)
		n.drop = func(_, _ netip.Addr, m roce.CMMessage) bool { return m.Attr() == roce.AttrDREQ }
		c.destroy()
		n.drop = nil
		wait(time.Second)
		p.must(p.Disconnect)
		p.expect(RequestReceived, ReadyToUse, Disconnected, TimewaitExit)
	})
}

// TestRestart restarts the active side's host: the request of its new connection with the
// same QP is stale, which ends the old connection, and then succeeds.
func TestRestart(t *testing.T) {
	world(t, 1, func(t *testing.T, n *network, a, b *host) {
		s := acceptAll()
		s.on = func(s *endpoint, e *Event) error { return nil }
		b.listen(t, s)
		_, old := connected(t, a, b, 0x10, s)
		again := n.host(New(), 1, "10.0.0.1")
		c := confirming(again.newEndpoint(t))
		c.must(func() error { return c.Connect(request(a.path(b), 0x10)) })
		wait(100 * time.Millisecond)
		if e := c.last(); e.Type != Rejected || e.Rejection.Reason != roce.RejStaleConn || c.current() != Timewait {
			t.Errorf("%v, %v", c.types(), c.current())
		}
		// The new host does not know the old connection, but answers the DREQ.
		old.expect(RequestReceived, ReadyToUse, Disconnected, TimewaitExit)
		c.expect(Rejected, TimewaitExit)
		connected(t, again, b, 0x10, s)
	})
}

// TestPassiveRestart restarts the passive side's host: a disconnect request is answered.
func TestPassiveRestart(t *testing.T) {
	world(t, 1, func(t *testing.T, n *network, a, b *host) {
		s := acceptAll()
		b.listen(t, s)
		c, _ := connected(t, a, b, 0x10, s)
		n.host(New(), 2, "10.0.0.2")
		c.must(c.Disconnect)
		c.expect(ReplyReceived, Disconnected, TimewaitExit)
	})
}

// TestLoopback connects on one device, and between two devices of one manager.
func TestLoopback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(1)
		m := New()
		a := n.host(m, 1, "10.0.0.1")
		b := n.host(m, 2, "fd00::2")
		c := n.host(m, 3, "fd00::3")
		for _, pair := range [][2]*host{{a, a}, {b, c}} {
			s := acceptAll()
			pair[1].listen(t, s)
			active, passive := connected(t, pair[0], pair[1], 0x10, s)
			active.must(active.Disconnect)
			passive.expect(RequestReceived, ReadyToUse, DisconnectRequested)
		}
	})
}

// TestCommEstablished establishes the passive side by its first message, without the RTU.
func TestCommEstablished(t *testing.T) {
	world(t, 1, func(t *testing.T, n *network, a, b *host) {
		n.drop = func(_, _ netip.Addr, m roce.CMMessage) bool { return m.Attr() == roce.AttrRTU }
		s := acceptAll()
		b.listen(t, s)
		c := confirming(a.newEndpoint(t))
		c.must(func() error { return c.Connect(request(a.path(b), 0x10)) })
		wait(time.Second)
		p := s.endpoints[0]
		p.must(p.CommEstablished)
		p.expect(RequestReceived, ReadyToUse)
		if err := p.do(p.CommEstablished); err != syscall.EISCONN {
			t.Error(err)
		}
		if err := c.do(a.newEndpoint(t).CommEstablished); err != syscall.EINVAL {
			t.Error(err)
		}
		wait(time.Minute)
		if n.count(roce.AttrREP) != 1 {
			t.Error("the reply is still repeated")
		}
	})
}

// TestBadCalls calls functions in states and with values that they refuse.
func TestBadCalls(t *testing.T) {
	world(t, 1, func(t *testing.T, n *network, a, b *host) {
		n.loss = 1
		c := a.newEndpoint(t)
		good := func() (*Path, verbs.QPType, *roce.REQ) { return request(a.path(b), 1) }
		for name, f := range map[string]func() error{
			"accept":     func() error { return c.Accept(reply(1)) },
			"establish":  c.Establish,
			"reject":     func() error { return c.Reject(roce.RejConsumerDefined, nil) },
			"disconnect": c.Disconnect,
			"delay":      func() error { return c.Delay(1) },
			"answer":     func() error { return c.Answer(&roce.SIDRREP{}) },
			"QP type":    func() error { p, _, r := good(); return c.Connect(p, verbs.UD, r) },
			"long data":  func() error { p, typ, r := good(); r.PrivateData = make([]byte, 93); return c.Connect(p, typ, r) },
			"source":     func() error { p, typ, r := good(); p.SGID = b.addrs[0].As16(); return c.Connect(p, typ, r) },
			"family": func() error {
				p, typ, r := good()
				p.DGID = netip.MustParseAddr("fd00::1").As16()
				return c.Connect(p, typ, r)
			},
			"long resolve data": func() error {
				return c.Resolve(a.path(b), 0, 0, &roce.SIDRREQ{PrivateData: make([]byte, 217)})
			},
			"resolve source": func() error { return c.Resolve(b.path(a), 0, 0, new(roce.SIDRREQ)) },
		} {
			if err := c.do(f); err != syscall.EINVAL {
				t.Errorf("%s: %v", name, err)
			}
		}
		c.must(func() error { return c.Connect(good()) })
		if err := c.do(func() error { return c.Connect(good()) }); err != syscall.EINVAL {
			t.Error(err)
		}
		c.destroy()
		if len(n.sent) != 2 { // REQ and REJ
			t.Errorf("messages %v", n.sent)
		}
		wait(time.Hour)
		if len(n.sent) != 2 {
			t.Errorf("a destroyed ID sends: %v", n.sent)
		}
	})
}

// TestRemove removes a device: it does not send or receive any more.
func TestRemove(t *testing.T) {
	world(t, 1, func(t *testing.T, n *network, a, b *host) {
		b.listen(t, acceptAll())
		b.device.Remove()
		c := a.newEndpoint(t)
		c.must(func() error { return c.Connect(request(a.path(b), 1)) })
		wait(time.Minute)
		if n.count(roce.AttrREP)+n.count(roce.AttrREJ) != 0 {
			t.Errorf("messages %v", n.sent)
		}
	})
}

// TestRefused reports that a host has refused a request: it fails at once, unless the report is of
// somebody who has not seen the request, or the host has answered.
func TestRefused(t *testing.T) {
	for _, resolve := range []bool{false, true} {
		world(t, 1, func(t *testing.T, n *network, a, b *host) {
			lost := true
			n.drop = func(netip.Addr, netip.Addr, roce.CMMessage) bool { return lost }
			b.listen(t, &server{}) // does not answer
			c := a.newEndpoint(t)
			start := func() (mad []byte) {
				c.must(func() error {
					if resolve {
						return c.Resolve(a.path(b), time.Second, 15, &roce.SIDRREQ{ServiceID: service})
					}
					return c.Connect(request(a.path(b), 0x10))
				})
				return binary.BigEndian.AppendUint64(make([]byte, 8), c.tid)
			}
			mad, dst := start(), b.addrs[0]
			for i := range 8 { // any bit of the transaction ID
				forged := slices.Clone(mad)
				forged[8+i] ^= 1 << i
				a.device.Refused(dst, forged)
			}
			a.device.Refused(netip.MustParseAddr("10.0.0.77"), mad)
			a.device.Refused(dst, mad[:15])
			b.device.Refused(dst, mad)
			if got := c.types(); len(got) != 0 {
				t.Fatalf("events %v after forged reports", got)
			}
			a.device.Refused(dst, mad)
			want := RequestFailed
			if resolve {
				want = ResolveFailed
			}
			c.expect(want)
			if !c.last().Refused {
				t.Error("the event does not say that the host has refused")
			}
			if c.State() != Idle {
				t.Errorf("state %v", c.State())
			}
			sent := len(n.sent)
			wait(time.Minute)
			if len(n.sent) != sent {
				t.Errorf("%d messages after the refusal", len(n.sent)-sent)
			}
			a.device.Refused(dst, mad) // once more
			c.destroy()
			checkEmpty(t, a.manager)
		})
	}
}

// TestRefusedAfterAnswer reports a refusal of a host that has asked for time: it is not believed.
func TestRefusedAfterAnswer(t *testing.T) {
	world(t, 1, func(t *testing.T, n *network, a, b *host) {
		b.listen(t, &server{})
		c := a.newEndpoint(t)
		c.must(func() error { return c.Connect(request(a.path(b), 0x10)) })
		mra := &roce.MRA{RemoteCommID: c.local, LocalCommID: 5, Message: roce.AnswersREQ, ServiceTimeout: 20}
		mad, err := roce.AppendCM(nil, c.tid, mra)
		if err != nil {
			t.Fatal(err)
		}
		a.device.Receive(Source{Addr: b.addrs[0]}, mad)
		a.device.Refused(b.addrs[0], binary.BigEndian.AppendUint64(make([]byte, 8), c.tid))
		if c.State() != MRARequestRcvd {
			t.Errorf("state %v", c.State())
		}
		c.destroy()
	})
}
