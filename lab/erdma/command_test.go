//go:build linux

package erdma

import (
	"testing"

	"github.com/goverbs/verbs/lab/internal/pcidev"
)

// TestInit gives the adapter queues that it cannot use: it does not report that it is initialized. A
// reset, of the driver or of the function, takes everything back.
func TestInit(t *testing.T) {
	m := newMachine(t, newNetwork(), 1)
	m.createQP()
	m.register(allRights)
	for name, reset := range map[string]func(){"reset": func() { m.control(controlReset) }, "function level reset": m.dev.Reset} {
		m.must(opcode{common, 3}, newCommand().put(8, 4, 9000))
		reset()
		d := m.dev
		if d.mtu != defaultMTU {
			t.Errorf("%s: the MTU is %v, of which the driver tells only changes", name, d.mtu)
		}
		if v := m.load(regEnd); v != 0 {
			t.Errorf("%s: %#x behind the registers", name, v)
		}
		if n := d.eqs.Len() + d.cqs.Len() + d.qps.Len() + d.mrs.Len() + len(d.pds) + len(d.pages.m); n != 0 || m.load(regStatus) != statusReset {
			t.Errorf("%s: %d objects are left, status %d", name, n, m.load(regStatus))
		}
		m.begin()
		m.must(opcode{common, 0}, m.eqCommand(1, m.eq))
		m.createQP()
		m.register(allRights)
	}
	for name, bad := range map[string]map[uint64]uint64{
		"no depth":              {regDepth: eqDepth << 32},
		"depth 3":               {regDepth: 3 | eqDepth<<32},
		"depth 1<<20":           {regDepth: 1<<20 | eqDepth<<32},
		"EQ of 3":               {regDepth: depth | 3<<32},
		"commands elsewhere":    {regCommandSQ: base + 32<<20},
		"commands at no page":   {regCommandSQ: base + 64},
		"completions elsewhere": {regCommandCQ: 0},
		"EQ elsewhere":          {regCommandEQ: 1 << 60},
		"no asynchronous EQ":    {regAEQDepth: 0},
	} {
		m.control(controlReset)
		for off, v := range map[uint64]uint64{
			regCommandSQ: m.sq, regCommandCQ: m.cq, regDepth: depth | eqDepth<<32, regCommandEQ: m.eq, regAEQ: m.aeq, regAEQDepth: eqDepth,
		} {
			m.store(off, v)
		}
		for off, v := range bad {
			m.store(off, v)
		}
		m.control(controlInit)
		if m.load(regStatus)&statusInit != 0 {
			t.Errorf("%s: the adapter is initialized", name)
		}
		if n := m.dev.eqs.Len(); n != 0 {
			t.Errorf("%s: %d EQs", name, n)
		}
	}
}

// TestRefusedCommands changes one field of a command that is executed otherwise.
func TestRefusedCommands(t *testing.T) {
	m := newMachine(t, newNetwork(), 1)
	q, r, db := m.createQP(), m.register(allRights), m.must(opcode{common, 8}, newCommand().put(8, 4, 7))[0]
	sends, recvs, cqs := db&0xffff, db>>48, db>>32&0xffff
	cq := &testCQ{m: m, num: 40, size: 64, addr: m.alloc(64 * unit)}
	program := &testCQ{m: m, num: 41, size: 64, addr: m.alloc(64 * unit)}
	m.must(opcode{rdma, 4}, m.cqCommand(program).put(20, 4, 1|1<<11|1<<16).put(36, 4, cqs))
	p := &testQP{m: m, num: 30, send: q.send, recv: q.recv, sq: m.alloc(testUnits * unit), rq: m.alloc(testRecvs * unit)}
	qp := func() command { return m.qpCommand(p) }
	own := func() command { // of a program
		c := m.qpCommand(p).put(16, 4, 1<<25|41).put(20, 4, 41).put(112, 4, sends<<16|recvs)
		return c
	}
	mr := func() command { return m.mrCommand(50, r.addr, allRights) }
	rts := func() command { return q.rts(q) }
	for _, group := range []struct {
		op   opcode
		good func() command
		undo opcode
		c    command
		bad  map[string]func(command) command
	}{
		{opcode{common, 0}, func() command { return m.eqCommand(2, m.alloc(eqDepth*eqeSize)) }, opcode{common, 1}, newCommand().put(17, 1, 2).put(19, 1, typeCEQ), map[string]func(command) command{
			"EQ of commands": func(c command) command { return c.put(17, 1, 0) }, "number in use": func(c command) command { return c.put(17, 1, 1) },
			"number": func(c command) command { return c.put(17, 1, vectors) }, "vector": func(c command) command { return c.put(16, 1, vectors) },
			"depth": func(c command) command { return c.put(18, 1, 17) }, "type": func(c command) command { return c.put(19, 1, 0) },
			"memory": func(c command) command { return c.put(8, 8, 0) }, "alignment": func(c command) command { return c.put(8, 8, base+16) },
			"record": func(c command) command { return c.put(20, 8, 4) }, "record elsewhere": func(c command) command { return c.put(20, 8, 8) },
		}},
		{opcode{rdma, 4}, func() command { return m.cqCommand(cq) }, opcode{rdma, 5}, newCommand().put(8, 4, 40), map[string]func(command) command{
			"number 0": func(c command) command { return c.put(8, 4, 6<<24) }, "number": func(c command) command { return c.put(8, 4, maxCQs|6<<24) },
			"in use": func(c command) command { return c.put(8, 4, 1|6<<24) }, "depth": func(c command) command { return c.put(8, 4, 40|17<<24) },
			"no EQ": func(c command) command { return c.put(20, 4, 3|1<<16) }, "EQ of commands": func(c command) command { return c.put(20, 4, 1<<16) },
			"no block": func(c command) command { return c.put(20, 4, 1) }, "two blocks in the command": func(c command) command { return c.put(20, 4, 1|2<<16) },
			"table elsewhere": func(c command) command { return c.put(20, 4, 1|1<<15|2<<16).put(12, 8, 0) },
			"offset":          func(c command) command { return c.put(32, 4, 4096) }, "alignment": func(c command) command { return c.put(32, 4, 16) },
			"beyond the block": func(c command) command { return c.put(8, 4, 40|8<<24) }, "memory": func(c command) command { return c.put(12, 8, 0) },
			"record": func(c command) command { return c.put(24, 8, 1) }, "nobody's page": func(c command) command { return c.put(20, 4, 1|1<<11|1<<16).put(36, 4, 1000) },
		}},
		{opcode{rdma, 1}, qp, opcode{rdma, 2}, newCommand().put(8, 4, 30), map[string]func(command) command{
			"number 0": func(c command) command { return c.put(8, 4, 6<<20) }, "number": func(c command) command { return c.put(8, 4, 6<<20|maxQPs) },
			"in use": func(c command) command { return c.put(8, 4, 6<<20|uint64(q.num)) }, "units": func(c command) command { return c.put(8, 4, 16<<20|30) },
			"receives": func(c command) command { return c.put(12, 4, 14<<20|testPD) }, "PD": func(c command) command { return c.put(12, 4, 4<<20|maxPDs) },
			"no send CQ": func(c command) command { return c.put(16, 4, 77) }, "no receive CQ": func(c command) command { return c.put(20, 4, 77) },
			"a program's CQ": func(c command) command { return c.put(16, 4, 41) }, "no block": func(c command) command { return c.put(40, 4, 0) },
			"five blocks": func(c command) command { return c.put(44, 4, 5<<1) }, "sends elsewhere": func(c command) command { return c.put(24, 8, 0) },
			"receives elsewhere": func(c command) command { return c.put(32, 8, 1<<50) }, "record": func(c command) command { return c.put(48, 8, 0) },
			"record of receives": func(c command) command { return c.put(56, 8, 3) }, "beyond the block": func(c command) command { return c.put(8, 4, 8<<20|30) },
			"offset": func(c command) command { return c.put(40, 4, 4096|1<<1) },
		}},
		{opcode{rdma, 1}, own, opcode{rdma, 2}, newCommand().put(8, 4, 30), map[string]func(command) command{
			"nobody's page": func(c command) command { return c.put(112, 4, 900<<16|recvs) }, "kernel's page": func(c command) command { return c.put(112, 4, 95<<16|recvs) },
			"another's page": func(c command) command { return c.put(112, 4, sends<<16|900) }, "kernel's CQ": func(c command) command { return c.put(20, 4, uint64(q.recv.num)) },
		}},
		{opcode{rdma, 8}, mr, opcode{rdma, 9}, newCommand().put(8, 4, 50), map[string]func(command) command{
			"index":  func(c command) command { return c.put(8, 4, 1<<31|maxMRs) },
			"in use": func(c command) command { return c.put(8, 4, 1<<31|uint64(r.key>>8)) }, "not valid": func(c command) command { return c.put(8, 4, 50) },
			"version": func(c command) command { return c.put(8, 4, 1<<31|2<<28|50) }, "type": func(c command) command { return c.put(12, 4, testPD<<12|3<<6) },
			"PD": func(c command) command { return c.put(12, 4, maxPDs<<12) }, "size 0": func(c command) command { return c.put(24, 4, 0) },
			"too large": func(c command) command { return c.put(24, 4, 2*pageSize+1) }, "block of 2 KiB": func(c command) command { return c.put(28, 4, 11<<27|2) },
			"no block": func(c command) command { return c.put(28, 4, 12<<27) }, "six blocks": func(c command) command { return c.put(28, 4, 12<<27|6) },
			"block elsewhere": func(c command) command { return c.put(40, 8, 0) }, "table elsewhere": func(c command) command { return c.put(28, 4, 12<<27|1<<20|2).put(32, 8, 8) },
			"huge": func(c command) command {
				return c.put(8, 4, 1<<31|1<<28|50).put(28, 4, 12<<27|1<<20|2).put(44, 4, 1<<31)
			},
		}},
		{opcode{common, 8}, func() command { return newCommand().put(8, 4, 7) }, opcode{}, nil, map[string]func(command) command{
			"some": func(c command) command { return c.put(8, 4, 3) },
		}},
		{opcode{common, 9}, func() command { return newCommand().put(12, 2, recvs).put(14, 2, sends).put(18, 2, cqs) }, opcode{}, nil, map[string]func(command) command{
			"nobody's": func(c command) command { return c.put(14, 2, 900) }, "twice": func(c command) command { return c.put(18, 2, recvs) }, "in use": func(c command) command { return c },
		}},
		{opcode{common, 3}, func() command { return newCommand().put(8, 4, 1500) }, opcode{}, nil, map[string]func(command) command{"MTU": func(c command) command { return c.put(8, 4, 10) }}},
		{opcode{common, 5}, func() command { return newCommand().put(8, 4, 1<<31|12) }, opcode{}, nil, map[string]func(command) command{"pages": func(c command) command { return c.put(8, 4, 1<<31|16) }}},
		{opcode{common, 4}, func() command { return newCommand().put(16, 8, m.record).put(24, 4, 256) }, opcode{}, nil, map[string]func(command) command{
			"room": func(c command) command { return c.put(24, 4, statsSize-1) }, "memory": func(c command) command { return c.put(16, 8, 0) },
		}},
		{opcode{rdma, 3}, rts, opcode{}, nil, map[string]func(command) command{
			"no QP": func(c command) command { return c.put(8, 4, uint64(qpRTS)<<24|1000) }, "state": func(c command) command { return c.put(8, 4, uint64(q.num)) },
			"algorithm": func(c command) command { return c.put(8, 4, uint64(qpRTS)<<24|5<<20|uint64(q.num)) },
		}},
		{opcode{rdma, 6}, func() command { return newCommand().put(8, 4, uint64(q.num)) }, opcode{}, nil, map[string]func(command) command{"no QP": func(c command) command { return c.put(8, 4, 1000) }}},
	} {
		for name, change := range group.bad {
			if _, status := m.run(group.op, change(group.good())); status == 0 {
				t.Errorf("command %v, %s: is executed", group.op, name)
			}
		}
		if group.op == (opcode{common, 9}) { // its pages are in use
			m.must(opcode{rdma, 5}, newCommand().put(8, 4, 41))
			for i, n := range [][3]uint64{{recvs, sends, recvs}, {sends, sends, cqs}, {recvs, sends, sends}} {
				if _, status := m.run(group.op, newCommand().put(12, 2, n[0]).put(14, 2, n[1]).put(18, 2, n[2])); status == 0 {
					t.Errorf("pages %d are freed twice", i)
				}
			}
		}
		m.must(group.op, group.good())
		if group.c != nil {
			m.must(group.undo, group.c)
			if _, status := m.run(group.undo, group.c); status == 0 {
				t.Errorf("command %v is executed twice", group.undo)
			}
		}
	}
	for name, op := range map[string]opcode{"opcode": {rdma, 7}, "module": {2, 0}, "common opcode": {common, 6}} {
		if _, status := m.run(op, newCommand()); status == 0 {
			t.Errorf("%s: is executed", name)
		}
	}
	// Objects that others use.
	for name, c := range map[string]struct {
		op opcode
		c  command
	}{
		"CQ of a QP": {opcode{rdma, 5}, newCommand().put(8, 4, uint64(q.send.num))}, "EQ of a CQ": {opcode{common, 1}, newCommand().put(17, 1, 1).put(19, 1, typeCEQ)},
	} {
		if _, status := m.run(c.op, c.c); status == 0 {
			t.Errorf("%s: is destroyed", name)
		}
	}
}

// TestMalformedCommand has a header that does not fit the doorbell: one completion reports it, and the next
// command is executed.
func TestMalformedCommand(t *testing.T) {
	m := newMachine(t, newNetwork(), 1)
	for name, change := range map[string]func(e []byte){
		"units": func(e []byte) { le.PutUint64(e, le.Uint64(e)&^(7<<hdrUnits)) },
		"index": func(e []byte) { le.PutUint16(e, le.Uint16(e)+1) },
	} {
		change(m.write(opcode{common, 2}, newCommand()))
		m.store(regCommandDB, uint64(m.commands))
		m.until("the command", m.dev.cmd.Idle)
		e := m.at(m.cq+uint64(m.commands/commandUnits-1)*unit, unit)
		if be.Uint32(e)&0xff == 0 {
			t.Errorf("%s: completion %x", name, e)
		}
		m.must(opcode{common, 2}, newCommand())
	}
}

// TestCommandFaults makes commands fail, and the firmware stop and go on.
func TestCommandFaults(t *testing.T) {
	m := newMachine(t, newNetwork(), 1)
	m.dev.Inject(pcidev.FaultCommand, 0, 2)
	for i, want := range []byte{1, 1, 0} {
		if _, status := m.run(opcode{common, 2}, newCommand()); status != want {
			t.Errorf("command %d has status %d, want %d", i, status, want)
		}
	}
	m.dev.Inject(pcidev.FaultFirmware, 0, 0)
	m.post(opcode{common, 2}, newCommand())
	e := m.at(m.cq+uint64(m.commands/commandUnits-1)*unit, unit)
	if be.Uint32(e)>>31 != 0 || m.dev.cmd.Idle() {
		t.Errorf("a stopped firmware answers %x", e)
	}
	m.dev.Inject(pcidev.FaultNone, 0, 0)
	m.until("the command", m.dev.cmd.Idle)
	if be.Uint32(e)>>31 != 1 {
		t.Errorf("the firmware answers %x", e)
	}
}

// TestCommandEvents asks for events of completed commands, more often than the driver's 16 bits count.
func TestCommandEvents(t *testing.T) {
	m := newMachine(t, newNetwork(), 1)
	q, ok := m.dev.eqs.Get(0)
	if !ok {
		t.Fatal("no EQ of commands")
	}
	for i := range uint32(eqIndexes + 10*eqDepth) {
		if i%1000 == 0 {
			m.must(opcode{common, 2}, newCommand())
		}
		m.dev.event(0, 0)
		q.Mu.Lock()
		pi := q.PI
		q.Mu.Unlock()
		if pi != i+1 {
			t.Fatalf("event %d is lost", i)
		}
		m.store(regEQDoorbells, uint64(uint16(pi))|1<<31)
	}
	m.store(regCommandArm, 1<<31|uint64(m.commands/commandUnits))
	m.must(opcode{common, 2}, newCommand())
	if q.Mu.Lock(); q.PI != eqIndexes+10*eqDepth+1 {
		t.Errorf("%d events, with the command's", q.PI)
	}
	q.Mu.Unlock()
}
