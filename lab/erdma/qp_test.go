//go:build linux

package erdma

import (
	"bytes"
	"slices"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/lab/internal/pcidev"
)

// fill fills memory of a machine with a pattern.
func (m *machine) fill(addr uint64, n int, seed byte) []byte {
	b := m.at(addr, n)
	for i := range b {
		b[i] = seed + byte(i)
	}
	return b
}

// TestOperations executes each operation between two machines, and checks data, completions and the
// room that requests take, with a queue that wraps around.
func TestOperations(t *testing.T) {
	q, p := pair(t)
	a, b := q.m.register(allRights), p.m.register(allRights)
	const n = 1000
	for round := range 40 {
		from, to := q.m.fill(a.addr, n, byte(round)), p.m.at(b.addr, n)
		same := func(what string) {
			t.Helper()
			if !bytes.Equal(from, to) {
				t.Fatalf("round %d, %s: the data differs", round, what)
			}
			clear(to)
		}
		imm := uint32(0x01020304 + round)
		big := make([]byte, 4)
		be.PutUint32(big, imm)
		check := func(e []byte, size int, field uint32) {
			t.Helper()
			if got := be.Uint32(e[cqeSize:]); got != uint32(size) {
				t.Fatalf("received %d bytes, want %d", got, size)
			}
			if got := be.Uint32(e[cqeImm:]); got != field {
				t.Fatalf("the field is %#x, want %#x", got, field)
			}
		}
		r := p.receive(b.addr, n, b.key)
		q.sent(q.post(send(opSend, a.addr, n, a.key)), opSend, 0)
		check(p.received(r, opRecv, 0), n, 0)
		same("SEND")
		r = p.receive(b.addr, n, b.key)
		q.sent(q.post(send(opSendImm, a.addr, n, a.key).put(8, 4, uint64(le.Uint32(big)))), opSendImm, 0)
		check(p.received(r, opRecvSendImm, 0), n, reversed(imm))
		same("SEND with immediate")
		q.sent(q.post(write(opWrite, a.addr, n, a.key, b)), opWrite, 0)
		same("WRITE")
		r = p.receive(b.addr, n, b.key)
		q.sent(q.post(write(opWriteImm, a.addr, n, a.key, b).put(8, 4, uint64(le.Uint32(big)))), opWriteImm, 0)
		check(p.received(r, opRecvImm, 0), n, reversed(imm))
		same("WRITE with immediate")
		p.m.fill(b.addr, n, byte(round+100))
		q.sent(q.post(read(opRead, a.addr, n, a.key, b)), opRead, 0)
		same("READ")
		from = q.m.fill(a.addr, n, byte(round))
		// Six segments, the last of which is in the fourth unit.
		six := newRequest(4).put(0, 8, 6<<sqeLength|opWrite<<sqeOpcode|sqeSignaled).put(12, 4, n).put(16, 4, uint64(b.key)).put(20, 8, b.addr)
		at := a.addr
		for i, size := range []uint32{1, 99, 300, 250, 50, 300} {
			six.sge(32+16*i, at, size, a.key)
			at += uint64(size)
		}
		q.sent(q.post(six), opWrite, 0)
		same("six segments")
		inline := newRequest(4).put(0, 8, 90<<sqeLength|opSend<<sqeOpcode|sqeSignaled|sqeInline).put(12, 4, 90)
		copy(inline[16:], from[:90])
		r = p.receive(b.addr, n, b.key)
		q.sent(q.post(inline), opSend, 0)
		check(p.received(r, opRecv, 0), 90, 0)
		if !bytes.Equal(from[:90], to[:90]) {
			t.Fatal("inline data differs")
		}
		le.PutUint64(to, 1000)
		atomic := func(op byte, v, compare uint64) request {
			return newRequest(2).put(0, 8, uint64(op)<<sqeOpcode|sqeSignaled).put(16, 8, v).put(24, 8, compare).put(32, 8, b.addr).put(44, 4, uint64(b.key)).sge(48, a.addr, 8, a.key)
		}
		q.sent(q.post(atomic(opFetchAdd, 5, 0)), opFetchAdd, 0)
		if got, old := le.Uint64(to), le.Uint64(from); got != 1005 || old != 1000 {
			t.Fatalf("after adding 5 to 1000: %d, was %d", got, old)
		}
		q.sent(q.post(atomic(opCompareSwap, 7, 1005)), opCompareSwap, 0)
		q.sent(q.post(atomic(opCompareSwap, 9, 1005)), opCompareSwap, 0)
		if got, old := le.Uint64(to), le.Uint64(from); got != 7 || old != 7 {
			t.Fatalf("after two comparisons: %d, was %d", got, old)
		}
		clear(to)
		q.post(send(opSend, a.addr, 0, a.key).put(0, 8, opSend<<sqeOpcode)) // not signaled
		p.received(p.receive(b.addr, n, b.key), opRecv, 0)
	}
	for side, want := range map[*testQP][3]uint64{q: {40 * 11, 244560, 0}, p: {0, 0, 123600}} {
		side.m.must(opcode{common, 4}, newCommand().put(12, 4, 7).put(16, 8, side.m.record).put(24, 4, 256))
		s := side.m.at(side.m.record, statsSize)
		// Requests, and the bytes that were sent and received. Packets may be repeated, and the last is counted later.
		got := [3]uint64{le.Uint64(s[16:]), le.Uint64(s[32:]), le.Uint64(s[72:])}
		sent, received := le.Uint64(s[24:]), le.Uint64(s[64:])
		if got != want || sent == 0 || received == 0 || le.Uint16(s) != 0x5566 || s[3] != 11*8 || le.Uint32(s[4:]) != 7 {
			t.Errorf("statistics %v, want %v; %d packets sent, %d received: %x", got, want, sent, received, s)
		}
	}
}

func reversed(v uint32) uint32 {
	b := make([]byte, 4)
	be.PutUint32(b, v)
	return le.Uint32(b)
}

// TestRefusedRequests posts requests that the adapter refuses, between ones that it executes, on a
// connection each.
func TestRefusedRequests(t *testing.T) {
	n := newNetwork()
	x, y := newMachine(t, n, 1), newMachine(t, n, 2)
	a, b := x.register(allRights), y.register(allRights)
	readOnly := y.register(1 << 3)
	good := func() request { return write(opWrite, a.addr, 64, a.key, b) }
	for name, tt := range map[string]struct {
		r      request
		status uint32
		op     byte
		said   string
		raw    func(h uint64) uint64 // changes the complete header
	}{
		"opcode":        {r: good().put(0, 8, 1<<sqeLength|7<<sqeOpcode|sqeSignaled), status: wcSendFormat, op: 7, said: "unknown opcode 7"},
		"direct":        {r: good().put(0, 8, 1<<sqeLength|sqeSignaled|sqeDirect), status: wcSendFormat, said: "reserved bits"},
		"other QP":      {r: good(), status: wcSendFormat, said: "it names QP", raw: func(h uint64) uint64 { return h ^ 1<<sqeQPN }},
		"index":         {r: good(), status: wcSendFormat, said: "and ends at", raw: func(h uint64) uint64 { return h ^ 1 }},
		"five units":    {r: good(), status: wcSendFormat, said: "it has 8 units", raw: func(h uint64) uint64 { return h | 7<<sqeUnits }},
		"length":        {r: good().put(12, 4, 63), status: wcSendFormat, said: "segments of 64 bytes for a message of 63"},
		"segments":      {r: good().put(0, 8, 7<<sqeLength|sqeSignaled), status: wcSendFormat, said: "7 segments"},
		"beyond":        {r: good().put(0, 8, 3<<sqeLength|sqeSignaled), status: wcSendFormat, said: "3 segments in 32 bytes"},
		"inline":        {r: good().put(0, 8, 64<<sqeLength|sqeSignaled|sqeInline), status: wcSendFormat, said: "64 bytes of inline data in 32"},
		"inline length": {r: good().put(0, 8, 30<<sqeLength|sqeSignaled|sqeInline), status: wcSendFormat, said: "of a message of 64"},
		"inline READ":   {r: read(opRead, a.addr, 64, a.key, b).put(0, 8, opRead<<sqeOpcode|sqeSignaled|sqeInline), op: opRead, status: wcSendFormat, said: "inline data of opcode 1"},
		"short READ":    {r: read(opRead, a.addr, 64, a.key, b)[:unit], op: opRead, status: wcSendFormat, said: "opcode 1 in 32 bytes"},
		"READ lengths":  {r: read(opRead, a.addr, 64, a.key, b).put(40, 4, 65), op: opRead, status: wcSendFormat, said: "a READ of 65 bytes into 64"},
		"local key":     {r: write(opWrite, a.addr, 64, a.key+1, b), status: wcSendAddress},
		"local end":     {r: write(opWrite, a.addr+2*pageSize-63, 64, a.key, b), status: wcSendAddress},
		"remote key":    {r: write(opWrite, a.addr, 64, a.key, region{b.addr, b.key + 1}), status: wcRecvAddress},
		"remote end":    {r: write(opWrite, a.addr, 64, a.key, region{b.addr + 2*pageSize, b.key}), status: wcRecvAddress},
		"remote rights": {r: write(opWrite, a.addr, 64, a.key, readOnly), status: wcRecvAddress},
	} {
		t.Run(name, func(t *testing.T) {
			x.t, y.t = t, t
			q, p := x.createQP(), y.createQP()
			connect(q, p)
			x.mu.Lock()
			x.lines = nil
			x.mu.Unlock()
			q.sent(q.post(good()), opWrite, 0)
			index := q.write(tt.r)
			if tt.raw != nil {
				e := x.at(q.sq+uint64(index)%testUnits*unit, 8)
				le.PutUint64(e, tt.raw(le.Uint64(e)))
			}
			q.ring()
			e := q.send.expect(q, typeSend, uint32(tt.op), tt.status, index)
			if tt.said != "" && !x.said("refusal") || !x.said(tt.said) {
				t.Errorf("the recorder does not say %q: %s", tt.said, x.lines)
			}
			if q.state() != verbs.StateErr {
				t.Errorf("after %x the QP is in state %v", e, q.state())
			}
			q.sent(q.post(good()), opWrite, wcFlush)
			q.received(q.receive(a.addr, 1, a.key), opRecv, wcFlush)
			x.until("the peer to fail", func() bool { return p.state() == verbs.StateErr })
			if _, ok := y.event(y.aeq, &y.asyncs); !ok {
				y.until("the peer's driver to know", func() (ok bool) { _, ok = y.event(y.aeq, &y.asyncs); return ok })
			}
			y.store(regAEQDoorbell, uint64(y.asyncs)|1<<31)
			if _, ok := y.event(y.aeq, &y.asyncs); ok {
				t.Error("the peer's driver is told twice")
			}
		})
	}
}

// TestRefusedReceives posts receives that the adapter refuses.
func TestRefusedReceives(t *testing.T) {
	n := newNetwork()
	x, y := newMachine(t, n, 1), newMachine(t, n, 2)
	a, b := x.register(allRights), y.register(allRights)
	for name, tt := range map[string]struct {
		change func(e []byte)
		status uint32
	}{
		"other QP": {func(e []byte) { e[4]++ }, wcRecvFormat},
		"index":    {func(e []byte) { e[0]++ }, wcRecvFormat},
		"key":      {func(e []byte) { e[28]++ }, wcRecvAddress},
		"short":    {func(e []byte) { le.PutUint32(e[24:], 63) }, wcRecvFormat},
	} {
		t.Run(name, func(t *testing.T) {
			x.t, y.t = t, t
			q, p := x.createQP(), y.createQP()
			connect(q, p)
			r := p.rpi
			p.rpi++
			e := y.at(p.rq, unit)
			le.PutUint64(e, uint64(p.num)<<32|uint64(p.rpi))
			le.PutUint64(e[16:], b.addr)
			le.PutUint32(e[24:], 64)
			le.PutUint32(e[28:], b.key)
			v := le.Uint64(e)
			tt.change(e)
			y.store(p.recvPage<<12, v)
			q.post(send(opSend, a.addr, 64, a.key))
			p.received(r, opRecv, tt.status)
		})
	}
}

// TestForeignDoorbells rings from pages that belong to another: nothing happens.
func TestForeignDoorbells(t *testing.T) {
	q, p := pair(t)
	m := q.m
	db := m.must(opcode{common, 8}, newCommand().put(8, 4, 7))[0]
	a, b := m.register(allRights), p.m.register(allRights)
	index := q.write(write(opWrite, a.addr, 64, a.key, b))
	v := uint64(q.num)<<32 | uint64(q.pi)
	for _, page := range []uint64{db & 0xffff, db >> 48, db >> 32 & 0xffff, 1000, firstRecvPage, firstCQPage} {
		m.store(page<<12, v)
	}
	if e := q.send.next(); e != nil {
		t.Errorf("a doorbell of another has an effect: %x", e)
	}
	q.ring()
	q.sent(index, opWrite, 0)
}

// TestFastRegistration registers memory by requests, of which peers invalidate the keys.
func TestFastRegistration(t *testing.T) {
	q, p := pair(t)
	m := q.m
	fast := func(index uint32) uint64 {
		list := m.alloc(pageSize)
		m.must(opcode{rdma, 8}, newCommand().put(8, 4, uint64(index)).put(12, 4, testPD<<12|mrFast<<6).put(28, 4, 12<<27|1<<20|8).put(32, 8, list))
		return list
	}
	list := fast(500)
	const key = 500<<8 | 0x21
	local, remote := m.register(allRights), p.m.register(allRights)
	mem := m.alloc(6 * pageSize)
	reg := func(pages int, attrs uint64) request {
		r := newRequest(2).put(0, 8, opRegister<<sqeOpcode|sqeSignaled).put(regAddr, 8, 0x1000_0010).put(regLength, 4, uint64(pages)*pageSize-0x10).put(regKey, 4, key).
			put(regAttrs, 4, uint64(pages)<<12|attrs)
		for i := range pages { // in the opposite order
			at := mem + uint64(pages-1-i)*pageSize
			if attrs>>6&1 == 0 {
				r.put(regPages+8*i, 8, at)
			} else {
				le.PutUint64(m.at(list+8*uint64(i), 8), at)
			}
		}
		return r
	}
	invalidate := func(key uint64) request {
		return newRequest(1).put(0, 8, opLocalInv<<sqeOpcode|sqeSignaled).put(regKey, 4, key)
	}
	there := region{0x1000_0010, key}
	for _, attrs := range []uint64{allRights << 1, allRights<<1 | 1<<6} {
		q.sent(q.post(reg(2+int(attrs>>6)*4, attrs)), opRegister, 0)
		want := p.m.fill(remote.addr, 100, 9)
		p.sent(p.post(write(opWrite, remote.addr, 100, remote.key, there)), opWrite, 0)
		pages := 2 + attrs>>6*4
		if got := m.at(mem+(pages-1)*pageSize+0x10, 100); !bytes.Equal(got, want) {
			t.Fatal("the peer has written elsewhere")
		}
		q.sent(q.post(invalidate(key)), opLocalInv, 0)
	}
	// The peer invalidates.
	q.sent(q.post(reg(2, allRights<<1)), opRegister, 0)
	r := q.receive(local.addr, 8, local.key)
	p.sent(p.post(send(opSendInv, remote.addr, 4, remote.key).put(8, 4, key)), opSendInv, 0)
	if e := q.received(r, opRecvInv, 0); be.Uint32(e[cqeImm:]) != key {
		t.Errorf("completion %x", e)
	}
	// A READ that invalidates its own key, of any variant, in the order of requests.
	q.sent(q.post(reg(2, allRights<<1)), opRegister, 0)
	q.sent(q.post(read(opReadInv, there.addr, 64, key, remote).put(readInvalidate, 4, key^1)), opReadInv, 0)
	q.sent(q.post(reg(2, allRights<<1)), opRegister, 0)
	// What is refused, each on a connection of its own.
	fast(501)
	m.must(opcode{rdma, 8}, newCommand().put(8, 4, 502).put(12, 4, (testPD+1)<<12|mrFast<<6).put(28, 4, 12<<27|1<<20|8).put(32, 8, list))
	for name, r := range map[string]request{
		"valid already": reg(2, allRights<<1), "no such key": invalidate(503 << 8), "not valid": invalidate(501 << 8), "another key": invalidate(key + 1),
		"not for it": invalidate(uint64(local.key)), "other PD": invalidate(502 << 8), "too many pages": reg(2, allRights<<1).put(regKey, 4, 501<<8).put(regAttrs, 4, 9<<12|1<<6),
		"five inline": reg(2, allRights<<1).put(regKey, 4, 501<<8).put(regAttrs, 4, 5<<12), "no length": reg(2, 0).put(regKey, 4, 501<<8).put(regLength, 4, 0),
		"memory": reg(2, 0).put(regKey, 4, 501<<8).put(regPages, 8, 0), "too short": reg(2, 0).put(regKey, 4, 501<<8).put(regLength, 4, 3*pageSize),
	} {
		x, y := m.createQP(), p.m.createQP()
		connect(x, y)
		status := uint32(wcSendKey)
		x.sent(x.post(r), byte(le.Uint64(r)>>sqeOpcode&31), status)
		if t.Failed() {
			t.Fatal(name)
		}
	}
	// A program's QP may not: it would reach all memory.
	db := m.must(opcode{common, 8}, newCommand().put(8, 4, 7))[0]
	m.qpns++
	x := &testQP{m: m, num: m.qpns, sq: m.alloc(testUnits * unit), rq: m.alloc(testRecvs * unit), sendPage: db & 0xffff, recvPage: db >> 32 & 0xffff}
	m.cqns++
	x.send = &testCQ{m: m, num: m.cqns, size: 64, addr: m.alloc(64 * unit)}
	x.recv = x.send
	m.must(opcode{rdma, 4}, m.cqCommand(x.send).put(20, 4, 1|1<<11|1<<16).put(36, 4, db>>32&0xffff))
	x.cookie = uint32(m.must(opcode{rdma, 1}, m.qpCommand(x).put(16, 4, 1<<25|uint64(x.send.num)).put(112, 4, db&0xffff<<16|db>>48))[0])
	y := p.m.createQP()
	connect(x, y)
	x.sent(x.post(reg(2, allRights<<1).put(regKey, 4, 501<<8)), opRegister, wcSendFormat)
}

// TestPhysicalKeys uses the kernel's key of all memory, which programs' QPs do not have.
func TestPhysicalKeys(t *testing.T) {
	q, p := pair(t)
	from, to := q.m.alloc(pageSize), p.m.register(allRights)
	want := q.m.fill(from, 50, 3)
	q.sent(q.post(write(opWrite, from, 50, dmaKey, to)), opWrite, 0)
	if got := p.m.at(to.addr, 50); !bytes.Equal(got, want) {
		t.Errorf("got %x", got)
	}
	for _, index := range []uint32{600, 0} { // the driver takes 0 after the last
		p.m.must(opcode{rdma, 8}, newCommand().put(8, 4, uint64(index)).put(12, 4, testPD<<12|mrDMA<<6|allRights<<1))
		clear(p.m.at(to.addr, 50))
		q.sent(q.post(write(opWrite, from, 50, dmaKey, region{to.addr, index << 8})), opWrite, 0)
		if got := p.m.at(to.addr, 50); !bytes.Equal(got, want) {
			t.Errorf("region %d: got %x", index, got)
		}
	}
	// Where the guest has no memory, an access fails.
	q.sent(q.post(write(opWrite, 0x10, 50, dmaKey, to)), opWrite, wcSendAddress)
}

// TestTables registers regions whose lists of pages are tables of one to three levels.
func TestTables(t *testing.T) {
	q, p := pair(t)
	m := q.m
	const pages = 512*3 + 7 // of the third level: 4 pages of addresses, in 1
	mem, to := m.alloc(pages*pageSize), p.m.register(allRights)
	lowest := m.alloc(pages * 8)
	for i := range uint64(pages) {
		le.PutUint64(m.at(lowest+8*i, 8), mem+i*pageSize)
	}
	middle, top := m.alloc(pageSize), m.alloc(pageSize)
	for i := range uint64(4) {
		le.PutUint64(m.at(middle+8*i, 8), lowest+i*pageSize)
	}
	le.PutUint64(m.at(top, 8), middle)
	for level, table := range []uint64{1: lowest, 2: middle, 3: top} {
		if level == 0 {
			continue
		}
		index := uint64(700 + level)
		m.must(opcode{rdma, 8}, newCommand().put(8, 4, 1<<31|1<<28|index).put(12, 4, testPD<<12|allRights<<1).put(16, 8, mem).put(24, 4, pages*pageSize).
			put(28, 4, 12<<27|uint64(level)<<20|pages).put(32, 8, table))
		end := mem + pages*pageSize - 64
		want := m.fill(end, 64, byte(level))
		q.sent(q.post(write(opWrite, end, 64, uint32(index<<8), to)), opWrite, 0)
		if got := p.m.at(to.addr, 64); !bytes.Equal(got, want) {
			t.Errorf("level %d: got %x", level, got)
		}
	}
}

// TestLargestRegion registers 4 GiB, each 2 MiB of which are the same memory, and a byte more.
func TestLargestRegion(t *testing.T) {
	q, p := pair(t)
	m, to := q.m, p.m.register(allRights)
	const block, start = 2 << 20, 1 << 40
	mem := (m.alloc(2*block) + block - 1) &^ (block - 1)
	table := m.alloc(2049 * 8)
	for i := range uint64(2049) {
		le.PutUint64(m.at(table+8*i, 8), mem)
	}
	largest := newCommand().put(8, 4, 1<<31|1<<28|700).put(12, 4, testPD<<12|allRights<<1).put(16, 8, start).
		put(28, 4, 21<<27|1<<20|2048).put(32, 8, table).put(40, 4, 1)
	if _, st := m.run(opcode{rdma, 8}, slices.Clone(largest).put(24, 4, 1).put(28, 4, 21<<27|1<<20|2049)); st == 0 {
		t.Error("a region of 4 GiB and a byte is registered")
	}
	m.must(opcode{rdma, 8}, largest)
	want := m.fill(mem+block-64, 64, 1)
	q.sent(q.post(write(opWrite, start+1<<32-64, 64, 700<<8, to)), opWrite, 0)
	if got := p.m.at(to.addr, 64); !bytes.Equal(got, want) {
		t.Errorf("got %x", got)
	}
}

// TestOlderDriver makes the queues of a program as the driver of 6.1 does: without pages of doorbells, in tables
// of one block, of which a CQ's is the block itself.
func TestOlderDriver(t *testing.T) {
	n := newNetwork()
	m, p := newMachine(t, n, 1), newMachine(t, n, 2)
	from, to := m.register(allRights), p.register(allRights)
	table := func(queue uint64) uint64 {
		at := m.alloc(pageSize)
		le.PutUint64(m.at(at, 8), queue)
		return at
	}
	for _, tt := range []struct {
		request request
		op      byte
		status  uint32
	}{
		{write(opWrite, from.addr, 64, from.key, to), opWrite, 0},
		{write(opWrite, from.addr, 64, dmaKey, to), opWrite, wcSendAddress},
		{newRequest(2).put(0, 8, opRegister<<sqeOpcode|sqeSignaled), opRegister, wcSendFormat},
	} {
		m.cqns++
		m.qpns++
		cq := &testCQ{m: m, num: m.cqns, size: 64, addr: m.alloc(64 * unit)}
		m.must(opcode{rdma, 4}, m.cqCommand(cq).put(20, 4, 1|1<<15|1<<16))
		q := &testQP{m: m, num: m.qpns, send: cq, recv: cq, sq: m.alloc(testUnits * unit), rq: m.alloc(testRecvs * unit), sendPage: 95}
		q.cookie = uint32(m.must(opcode{rdma, 1}, m.qpCommand(q).put(24, 8, table(q.sq)).put(32, 8, table(q.rq)).put(40, 4, 1<<1|1).put(44, 4, 1<<1|1))[0])
		connect(q, p.createQP())
		q.sent(q.post(tt.request), tt.op, tt.status)
	}
}

// TestArm asks for events: for any completion, for solicited ones, and for one that is there already.
func TestArm(t *testing.T) {
	q, p := pair(t)
	a, b := q.m.register(allRights), p.m.register(allRights)
	none := func(what string) {
		t.Helper()
		if e, ok := p.m.event(p.m.eq, &p.m.events); ok {
			t.Fatalf("%s: event %x", what, e)
		}
	}
	one := func(flags uint64) {
		t.Helper()
		r := p.receive(b.addr, 8, b.key)
		q.sent(q.post(send(opSend, a.addr, 8, a.key).put(0, 8, 1<<sqeLength|opSend<<sqeOpcode|sqeSignaled|flags)), opSend, 0)
		p.received(r, opRecv, 0)
	}
	one(0)
	none("not armed")
	p.recv.arm(false)
	one(0)
	p.m.expectEvent(p.recv)
	one(0)
	none("armed once")
	p.recv.arm(true)
	one(0)
	none("not solicited")
	one(sqeSolicited)
	p.m.expectEvent(p.recv)
	r := p.receive(b.addr, 8, b.key)
	q.sent(q.post(send(opSend, a.addr, 8, a.key)), opSend, 0)
	p.m.until("the completion", func() bool {
		ci := p.recv.ci
		e := p.recv.next()
		p.recv.ci = ci
		return e != nil
	})
	p.recv.arm(false)
	p.m.expectEvent(p.recv)
	p.received(r, opRecv, 0)
}

// TestConnections joins ends that do not fit, and ends connections in each way.
func TestConnections(t *testing.T) {
	n := newNetwork()
	x, y := newMachine(t, n, 1), newMachine(t, n, 2)
	for name, change := range map[string]func(command) command{
		"cookie": func(c command) command { return c.put(12, 4, 1) }, "next byte to send": func(c command) command { return c.put(28, 4, 1) },
		"next byte to receive": func(c command) command { return c.put(32, 4, 1) },
	} {
		q, p := x.createQP(), y.createQP()
		x.must(opcode{rdma, 3}, q.rts(p))
		if _, status := y.run(opcode{rdma, 3}, change(p.rts(q))); status == 0 {
			t.Errorf("another %s: the QPs are connected", name)
		}
	}
	q, p, other := x.createQP(), y.createQP(), x.createQP()
	x.must(opcode{rdma, 3}, q.rts(p))
	c := q.rts(p).put(8, 4, uint64(qpRTS)<<24|uint64(other.num))
	if _, status := x.run(opcode{rdma, 3}, c); status == 0 {
		t.Error("two QPs have one connection")
	}
	a, b := x.register(allRights), y.register(allRights)
	early := q.post(write(opWrite, a.addr, 8, a.key, b)) // before the peer has joined
	y.must(opcode{rdma, 3}, p.rts(q))
	q.sent(early, opWrite, 0)
	if _, status := x.run(opcode{rdma, 3}, q.rts(p)); status == 0 {
		t.Error("a QP is connected twice")
	}
	for _, to := range []qpState{qpClosing, qpTerminate, qpError} {
		q, p := x.createQP(), y.createQP()
		r := q.receive(a.addr, 8, a.key)
		connect(q, p)
		if status := q.to(to); status != 0 {
			t.Errorf("%v: status %d", to, status)
		}
		q.received(r, opRecv, wcFlush)
		q.sent(q.post(write(opWrite, a.addr, 8, a.key, b)), opWrite, wcFlush)
		q.received(q.receive(a.addr, 8, a.key), opRecv, wcFlush)
	}
	// A peer may notice the end of a QP that has been destroyed: the flusher forgets it.
	q, p = x.createQP(), y.createQP()
	connect(q, p)
	gone, ok := x.dev.qps.Get(q.num)
	if !ok {
		t.Fatal("no QP")
	}
	q.to(qpError)
	x.must(opcode{rdma, 2}, newCommand().put(8, 4, uint64(q.num)))
	if gone.Flush() {
		t.Error("the flusher keeps a QP that has been destroyed")
	}
	// REFLUSH tells of requests whose doorbells were lost.
	q, p = x.createQP(), y.createQP()
	connect(q, p)
	q.to(qpError)
	index := q.write(write(opWrite, a.addr, 8, a.key, b))
	x.must(opcode{rdma, 6}, newCommand().put(8, 4, uint64(q.num)).put(12, 4, uint64(q.pi)).put(16, 4, uint64(q.rpi)))
	q.sent(index, opWrite, wcFlush)
}

// TestCompletionFaults injects faults of completions.
func TestCompletionFaults(t *testing.T) {
	q, p := pair(t)
	m := q.m
	a, b := m.register(allRights), p.m.register(allRights)
	post := func() uint16 { return q.post(write(opWrite, a.addr, 8, a.key, b)) }
	next := func() (e []byte) {
		m.until("a completion", func() bool { e = q.send.next(); return e != nil })
		return e
	}
	for _, tt := range []struct {
		kind  pcidev.Fault
		arg   byte
		field func(e []byte) uint32
		want  func(index uint16) uint32
	}{
		{pcidev.FaultCompletion, 12, func(e []byte) uint32 { return be.Uint32(e) & 0xff }, func(uint16) uint32 { return 12 }},
		{pcidev.FaultOpcode, 77, func(e []byte) uint32 { return be.Uint32(e) >> 16 & 0xff }, func(uint16) uint32 { return 77 }},
		{pcidev.FaultQPN, 3, func(e []byte) uint32 { return be.Uint32(e[cqeQPN:]) }, func(uint16) uint32 { return q.num + 3 }},
		{pcidev.FaultCounter, 5, func(e []byte) uint32 { return be.Uint32(e[cqeIndex:]) }, func(i uint16) uint32 { return uint32(i) + 5 }},
	} {
		m.dev.Inject(tt.kind, tt.arg, 1)
		i := post()
		if got := tt.field(next()); got != tt.want(i) {
			t.Errorf("fault %d: %d, want %d", tt.kind, got, tt.want(i))
		}
		q.sent(post(), opWrite, 0)
	}
	m.dev.Inject(pcidev.FaultLost, 0, 1)
	post()
	q.sent(post(), opWrite, 0)
	m.dev.Inject(pcidev.FaultLate, 30, 1)
	first := post()
	second := post()
	q.sent(first, opWrite, 0)
	q.sent(second, opWrite, 0)
	// After the next event, here one of another CQ.
	m.dev.Inject(pcidev.FaultAfterEvent, 0, 1)
	late := post()
	c, _ := m.dev.cqs.Get(q.send.num)
	m.until("the late completion", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.late) == 1
	})
	if e := q.send.next(); e != nil {
		t.Errorf("completion %x before the event", e)
	}
	q.recv.arm(false)
	r := q.receive(a.addr, 8, a.key)
	p.sent(p.post(send(opSend, b.addr, 8, b.key)), opSend, 0)
	q.received(r, opRecv, 0)
	q.sent(late, opWrite, 0)
	m.dev.Inject(pcidev.FaultFatal, 0, 0)
	m.until("the driver to know", func() (ok bool) { _, ok = m.event(m.aeq, &m.asyncs); return ok })
	if q.state() != verbs.StateErr || m.dev.cmd.Dead() != true {
		t.Errorf("after a fatal fault: %v", q.state())
	}
}

// TestManyQPs makes as many QPs as the driver may, with numbers that are used again.
func TestManyQPs(t *testing.T) {
	m := newMachine(t, newNetwork(), 1)
	q := &testQP{m: m, send: m.createCQ(), recv: m.createCQ(), sq: m.alloc(testUnits * unit), rq: m.alloc(testRecvs * unit)}
	for round := range 2 {
		for i := range uint32(20) {
			q.num = maxQPs - 1 - i
			m.must(opcode{rdma, 1}, m.qpCommand(q))
		}
		for i := range uint32(20) {
			m.must(opcode{rdma, 2}, newCommand().put(8, 4, uint64(maxQPs-1-i)))
		}
		if n := m.dev.qps.Len() + len(m.dev.pds); n != 0 {
			t.Fatalf("round %d: %d QPs and PDs are left", round, n)
		}
	}
}
