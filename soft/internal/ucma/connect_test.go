package ucma

import (
	"bytes"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/host"
	"github.com/goverbs/verbs/internal/roce"
)

const (
	tcp = abi.RDMA_PS_TCP
	udp = abi.RDMA_PS_UDP
)

// TestConnect makes and ends a connection.
func TestConnect(t *testing.T) {
	for _, addr := range []string{"10.0.0.2:7471", "10.0.0.2:0", "[fd00::2]:7471", "0.0.0.0:7471", "[::]:7471"} {
		t.Run(addr, func(t *testing.T) {
			two(t, func(t *testing.T, n *network, a, b *program) {
				l, dst := b.listener(tcp, addr)
				dst = strings.NewReplacer("0.0.0.0", "10.0.0.2", "[::]", "10.0.0.2").Replace(dst)
				c := a.resolved(tcp, dst)
				src, to, device := c.addrs()
				if to.String() != dst || device != 1 || src.Port() < firstLocalPort {
					t.Errorf("from %v to %v by device %d", src, to, device)
				}
				if attr, err := c.initQPAttr(verbs.StateInit); err != nil || attr.QpAttrMask != uint32(verbs.MaskState|verbs.MaskPKeyIndex|verbs.MaskPort|verbs.MaskAccess) || attr.PortNum != 1 {
					t.Errorf("%+v, %v", attr, err)
				}
				a.must(c.connect(0x10, "from client"))
				s, e := l.request()
				if data := e.Param.Conn(); data.PrivateDataLen != roce.REQPrivateData-roce.CMAHeaderSize || !bytes.HasPrefix(data.PrivateData[:], []byte("from client\x00")) ||
					data.QpNum != 0x10 || data.ResponderResources != 3 || data.InitiatorDepth != 2 || data.RetryCount != 6 || data.RnrRetryCount != 7 {
					t.Errorf("%+v", data)
				}
				if e.Ece != (abi.RdmaUcmEce{VendorId: 0x15b3, AttrMod: 7}) {
					t.Errorf("ECE %+v", e.Ece)
				}
				local, remote, device := s.addrs()
				if local != to || remote != src || device != 2 {
					t.Errorf("from %v to %v by device %d", local, remote, device)
				}
				for _, state := range []verbs.QPState{verbs.StateInit, verbs.StateRTR, verbs.StateRTS} {
					if _, err := s.initQPAttr(state); err != nil {
						t.Error(state, err)
					}
				}
				b.must(s.accept(0x20, "from server"))
				e = c.expect(connectResponse, 0)
				if data := e.Param.Conn(); data.PrivateDataLen != roce.REPPrivateData || !bytes.HasPrefix(data.PrivateData[:], []byte("from server\x00")) || data.QpNum != 0x20 {
					t.Errorf("%+v", data)
				}
				rtr, err := c.initQPAttr(verbs.StateRTR)
				peer, _ := s.initQPAttr(verbs.StateRTS)
				if err != nil || rtr.DestQpNum != 0x20 || rtr.RqPsn != peer.SqPsn || rtr.PathMtu != 5 || rtr.AhAttr.IsGlobal != 1 || rtr.AhAttr.Grh.Dgid != to.Addr().As16() || rtr.AhAttr.PortNum != 1 {
					t.Errorf("%+v, %v", rtr, err)
				}
				rts, err := c.initQPAttr(verbs.StateRTS)
				peer, _ = s.initQPAttr(verbs.StateRTR)
				if err != nil || rts.SqPsn != peer.RqPsn || rts.Timeout != 17 || rts.RetryCnt != 6 {
					t.Errorf("%+v, %v", rts, err)
				}
				a.must(c.establish())
				s.expect(established, 0)

				a.must(c.disconnect())
				s.expect(disconnected, 0)
				b.must(s.disconnect())
				c.expect(disconnected, 0)
				c.expect(timewaitExit, 0)
				s.expect(timewaitExit, 0)
				if got := c.destroy(); got != 5 {
					t.Errorf("%d events were reported", got)
				}
				if got := s.destroy(); got != 3 {
					t.Errorf("%d events were reported", got)
				}
				if got := l.destroy(); got != 1 {
					t.Errorf("%d events were reported", got)
				}
				a.idle()
				b.idle()
				checkEmpty(t, a.m)
				checkEmpty(t, b.m)
			})
		})
	}
}

// checkEmpty checks that no IDs are left.
func checkEmpty(t *testing.T, m *Manager) {
	t.Helper()
	m.lock()
	defer m.unlock()
	left := len(m.anywhere) + len(m.ports)
	for _, c := range m.contexts.Values {
		if c != nil {
			left++
		}
	}
	for _, g := range m.groups.Values {
		if g != nil {
			left++
		}
	}
	if left != 0 {
		t.Errorf("%d objects are left", left)
	}
}

// TestRefused connects to a port without a listener, or the request is refused.
func TestRefused(t *testing.T) {
	two(t, func(t *testing.T, n *network, a, b *program) {
		c := a.resolved(tcp, "10.0.0.2:7471")
		a.must(c.connect(1, ""))
		c.expect(rejected, int(roce.RejInvalidServiceID))
		if err := c.connect(1, ""); err != syscall.EINVAL {
			t.Error(err)
		}

		l, _ := b.listener(tcp, "10.0.0.2:7471")
		for _, reason := range []uint8{0, uint8(roce.RejConsumerDefined), uint8(roce.RejVendorOption)} {
			c := a.resolved(tcp, "10.0.0.2:7471")
			a.must(c.connect(1, ""))
			s, _ := l.request()
			b.must(s.reject(reason, "not you"))
			if reason == 0 {
				reason = uint8(roce.RejConsumerDefined)
			}
			e := c.expect(rejected, int(reason)).Param.Conn()
			if e.PrivateDataLen != roce.REJPrivateData || !bytes.HasPrefix(e.PrivateData[:], []byte("not you\x00")) {
				t.Errorf("%+v", e)
			}
			s.destroy()
		}
		c = a.resolved(tcp, "10.0.0.2:7471")
		a.must(c.connect(1, ""))
		s, _ := l.request()
		isErrno(t, "reject for another reason", s.reject(3, ""), syscall.EINVAL)
		isErrno(t, "long data", s.reject(0, strings.Repeat("x", roce.REJPrivateData+1)), syscall.EINVAL)
		s.destroy() // rejects
		c.expect(rejected, int(roce.RejConsumerDefined))

		// Listeners at another address of the device, and for another family, do not match.
		for _, addr := range []string{"[fd00::2]:7472", "10.0.0.2:7473"} {
			b.listener(tcp, addr)
		}
		c = a.resolved(tcp, "10.0.0.2:7472")
		a.must(c.connect(1, ""))
		c.expect(rejected, int(roce.RejConsumerDefined))
		b.idle()
	})
}

// TestAcceptFails accepts with too much private data: the peer is rejected.
func TestAcceptFails(t *testing.T) {
	two(t, func(t *testing.T, n *network, a, b *program) {
		l, dst := b.listener(tcp, "10.0.0.2:0")
		c := a.resolved(tcp, dst)
		isErrno(t, "connect with long data", c.connect(1, strings.Repeat("x", 57)), syscall.EINVAL)
		a.must(c.connect(1, strings.Repeat("x", 56)))
		s, _ := l.request()
		isErrno(t, "accept with long data", s.accept(2, strings.Repeat("x", roce.REPPrivateData+1)), syscall.EINVAL)
		c.expect(rejected, int(roce.RejConsumerDefined))
	})
}

// TestUnreachable connects to a host that does not answer.
func TestUnreachable(t *testing.T) {
	two(t, func(t *testing.T, n *network, a, b *program) {
		c := a.resolved(tcp, "10.0.0.77:7471")
		start := time.Now()
		a.must(c.connect(1, ""))
		c.expect(unreachable, -int(syscall.ETIMEDOUT))
		if took := time.Since(start).Round(time.Second); took != 74*time.Second {
			t.Errorf("it took %v", took)
		}
		if len(n.sent) != 16 {
			t.Errorf("%d messages", len(n.sent))
		}
	})
}

// TestLostReply loses all confirmations: the accepting side reports that the peer is
// unreachable.
func TestLostReply(t *testing.T) {
	two(t, func(t *testing.T, n *network, a, b *program) {
		n.drop = func(m roce.CMMessage) bool { return m.Attr() == roce.AttrRTU }
		l, dst := b.listener(tcp, "10.0.0.2:0")
		c := a.resolved(tcp, dst)
		a.must(c.connect(1, ""))
		s, _ := l.request()
		b.must(s.accept(2, ""))
		c.expect(connectResponse, 0)
		a.must(c.establish())
		s.expect(unreachable, -int(syscall.ETIMEDOUT))
	})
}

// TestNotify reports the first message of a connection before the confirmation.
func TestNotify(t *testing.T) {
	two(t, func(t *testing.T, n *network, a, b *program) {
		n.drop = func(m roce.CMMessage) bool { return m.Attr() == roce.AttrRTU }
		l, dst := b.listener(tcp, "10.0.0.2:0")
		c := a.resolved(tcp, dst)
		a.must(c.connect(1, ""))
		s, _ := l.request()
		notify := func(e verbs.AsyncEventType) error {
			return run(b, abi.RDMA_USER_CM_CMD_NOTIFY, &abi.RdmaUcmNotify{Id: s.num, Event: uint32(e)})
		}
		isErrno(t, "early", notify(verbs.EventCommEst), syscall.EINVAL)
		b.must(s.accept(2, ""))
		c.expect(connectResponse, 0)
		isErrno(t, "other event", notify(verbs.EventPortActive), syscall.EINVAL)
		b.must(notify(verbs.EventCommEst))
		s.expect(established, 0)
		isErrno(t, "again", notify(verbs.EventCommEst), syscall.EISCONN)
	})
}

// TestBothDisconnect disconnects on both sides at the same time.
func TestBothDisconnect(t *testing.T) {
	two(t, func(t *testing.T, n *network, a, b *program) {
		c, s := connect(t, a, b)
		a.must(c.disconnect())
		b.must(s.disconnect())
		for _, i := range []*testID{c, s} {
			i.expect(disconnected, 0)
			i.must(i.disconnect())
			i.expect(timewaitExit, 0)
			i.must(i.disconnect()) // has no effect
			i.idle()
		}
	})
}

// connect connects two programs.
func connect(t *testing.T, a, b *program) (c, s *testID) {
	t.Helper()
	l, dst := b.listener(tcp, "10.0.0.2:0")
	c = a.resolved(tcp, dst)
	a.must(c.connect(1, ""))
	s, _ = l.request()
	b.must(s.accept(2, ""))
	c.expect(connectResponse, 0)
	a.must(c.establish())
	s.expect(established, 0)
	return c, s
}

// TestClose closes a file with a connection and a listener: the peer is disconnected, and
// nothing is left.
func TestClose(t *testing.T) {
	two(t, func(t *testing.T, n *network, a, b *program) {
		_, s := connect(t, a, b)
		a.file.Close()
		s.expect(disconnected, 0)
		checkEmpty(t, a.m)
		if err := a.write(abi.RDMA_USER_CM_CMD_CREATE_ID, nil, 4); err != syscall.EBADF {
			t.Error(err)
		}
		b.file.Close()
		checkEmpty(t, b.m)
	})
}

// TestBacklog connects more often than requests may wait: the others are repeated and get in
// when there is room.
func TestBacklog(t *testing.T) {
	two(t, func(t *testing.T, n *network, a, b *program) {
		l := b.newID(tcp)
		b.must(l.bind("10.0.0.2:7471"))
		b.must(l.listen(2))
		var clients []*testID
		for qp := range uint32(5) {
			c := a.resolved(tcp, "10.0.0.2:7471")
			a.must(c.connect(qp, ""))
			clients = append(clients, c)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if n := len(b.file.events); n != 2 {
			t.Fatalf("%d requests wait", n)
		}
		for n := range clients {
			s, _ := l.request()
			b.must(s.reject(0, ""))
			if n < 2 {
				clients[n].expect(rejected, int(roce.RejConsumerDefined))
			}
			s.destroy()
		}
		if got := l.destroy(); got != 5 {
			t.Errorf("%d events were reported", got)
		}
	})
}

// TestDestroyListener destroys a listener with waiting requests: they are rejected.
func TestDestroyListener(t *testing.T) {
	two(t, func(t *testing.T, n *network, a, b *program) {
		l, dst := b.listener(tcp, "0.0.0.0:7471")
		dst = strings.Replace(dst, "0.0.0.0", "10.0.0.2", 1)
		c := a.resolved(tcp, dst)
		a.must(c.connect(1, ""))
		time.Sleep(time.Second)
		if got := l.destroy(); got != 0 {
			t.Errorf("%d events were reported", got)
		}
		c.expect(rejected, int(roce.RejConsumerDefined))
		b.idle()
		checkEmpty(t, b.m)
	})
}

// TestLoopback connects on one device, and between two devices of one machine.
func TestLoopback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		m := New(nil)
		n.device(m, 1, "10.0.0.1")
		n.device(m, 2, "10.0.1.1")
		p := newProgram(t, m)
		l, _ := p.listener(tcp, "0.0.0.0:7471")
		for _, test := range []struct{ src, dst, from string }{
			{"", "10.0.0.1:7471", "10.0.0.1"},
			{"10.0.0.1:0", "10.0.1.1:7471", "10.0.0.1"},
			{"", "10.0.1.1:7471", "10.0.1.1"},
		} {
			c := p.newID(tcp)
			p.must(c.resolve(test.src, test.dst))
			c.expect(addrResolved, 0)
			p.must(c.resolveRoute())
			c.expect(routeResolved, 0)
			src, _, _ := c.addrs()
			if src.Addr().String() != test.from {
				t.Errorf("from %v to %s", src, test.dst)
			}
			p.must(c.connect(1, ""))
			s, _ := l.request()
			p.must(s.accept(2, ""))
			c.expect(connectResponse, 0)
			p.must(c.establish())
			s.expect(established, 0)
			c.destroy()
			s.expect(disconnected, 0)
			s.destroy()
		}
	})
}

// TestRemoveDevice removes a device: its IDs report that and are of no use any more, wildcard
// listeners stay.
func TestRemoveDevice(t *testing.T) {
	two(t, func(t *testing.T, n *network, a, b *program) {
		c, s := connect(t, a, b)
		l, _ := a.listener(tcp, "0.0.0.0:1234")
		bound := a.newID(tcp)
		a.must(bound.bind("10.0.0.1:0"))
		n.devices[netip.MustParseAddr("10.0.0.1")].d.Remove()
		want := map[uint64]bool{c.uid: true, bound.uid: true}
		for range 2 {
			e, err := a.next()
			if err != nil || eventType(e.Event) != deviceRemoval || !want[e.Uid] {
				t.Fatalf("%+v, %v", e, err)
			}
			delete(want, e.Uid)
		}
		a.idle()
		isErrno(t, "disconnect", c.disconnect(), syscall.ENXIO)
		c.destroy()
		bound.destroy()
		s.expect(disconnected, 0)

		// A new device serves the listener.
		n.device(a.m, 3, "10.0.0.1")
		peer := b.resolved(tcp, "10.0.0.1:1234")
		b.must(peer.connect(1, ""))
		l.request()
	})
}

// TestReady checks that the file is readable while there are events.
func TestReady(t *testing.T) {
	two(t, func(t *testing.T, n *network, a, b *program) {
		var states []host.State
		stop := a.file.Watch(func(s host.State) { states = append(states, s) })
		c := a.newID(tcp)
		a.must(c.resolve("", "10.0.0.2:1"))
		c.expect(addrResolved, 0)
		a.must(c.resolveRoute())
		c.destroy()
		stop()
		if want := []host.State{host.Idle, host.Readable, host.Idle, host.Readable, host.Idle}; !slices.Equal(states, want) {
			t.Errorf("%v, want %v", states, want)
		}
	})
}

// TestMigrate moves IDs with their events to another file.
func TestMigrate(t *testing.T) {
	two(t, func(t *testing.T, n *network, a, b *program) {
		l, dst := b.listener(tcp, "10.0.0.2:0")
		fd, errno := host.Install(b.file, "rdma_cm")
		if errno != 0 {
			t.Fatal(errno)
		}
		other := newProgram(t, b.m)
		c := a.resolved(tcp, dst)
		a.must(c.connect(1, ""))
		time.Sleep(time.Second)
		migrate := func(p *program, num uint32, fd int) error {
			req := abi.RdmaUcmMigrateId{Id: num, Fd: uint32(fd)}
			_, err := ask[abi.RdmaUcmMigrateResp](p, abi.RDMA_USER_CM_CMD_MIGRATE_ID, &req, &req.Response)
			return err
		}
		isErrno(t, "no file", migrate(other, l.num, fd+1), syscall.ENOENT)
		isErrno(t, "other machine", migrate(a, l.num, fd), syscall.EINVAL)
		isErrno(t, "no ID", migrate(other, 99, fd), syscall.ENOENT)
		b.must(migrate(other, l.num, fd))
		b.idle()
		isErrno(t, "listen on the old file", l.listen(1), syscall.EINVAL)
		moved := &testID{other, l.num, l.uid, tcp}
		e := moved.expect(connectRequest, 0)
		// The connection's ID is on the old file.
		s := &testID{b, e.Id, 0, tcp}
		b.must(s.accept(2, ""))
		c.expect(connectResponse, 0)
		b.must(migrate(other, s.num, fd))
		s.program = other
		a.must(c.establish())
		s.expect(established, 0)
	})
}

// TestClaimedAddress refuses requests, for a connection and for a datagram QP, whose private data
// names another host than the one that sent them.
func TestClaimedAddress(t *testing.T) {
	two(t, func(t *testing.T, n *network, a, b *program) {
		b.listener(tcp, "10.0.0.2:7471")
		b.listener(udp, "10.0.0.2:7471")
		from, to := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
		header := roce.CMAHeader{Port: 7, Src: netip.MustParseAddr("10.0.0.99"), Dst: to}
		service := func(space uint64) roce.ServiceID { return roce.ServiceID(space<<16 | 7471) }
		n.devices[from].send(t, to, &roce.REQ{
			LocalCommID: 1, ServiceID: service(tcp), LocalCAGUID: 7, LocalQPN: 17, PathMTU: 3,
			Primary: roce.CMPath{LocalGID: from.As16(), RemoteGID: to.As16()}, PrivateData: header.Append(nil),
		})
		n.devices[from].send(t, to, &roce.SIDRREQ{RequestID: 2, ServiceID: service(udp), PrivateData: header.Append(nil)})
		time.Sleep(time.Second)
		n.mu.Lock()
		defer n.mu.Unlock()
		var rejected, refused bool
		for _, m := range n.sent {
			switch m := m.(type) {
			case *roce.REJ:
				rejected = m.Reason == roce.RejConsumerDefined
			case *roce.SIDRREP:
				refused = m.Status == roce.SIDRReject
			}
		}
		if !rejected || !refused {
			t.Errorf("sent: %+v", n.sent)
		}
	})
}

// TestPathMTU rejects a request whose path MTU is larger than the port's, or none.
func TestPathMTU(t *testing.T) {
	for _, mtu := range []uint8{0, 6, 15} { // the port's is 5
		two(t, func(t *testing.T, n *network, a, b *program) {
			b.listener(tcp, "10.0.0.2:7471")
			from, to := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
			header := roce.CMAHeader{Port: 7, Src: from, Dst: to}
			n.devices[from].send(t, to, &roce.REQ{
				LocalCommID: 1, ServiceID: tcp<<16 | 7471, LocalCAGUID: 7, LocalQPN: 17, PathMTU: mtu,
				Primary: roce.CMPath{LocalGID: from.As16(), RemoteGID: to.As16()}, PrivateData: header.Append(nil),
			})
			time.Sleep(time.Second)
			n.mu.Lock()
			defer n.mu.Unlock()
			if r, ok := n.sent[len(n.sent)-1].(*roce.REJ); !ok || r.Reason != roce.RejInvalidMTU || len(r.Info) == 0 || r.Info[0] != 5 {
				t.Errorf("MTU %d: sent %+v", mtu, n.sent)
			}
		})
	}
}

// send sends a message that no manager has made.
func (d *device) send(t *testing.T, to netip.Addr, m roce.CMMessage) {
	t.Helper()
	mad, err := roce.AppendCM(nil, 7, m)
	if err != nil {
		t.Fatal(err)
	}
	d.SendMAD(d.GIDIndex(d.addrs[0]), to, 0, mad)
}
