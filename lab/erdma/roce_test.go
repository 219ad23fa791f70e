//go:build linux

package erdma

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/goverbs/verbs"
)

// roceMachine makes a machine whose adapter is in RoCE mode, with the address 10.0.0.number.
func roceMachine(t testing.TB, n *network, number byte) *machine {
	t.Helper()
	m := newMachine(t, n, number, func(c *Config) { c.RoCE = true })
	m.must(opcode{rdma, 14}, gidCommand(0, netip.AddrFrom4([4]byte{10, 0, 0, number})))
	return m
}

// gidCommand sets a GID.
func gidCommand(i uint64, addr netip.Addr) command {
	c, ip := newCommand(), addr.As16()
	copy(c[4:], ip[:])
	if addr.Is6() {
		i |= 1 << 16
	}
	return c.put(8, 4, i)
}

// vectorTo stores an address vector to a machine at an offset.
func vectorTo(c command, off int, m *machine) command {
	ip := netip.AddrFrom4([4]byte{10, 0, 0, m.dev.cfg.MAC[5]}).As16()
	copy(c[off-8+20:], ip[:])
	return c.put(off+5, 1, 64)
}

// change returns the command that changes attributes, and moves the QP to a state.
func (q *testQP) change(to uint64, mask uint32) command {
	return newCommand().put(8, 4, to<<24|uint64(q.num)).put(16, 4, uint64(mask|attrState))
}

// createUD makes a UD QP of the kernel.
func (m *machine) createUD() *testQP {
	m.t.Helper()
	m.qpns++
	q := &testQP{m: m, num: m.qpns, send: m.createCQ(), recv: m.createCQ(), sq: m.alloc(testUnits * unit), rq: m.alloc(testRecvs * unit), sendPage: 95, recvPage: firstRecvPage}
	m.must(opcode{rdma, 1}, m.qpCommand(q).put(116, 4, qpUD))
	return q
}

// TestRoCE connects QPs as the driver does in RoCE mode, and exchanges data. Their numbers are those on the
// wire.
func TestRoCE(t *testing.T) {
	n := newNetwork()
	x, y := roceMachine(t, n, 1), roceMachine(t, n, 2)
	x.qpns, y.qpns = 40, 60
	q, p := x.createQP(), y.createQP()
	a, b := x.register(allRights), y.register(allRights)
	steps := func(q, p *testQP) (init, rtr, rts command) {
		rtr = vectorTo(q.change(2, attrVector|attrRecvPSN|attrPeer).put(12, 4, uint64(p.num)).put(24, 4, 1000+uint64(p.num)), 32, p.m)
		return q.change(1, 0), rtr, q.change(3, attrSendPSN).put(28, 4, 1000+uint64(q.num))
	}
	for _, c := range [][2]*testQP{{q, p}, {p, q}} {
		init, rtr, rts := steps(c[0], c[1])
		m := c[0].m
		for _, refused := range []command{rtr, rts, c[0].change(4, 0), c[0].change(9, 0), newCommand().put(8, 4, 1<<24|uint64(c[0].num))} {
			if _, status := m.run(opcode{rdma, 3}, refused); status == 0 {
				t.Errorf("command %x is executed in RESET", refused[:16])
			}
		}
		m.must(opcode{rdma, 3}, init)
		for _, missing := range []uint32{attrVector, attrRecvPSN, attrPeer} {
			if _, status := m.run(opcode{rdma, 3}, append(command(nil), rtr...).put(16, 4, uint64(attrState|attrVector|attrRecvPSN|attrPeer)&^uint64(missing))); status == 0 {
				t.Errorf("a QP is moved to RTR without attribute %#x", missing)
			}
		}
		m.must(opcode{rdma, 3}, rtr)
		m.must(opcode{rdma, 3}, rts)
	}
	want := x.fill(a.addr, 3000, 5)
	r := p.receive(b.addr, 3000, b.key)
	q.sent(q.post(send(opSend, a.addr, 3000, a.key)), opSend, 0)
	p.received(r, opRecv, 0)
	if !bytes.Equal(want, y.at(b.addr, 3000)) {
		t.Error("the data differs")
	}
	answer := x.must(opcode{rdma, 17}, newCommand().put(8, 4, uint64(q.num)))[0]
	if state, sq := answer>>48, answer&0xffffff; state != 3 || sq <= 1000+uint64(q.num) {
		t.Errorf("QUERY_QP answers state %d, number %d", state, sq)
	}
	x.must(opcode{rdma, 3}, q.change(6, 0))
	q.sent(q.post(send(opSend, a.addr, 1, a.key)), opSend, wcFlush)
	x.must(opcode{rdma, 3}, q.change(0, 0))
	if q.state() != verbs.StateReset {
		t.Errorf("state %v", q.state())
	}
	q.pi, q.rpi = 0, 0
	if _, status := newMachine(t, newNetwork(), 3).run(opcode{rdma, 14}, gidCommand(0, netip.AddrFrom4([4]byte{10, 0, 0, 3}))); status == 0 {
		t.Error("an adapter in iWARP mode has GIDs")
	}
}

// TestDatagrams exchanges datagrams between QPs of UD, also QP 1, to which the driver may give no number.
func TestDatagrams(t *testing.T) {
	n := newNetwork()
	x, y := roceMachine(t, n, 1), roceMachine(t, n, 2)
	const key = 0x11111111
	for i, num := range []uint32{0, 50} {
		x.qpns, y.qpns = num-1, num-1
		q, p := x.createUD(), y.createUD()
		for _, e := range []*testQP{q, p} {
			if _, status := e.m.run(opcode{rdma, 3}, e.change(1, 0)); status == 0 {
				t.Error("a UD QP has no Q_Key")
			}
			e.m.must(opcode{rdma, 3}, e.change(1, attrQKey).put(20, 4, key))
			e.m.must(opcode{rdma, 3}, e.change(2, 0))
			e.m.must(opcode{rdma, 3}, e.change(3, attrSendPSN))
		}
		ah := uint64(3 + i)
		handle := func() command { return handleTo(y, ah) }
		x.must(opcode{rdma, 15}, handle())
		if _, status := x.run(opcode{rdma, 15}, handle()); status == 0 {
			t.Error("an address handle is made twice")
		}
		a, b := x.register(allRights), y.register(allRights)
		want := x.fill(a.addr, 500, byte(i))
		p.num, q.num = max(p.num, 1), max(q.num, 1)
		datagram := newRequest(2).put(0, 8, 1<<sqeLength|opSend<<sqeOpcode|sqeSignaled).put(12, 4, 500).put(udQKey, 4, key).put(udQPN, 4, uint64(p.num)).put(udAH, 4, ah).
			sge(32, a.addr, 500, a.key)
		r := p.receive(b.addr, 1000, b.key)
		q.sent(q.post(datagram), opSend, 0)
		e := p.received(r, opRecv, 0)
		if got := be.Uint32(e[cqeSource:]); got != q.num || be.Uint32(e[cqeSize:]) != 540 || !bytes.Equal(want, y.at(b.addr+40, 500)) {
			t.Errorf("received %x from %#x", e, got)
		}
		q.sent(q.post(append(request(nil), datagram...).put(udAH, 4, 99)), opSend, wcSendFormat)
		x.must(opcode{rdma, 16}, handle())
		if _, status := x.run(opcode{rdma, 16}, handle()); status == 0 {
			t.Error("an address handle is destroyed twice")
		}
	}
}
