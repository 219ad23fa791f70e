//go:build linux

package erdma

import (
	"net/netip"
	"testing"

	"github.com/goverbs/verbs/lab/vfiouser"
)

// fuzzed makes a machine with a QP: in iWARP mode it is connected to p, in RoCE mode it sends datagrams, for which the
// address handle 3 is.
func fuzzed(t *testing.T, roce bool) (m *machine, q, p *testQP) {
	if !roce {
		m = newMachine(t, newNetwork(), 1)
		q, p = m.createQP(), m.createQP()
		connect(q, p)
		return m, q, p
	}
	m = roceMachine(t, newNetwork(), 1)
	q, p = m.createUD(), m.createUD()
	for _, e := range []*testQP{q, p} {
		for _, c := range []command{e.change(1, attrQKey), e.change(2, 0), e.change(3, attrSendPSN)} {
			m.must(opcode{rdma, 3}, c)
		}
	}
	m.must(opcode{rdma, 15}, handleTo(m, 3))
	return m, q, p
}

// handleTo returns the command that makes an address handle for a machine.
func handleTo(m *machine, num uint64) command {
	return vectorTo(newCommand().put(8, 4, testPD).put(12, 4, num), 16, m)
}

// FuzzCommands executes commands one after the other, whose fields are those of good ones but for some
// bytes, so that objects are found.
func FuzzCommands(f *testing.F) {
	var ops []opcode
	for module := range uint8(2) {
		for op := range uint8(18) {
			if handlers[opcode{module, op}] != nil {
				ops = append(ops, opcode{module, op})
			}
		}
	}
	for i := range ops {
		f.Add([]byte{byte(i), 0, 0, byte(i), 8, 1, byte(i), 20, 255}, false)
		f.Add([]byte{byte(i), 0, 0, byte(i), 8, 1, byte(i), 20, 255}, true)
	}
	f.Fuzz(func(t *testing.T, data []byte, roce bool) {
		m, q, p := fuzzed(t, roce)
		r := m.register(allRights)
		fresh := &testQP{m: m, num: 10, send: q.send, recv: q.recv, sq: q.sq, rq: q.rq}
		for ; len(data) >= 3; data = data[3:] {
			op := ops[int(data[0])%len(ops)]
			c := newCommand().put(8, 4, uint64(q.num)).put(16, 8, m.record).put(24, 4, 256)
			switch op {
			case opcode{rdma, 1}:
				c = m.qpCommand(fresh)
			case opcode{rdma, 3}:
				if c = q.rts(p); roce {
					c = q.change(6, 0)
				}
			case opcode{rdma, 14}:
				c = gidCommand(1, netip.AddrFrom4([4]byte{10, 0, 0, 2}))
			case opcode{rdma, 15}, opcode{rdma, 16}:
				c = handleTo(m, 4)
			case opcode{rdma, 4}:
				c = m.cqCommand(&testCQ{num: 10, addr: q.send.addr})
			case opcode{rdma, 8}:
				c = m.mrCommand(10, r.addr, allRights)
			case opcode{common, 0}:
				c = m.eqCommand(3, m.eq)
			}
			c[int(data[1])%len(c)] ^= data[2]
			m.run(op, c)
			q.ring()
		}
	})
}

// FuzzRequests posts requests and receives of any bytes, of which some have a header that fits, and datagrams.
func FuzzRequests(f *testing.F) {
	r := region{base + 1<<20, 1 << 8}
	for _, v := range []request{
		send(opSend, r.addr, 64, r.key), send(opSendImm, r.addr, 64, r.key), send(opSendInv, r.addr, 64, r.key), write(opWrite, r.addr, 64, r.key, r),
		write(opWriteImm, r.addr, 64, r.key, r), read(opRead, r.addr, 64, r.key, r), read(opReadInv, r.addr, 64, r.key, r), write(opRegister, r.addr, 64, r.key, r),
		write(opLocalInv, r.addr, 64, r.key, r), write(opCompareSwap, r.addr, 64, r.key, r), write(opFetchAdd, r.addr, 64, r.key, r),
	} {
		f.Add([]byte(v), uint8(len(v)/unit), true, false)
	}
	f.Add([]byte(newRequest(2).put(0, 8, 1<<sqeLength|opSend<<sqeOpcode).put(12, 4, 64).put(udQPN, 4, 2).put(udAH, 4, 3).sge(32, r.addr, 64, r.key)), uint8(2), true, true)
	f.Fuzz(func(t *testing.T, data []byte, units uint8, fits, roce bool) {
		m, q, p := fuzzed(t, roce)
		m.register(allRights)
		m.must(opcode{rdma, 8}, newCommand().put(8, 4, 2).put(12, 4, testPD<<12|mrFast<<6).put(28, 4, 12<<27|1<<20|8).put(32, 8, m.alloc(pageSize)))
		p.receive(m.alloc(pageSize), pageSize, dmaKey)
		for range 2 {
			for len(data) > 0 {
				n := max(int(units%5), 1)
				r := newRequest(n)
				data = data[copy(r, data):]
				if fits {
					r.put(0, 8, le.Uint64(r)&^(7<<sqeUnits|0xfffff<<sqeQPN|0xffff|sqeDirect))
					q.post(r)
					continue
				}
				index := q.write(r)
				copy(m.at(q.sq+uint64(index)%testUnits*unit, unit), r) // without the header
				q.ring()
				copy(m.at(p.rq+uint64(p.receive(0, 0, 0))%testRecvs*unit, unit), r) // perhaps before the adapter reads it
			}
			m.must(opcode{rdma, 6}, newCommand().put(8, 4, uint64(q.num)).put(12, 4, uint64(q.pi)).put(16, 4, uint64(q.rpi)))
		}
	})
}

// FuzzRegisters stores anything to registers, pages of doorbells and the configuration.
func FuzzRegisters(f *testing.F) {
	f.Add([]byte{0, 0x10, 0, 4, 1, 0, 0, 0, 0, 0, 0, 0})
	f.Add([]byte{0, 0, 2, 8, 4, 0, 0, 0, 0, 0, 0, 0})
	f.Add([]byte{1, 0, 95, 8, 1, 0, 0, 0, 1, 0, 0, 0})
	f.Add([]byte{2, 0x44, 0, 4, 3, 0, 1, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		m := newMachine(t, newNetwork(), 1)
		q, p := m.createQP(), m.createQP()
		connect(q, p)
		for ; len(data) >= 12; data = data[12:] {
			off, size := uint64(le.Uint16(data[1:])), 4+uint64(data[3]&4)
			region := vfiouser.BAR0
			switch data[0] % 3 {
			case 1:
				off = off & 0x3ff << 12
			case 2:
				region, off = vfiouser.Config, off&0xffc
			}
			off &^= size - 1
			m.dev.Write(region, off, data[4:4+size])
			m.dev.Read(region, off, make([]byte, size))
		}
	})
}

// FuzzRoCE executes commands of RoCE mode that differ from good ones in some bytes, and then sends datagrams.
func FuzzRoCE(f *testing.F) {
	for i := range byte(8) {
		f.Add([]byte{i, 0, 0}, uint32(0), uint32(0))
		f.Add([]byte{i, 8, 1, i, 12, 3, i, 20, 255}, uint32(7), uint32(1<<19))
	}
	f.Fuzz(func(t *testing.T, data []byte, ah, qpn uint32) {
		m := roceMachine(t, newNetwork(), 1)
		m.qpns = 40
		q, u := m.createQP(), m.createUD()
		m.must(opcode{rdma, 3}, u.change(1, attrQKey).put(20, 4, 77))
		m.must(opcode{rdma, 3}, u.change(2, 0))
		m.must(opcode{rdma, 3}, u.change(3, attrSendPSN))
		handle := vectorTo(newCommand().put(8, 4, testPD).put(12, 4, 3), 16, m)
		m.must(opcode{rdma, 15}, handle)
		commands := []struct {
			op opcode
			c  command
		}{
			{opcode{rdma, 3}, q.change(1, 0)},
			{opcode{rdma, 3}, vectorTo(q.change(2, attrVector|attrRecvPSN|attrPeer).put(12, 4, uint64(q.num)), 32, m)},
			{opcode{rdma, 3}, q.change(3, attrSendPSN)},
			{opcode{rdma, 14}, gidCommand(1, netip.MustParseAddr("fd00::1"))},
			{opcode{rdma, 15}, vectorTo(newCommand().put(8, 4, testPD).put(12, 4, 4), 16, m)},
			{opcode{rdma, 16}, newCommand().put(8, 4, testPD).put(12, 4, 3)},
			{opcode{rdma, 17}, newCommand().put(8, 4, uint64(q.num))},
			{opcode{rdma, 3}, u.change(3, attrQKey)},
		}
		for ; len(data) >= 3; data = data[3:] {
			n := commands[int(data[0])%len(commands)]
			c := append(command(nil), n.c...)
			c[int(data[1])%len(c)] ^= data[2]
			m.run(n.op, c)
		}
		r := m.register(allRights)
		u.receive(r.addr, 1000, r.key)
		u.post(newRequest(2).put(0, 8, 1<<sqeLength|opSendImm<<sqeOpcode|sqeSignaled).put(12, 4, 50).put(udQKey, 4, 77).
			put(udQPN, 4, uint64(u.num^qpn)).put(udAH, 4, uint64(3^ah)).sge(32, r.addr, 50, r.key))
	})
}
