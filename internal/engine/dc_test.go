package engine

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/roce"
)

const testDCKey = 0x1234567890abcdef

// testInitiator is a DCI and what it needs of its node.
type testInitiator struct{ *conn }

func (n *node) newInitiator() *testInitiator {
	n.t.Helper()
	c := &testInitiator{n.newQP(verbs.RC, func(i *QPInit) { i.Dynamic = true })}
	c.start()
	return c
}

// start moves the DCI from RESET to RTS. The timeout is short, as tests lose packets.
func (c *testInitiator) start() {
	c.n.t.Helper()
	a := c.attrs(c.conn, func(a *verbs.QPAttr) { a.RetryCount = 5 })
	a.State = verbs.StateInit
	c.mustModify(a, verbs.MaskState|maskInit)
	a.State = verbs.StateRTR
	c.mustModify(a, verbs.MaskState|verbs.MaskPathMTU|verbs.MaskMaxDestRDAtomic|verbs.MaskMinRNRTimer)
	c.toRTS(func(a *verbs.QPAttr) { a.RetryCount = 5 })
}

func (c *testInitiator) restart() {
	c.n.t.Helper()
	c.mustModify(&verbs.QPAttr{State: verbs.StateReset}, verbs.MaskState)
	c.start()
}

// to posts a request to a target.
func (c *testInitiator) to(d Destination, wrs ...verbs.SendWR) {
	c.n.t.Helper()
	for i := range wrs {
		r := c.SendRing()
		r.dests[r.producer()] = d
		wrs[i].Flags |= verbs.SendSignaled
		c.put(&wrs[i])
	}
	if err := c.Doorbell(); err != nil {
		c.n.t.Fatal(err)
	}
}

// testTarget is a target, with an SRQ of its own.
type testTarget struct {
	*Target
	n   *node
	srq *SRQ
}

func (n *node) newTarget(key uint64) *testTarget {
	n.t.Helper()
	s := must(n.pd.CreateSRQ(SRQInit{MaxWR: 64, MaxSGE: 2}))(n.t)
	t := must(n.pd.CreateTarget(TargetInit{Key: key, CQ: n.rcq.CQ, SRQ: s, Access: verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic, MinRNRTimer: 1, MaxMTU: verbs.MTU4096}))(n.t)
	return &testTarget{t, n, s}
}

// at returns the destination that an initiator of a node has for the target.
func (t *testTarget) at(from *node, key uint64) Destination {
	gid, _ := t.n.dev.GID(0)
	ah := must(from.pd.CreateAH(verbs.AddressVector{Global: true, DGID: gid, Port: 1, HopLimit: 64}))(t.n.t)
	return Destination{AH: ah.Num(), Num: t.Num(), Key: key}
}

func (t *testTarget) legCount() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.legs)
}

// TestDynamicConnection sends all kinds of messages from initiators to targets in turn, on a network that
// loses and repeats packets, those of the handshake among them, and within a device.
func TestDynamicConnection(t *testing.T) {
	for _, test := range []struct {
		name string
		f    faults
		own  bool
	}{{"network", faults{}, false}, {"lossy network", faults{loss: 0.05, dup: 0.05}, false}, {"device", faults{}, true}} {
		t.Run(test.name, func(t *testing.T) {
			net := newTestNetwork(3, test.f)
			a := newNode(t, net, 1<<16, addrA)
			b := a
			if !test.own {
				b = newNode(t, net, 1<<16, addrB)
			}
			qps := []*testInitiator{a.newInitiator(), a.newInitiator()}
			var targets []*testTarget
			var dests []Destination
			for range 3 {
				d := b.newTarget(testDCKey)
				targets, dests = append(targets, d), append(dests, d.at(a, testDCKey))
			}
			for i := range 60 {
				q, d, to := qps[i%2], targets[i%3], dests[i%3]
				n := 1 + i*97
				fill(a.mem[:n], i)
				clear(b.mem[1<<15:])
				putRecv(t, d.srq.Ring(), uint64(i), b.sge(1<<15+8192, 8192))
				q.to(to,
					verbs.SendWR{ID: 1, Opcode: verbs.OpRDMAWrite, SGL: []verbs.SGE{a.sge(0, n)}, RemoteAddr: b.addr(1 << 15), RKey: b.mr.RKey()},
					verbs.SendWR{ID: 2, Opcode: verbs.OpRDMARead, SGL: []verbs.SGE{a.sge(8192, n)}, RemoteAddr: b.addr(1 << 15), RKey: b.mr.RKey()},
					verbs.SendWR{ID: 3, Opcode: verbs.OpSendImm, Imm: uint32(i), SGL: []verbs.SGE{a.sge(0, n)}},
				)
				for id := range 3 {
					a.cq.expect(t, uint64(id+1), verbs.WCSuccess)
				}
				if wc := b.rcq.next(t); wc.Status != verbs.WCSuccess || wc.ID != uint64(i) || int(wc.ByteLen) != n || wc.Imm() != uint32(i) {
					t.Fatalf("receive %+v", wc)
				}
				for what, got := range map[string][]byte{"written": b.mem[1<<15:], "read": a.mem[8192:], "sent": b.mem[1<<15+8192:]} {
					if !bytes.Equal(got[:n], a.mem[:n]) {
						t.Fatalf("round %d: what was %s differs", i, what)
					}
				}
			}
			// Each initiator is connected to one target: the others know that it has gone, unless that was lost.
			legs := 0
			for _, d := range targets {
				legs += d.legCount()
			}
			if want := len(qps); test.f.loss == 0 && legs != want {
				t.Errorf("the targets have %d legs, want %d", legs, want)
			}
			for _, q := range qps {
				q.Destroy()
			}
			for _, d := range targets {
				if err := d.Destroy(); err != nil {
					t.Error(err)
				}
				if err := d.srq.Destroy(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// TestDynamicConnectionRefused fails requests to targets that do not answer, and resets the initiator.
func TestDynamicConnectionRefused(t *testing.T) {
	net := newTestNetwork(1, faults{})
	a, b := newNode(t, net, 4096, addrA), newNode(t, net, 4096, addrB)
	q, d := a.newInitiator(), b.newTarget(testDCKey)
	write := verbs.SendWR{ID: 1, Opcode: verbs.OpRDMAWrite, SGL: []verbs.SGE{a.sge(0, 8)}, RemoteAddr: b.addr(0), RKey: b.mr.RKey()}
	to := d.at(a, testDCKey)
	absent := to
	absent.Num++
	drained := b.newTarget(testDCKey)
	q.to(drained.at(a, testDCKey), write)
	a.cq.expect(t, 1, verbs.WCSuccess)
	drained.Drain()
	nowhere := must(a.pd.CreateAH(verbs.AddressVector{Global: true, DGID: netip.MustParseAddr("::ffff:10.0.0.9").As16(), Port: 1}))(t)
	for name, dest := range map[string]Destination{
		"another key": d.at(a, testDCKey+1), "no target": absent, "drained target": drained.at(a, testDCKey),
		"no machine": {AH: nowhere.Num(), Num: to.Num, Key: testDCKey},
	} {
		t.Run(name, func(t *testing.T) {
			q.to(to, write) // what is before the failure is executed
			q.to(dest, verbs.SendWR{ID: 2, Opcode: verbs.OpRDMAWrite, SGL: []verbs.SGE{a.sge(0, 8)}, RemoteAddr: b.addr(0), RKey: b.mr.RKey()})
			q.to(to, verbs.SendWR{ID: 3, Opcode: verbs.OpRDMAWrite, SGL: []verbs.SGE{a.sge(0, 8)}, RemoteAddr: b.addr(0), RKey: b.mr.RKey()})
			a.cq.expect(t, 1, verbs.WCSuccess)
			a.cq.expect(t, 2, verbs.WCRetryExcErr)
			a.cq.expect(t, 3, verbs.WCFlushErr)
			q.restart()
			q.to(to, write)
			a.cq.expect(t, 1, verbs.WCSuccess)
		})
	}
	// A key that the target's memory does not have ends the leg as well, and a new one takes its place.
	bad := write
	bad.RKey++
	q.to(to, bad)
	a.cq.expect(t, 1, verbs.WCRemAccessErr)
	q.restart()
	q.to(to, write)
	a.cq.expect(t, 1, verbs.WCSuccess)
	if n := d.legCount(); n != 1 {
		t.Errorf("%d legs for one initiator", n)
	}
	// A target ends in the midst of a message that waits for a receive.
	q.to(to, verbs.SendWR{ID: 5, Opcode: verbs.OpSend, SGL: []verbs.SGE{a.sge(0, 8)}})
	d.Drain()
	a.cq.expect(t, 5, verbs.WCRetryExcErr)
}

// TestDynamicConnectionMessages gives a target and an initiator messages that belong to no handshake.
func TestDynamicConnectionMessages(t *testing.T) {
	net := newTestNetwork(1, faults{})
	a, b := newNode(t, net, 4096, addrA), newNode(t, net, 4096, addrB)
	q, d := a.newInitiator(), b.newTarget(testDCKey)
	to := d.at(a, testDCKey)
	write := verbs.SendWR{ID: 1, Opcode: verbs.OpRDMAWrite, SGL: []verbs.SGE{a.sge(0, 8)}, RemoteAddr: b.addr(0), RKey: b.mr.RKey()}
	q.to(to, write)
	a.cq.expect(t, 1, verbs.WCSuccess)
	send := func(change func(m *packet)) {
		m := &packet{src: addrA, dst: addrB}
		m.Opcode, m.PKey, m.DestQP, m.DETH.SrcQP, m.DETH.QKey, m.Payload = roce.UDSendOnly, roce.DefaultPKey, d.Num(), 99, dcQKey, make([]byte, dcSize)
		m.Payload[dcKind], m.Payload[dcMTU] = dcConnect, byte(verbs.MTU1024)
		binary.BigEndian.PutUint64(m.Payload[dcKey:], testDCKey)
		change(m)
		d.receive(m)
	}
	for name, change := range map[string]func(m *packet){
		"Q_Key":  func(m *packet) { m.DETH.QKey++ },
		"length": func(m *packet) { m.Payload = m.Payload[1:] },
		"kind":   func(m *packet) { m.Payload[dcKind] = 77 },
		"MTU":    func(m *packet) { m.Payload[dcMTU] = 9 },
		"key":    func(m *packet) { m.Payload[dcKey]++ },
		"close":  func(m *packet) { m.DETH.SrcQP, m.Payload[dcKind] = q.Num(), dcClose },
		"P_Key":  func(m *packet) { m.PKey = 1 },
	} {
		send(change)
		if n := d.legCount(); n != 1 {
			t.Fatalf("%s: %d legs", name, n)
		}
	}
	// Twice the same handshake is one leg, another one of the same initiator takes its place.
	for _, token := range []uint32{5, 5, 6} {
		send(func(m *packet) { binary.BigEndian.PutUint32(m.Payload[dcToken:], token) })
		if n := d.legCount(); n != 2 {
			t.Fatalf("%d legs", n)
		}
	}
	q.to(to, write)
	a.cq.expect(t, 1, verbs.WCSuccess)
	// Initiators that have gone without a word leave legs, of which those that receive nothing go.
	for i := range fewLegs + 10 {
		send(func(m *packet) { m.DETH.SrcQP = 1000 + uint32(i) })
	}
	d.swept -= 2 * legIdle
	send(func(m *packet) { m.DETH.SrcQP = 5000 }) // notes where they are
	q.to(to, write)
	a.cq.expect(t, 1, verbs.WCSuccess)
	d.swept -= 2 * legIdle
	send(func(m *packet) { m.DETH.SrcQP = 5001 })
	if n := d.legCount(); n > 4 {
		t.Errorf("%d legs are left", n)
	}
	q.to(to, write)
	a.cq.expect(t, 1, verbs.WCSuccess)
	// One that waits for a receive stays.
	q.to(to, verbs.SendWR{ID: 7, Opcode: verbs.OpSend, SGL: []verbs.SGE{a.sge(0, 8)}})
	heard := func() uint64 {
		d.mu.Lock()
		defer d.mu.Unlock()
		qp := d.legs[legKey{addrA, q.Num()}].qp
		qp.mu.Lock()
		defer qp.mu.Unlock()
		return qp.heard
	}
	for round := range uint32(3) {
		for i := range uint32(fewLegs + 10) {
			send(func(m *packet) { m.DETH.SrcQP = 10_000 + round*1000 + i })
		}
		was := heard()
		until(t, "the message to be sent again", func() bool { return heard() > was })
		d.swept -= 2 * legIdle
		send(func(m *packet) { m.DETH.SrcQP = 20_000 + round })
	}
	putRecv(t, d.srq.Ring(), 8, b.sge(0, 8))
	a.cq.expect(t, 7, verbs.WCSuccess)
}

// FuzzDynamicConnection gives a target and an initiator any message of the handshake, as strangers may send
// it: a target has no more legs than it may, and an initiator connects only to what has its token.
func FuzzDynamicConnection(f *testing.F) {
	b := newNode(f, newTestNetwork(1, faults{}), 4096, addrB)
	d, to := b.newTarget(testDCKey), &path{remote: addrB}
	for kind := range byte(4) {
		m := make([]byte, dcSize)
		m[dcKind], m[dcMTU] = kind, byte(verbs.MTU1024)
		binary.BigEndian.PutUint64(m[dcKey:], testDCKey)
		f.Add(m, uint32(99), uint32(0))
	}
	f.Fuzz(func(t *testing.T, payload []byte, from, token uint32) {
		p := &packet{src: addrB, dst: addrB}
		p.Opcode, p.PKey, p.DestQP, p.DETH.SrcQP, p.DETH.QKey, p.Payload = roce.UDSendOnly, roce.DefaultPKey, d.Num(), from, dcQKey, payload
		d.receive(p)
		if n := d.legCount(); n > maxLegs {
			t.Fatalf("%d legs", n)
		}
		r := &requester{qp: &QP{dev: b.dev, state: verbs.StateRTS}, dc: initiator{state: dcAsking, to: Destination{Num: from}, path: to, token: token}}
		r.accepted(p)
		fits := len(payload) == dcSize && payload[dcKind] == dcAccept && binary.BigEndian.Uint32(payload[dcToken:]) == token
		if connected := r.dc.state == dcConnected; connected != fits || connected && r.qp.attr.DestQPNum != binary.BigEndian.Uint32(payload[dcLeg:]) {
			t.Errorf("% x: connected to %d: %v", payload, r.qp.attr.DestQPNum, connected)
		}
	})
}
