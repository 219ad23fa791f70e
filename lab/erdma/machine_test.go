//go:build linux

package erdma

import (
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/lab/connectx"
	"github.com/goverbs/verbs/lab/internal/pcidev/pcitest"
	"github.com/goverbs/verbs/lab/vfiouser"
)

// network connects the adapters of a test.
type network struct {
	wire  *connectx.Wire
	links *Links
}

func newNetwork() *network { return &network{connectx.NewWire(), NewLinks()} }

// machine is a virtual machine with an adapter: its memory, and what a driver does.
type machine struct {
	t    testing.TB
	mem  []byte
	next uint64 // address of the next free page
	dev  *Device

	sq, cq, eq, aeq   uint64 // addresses of the queues of commands, of EQ 1 and of the asynchronous EQ
	commands          uint16 // given to the adapter
	record            uint64 // a doorbell record, which all queues name
	events, asyncs    uint32 // taken
	qpns, cqns, stags uint32 // given out

	mu    sync.Mutex
	lines []string // of the recorder
}

const (
	base     = 1 << 20
	pageSize = 4096
	depth    = 512 // of the queue of commands
	eqDepth  = 64
	testPD   = 7
)

// newMachine makes a machine with memory of 32 MiB at address 1 MiB, whose driver has set the adapter up.
func newMachine(t testing.TB, n *network, number byte, change ...func(*Config)) *machine {
	t.Helper()
	m := &machine{t: t, next: base}
	cfg := Config{Name: "erdma", MAC: net.HardwareAddr{2, 0, 0, 0, 0, number}, Network: n.wire.Network(nil), Links: n.links, Record: m.line}
	for _, f := range change {
		f(&cfg)
	}
	m.mem = pcitest.Attach(t, base, 32<<20, func(bus *vfiouser.Bus) (_ pcitest.Card, err error) {
		m.dev, err = New(cfg, bus)
		return m.dev, err
	})
	m.record = m.alloc(1)
	m.begin()
	m.must(opcode{common, 0}, m.eqCommand(1, m.eq))
	return m
}

func (m *machine) line(s string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lines = append(m.lines, s)
}

// said reports whether the recorder has a line that contains a text.
func (m *machine) said(text string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, l := range m.lines {
		if strings.Contains(l, text) {
			return true
		}
	}
	return false
}

// begin does what erdma_probe_dev does with registers.
func (m *machine) begin() {
	m.t.Helper()
	m.sq, m.cq, m.eq, m.aeq = m.alloc(depth*unit), m.alloc(depth*unit), m.alloc(eqDepth*eqeSize), m.alloc(eqDepth*eqeSize)
	m.commands, m.events, m.asyncs = 0, 0, 0
	for off, v := range map[uint64]uint64{
		regCommandSQ: m.sq, regCommandCQ: m.cq, regDepth: depth | eqDepth<<32, regCommandEQ: m.alloc(eqDepth * eqeSize), regAEQ: m.aeq, regAEQDepth: eqDepth,
	} {
		m.store(off, v)
	}
	m.control(controlInit)
	if m.load(regStatus)&statusInit == 0 {
		m.t.Fatal("the adapter is not initialized")
	}
}

func (m *machine) control(v uint32) {
	var b [4]byte
	le.PutUint32(b[:], v)
	m.dev.Write(vfiouser.BAR0, regControl, b[:])
}

func (m *machine) store(off, v uint64) {
	var b [8]byte
	le.PutUint64(b[:], v)
	m.dev.Write(vfiouser.BAR0, off, b[:])
}

func (m *machine) load(off uint64) uint32 {
	var b [4]byte
	m.dev.Read(vfiouser.BAR0, off, b[:])
	return le.Uint32(b[:])
}

// alloc returns zeroed memory of whole pages.
func (m *machine) alloc(bytes int) uint64 {
	a := m.next
	m.next += uint64(bytes+pageSize-1) &^ (pageSize - 1)
	if m.next > base+uint64(len(m.mem)) {
		m.t.Fatal("no memory")
	}
	return a
}

func (m *machine) at(addr uint64, n int) []byte { return m.mem[addr-base:][:n:n] }

// command is a request from offset 8 on.
type command []byte

// put stores a value of 1, 2, 4 or 8 bytes at an offset of the structure.
func (c command) put(off, size int, v uint64) command {
	var b [8]byte
	le.PutUint64(b[:], v)
	copy(c[off-8:][:size], b[:])
	return c
}

func newCommand() command { return make(command, commandUnits*unit-8) }

// write writes a command into the queue.
func (m *machine) write(op opcode, c command) (e []byte) {
	e = m.at(m.sq+uint64(m.commands%depth)*unit, commandUnits*unit)
	copy(e[8:], c)
	m.commands += commandUnits
	le.PutUint64(e, (commandUnits-1)<<hdrUnits|uint64(op.module)<<hdrModule|uint64(op.op)<<hdrOpcode|uint64(m.commands))
	return e
}

// post writes a command and rings.
func (m *machine) post(op opcode, c command) {
	m.write(op, c)
	m.store(regCommandDB, uint64(m.commands))
}

// run executes a command and returns its status.
func (m *machine) run(op opcode, c command) (r response, status byte) {
	m.t.Helper()
	m.post(op, c)
	m.until("a command to complete", m.dev.cmd.Idle)
	i := uint32(m.commands/commandUnits) - 1
	e := m.at(m.cq+uint64(i%depth)*unit, unit)
	h := be.Uint32(e)
	if h>>31 != uint32(1^i/depth&1) || h>>cqeType&0xff != typeCommand || be.Uint32(e[4:]) != uint32(m.commands-commandUnits) {
		m.t.Fatalf("completion %d of a command: %x", i, e)
	}
	for j := range r {
		r[j] = uint64(be.Uint32(e[8+8*j:])) | uint64(be.Uint32(e[12+8*j:]))<<32
	}
	return r, byte(h)
}

func (m *machine) must(op opcode, c command) response {
	m.t.Helper()
	r, status := m.run(op, c)
	if status != 0 {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.t.Fatalf("command %v has status %d: %s", op, status, m.lines[len(m.lines)-2:])
	}
	return r
}

// until waits for a condition.
func (m *machine) until(what string, ready func() bool) {
	m.t.Helper()
	for end := time.Now().Add(20 * time.Second); !ready(); time.Sleep(50 * time.Microsecond) {
		if time.Now().After(end) {
			m.t.Fatalf("waited for %s", what)
		}
	}
}

func (m *machine) eqCommand(num uint32, addr uint64) command {
	return newCommand().put(8, 8, addr).put(16, 1, uint64(num)).put(17, 1, uint64(num)).put(18, 1, 6).put(19, 1, typeCEQ).put(20, 8, m.record)
}

// testCQ is a completion queue of the driver.
type testCQ struct {
	m         *machine
	num, size uint32
	addr      uint64
	ci        uint32
}

func (m *machine) cqCommand(q *testCQ) command {
	return newCommand().put(8, 4, uint64(q.num)|6<<24).put(12, 8, q.addr).put(20, 4, 1|1<<16).put(24, 8, m.record)
}

func (m *machine) createCQ() *testCQ {
	m.t.Helper()
	m.cqns++
	q := &testCQ{m: m, num: m.cqns, size: 64, addr: m.alloc(64 * unit)}
	m.must(opcode{rdma, 4}, m.cqCommand(q))
	return q
}

// next returns the next entry, or nil.
func (q *testCQ) next() []byte {
	q.m.dev.cqs.Len() // its lock is the barrier between the owner bit and the rest
	e := q.m.at(q.addr+uint64(q.ci%q.size)*unit, unit)
	if be.Uint32(e)>>31 == q.ci/q.size&1 {
		return nil
	}
	q.ci++
	return e
}

// expect waits for an entry and checks it.
func (q *testCQ) expect(qp *testQP, typ, op, status uint32, index uint16) []byte {
	q.m.t.Helper()
	var e []byte
	q.m.until("a completion", func() bool { e = q.next(); return e != nil })
	want := op<<cqeOpcode | typ<<cqeType | status
	if be.Uint32(e)&^cqeOwner != want || be.Uint32(e[cqeIndex:]) != uint32(index) || be.Uint32(e[cqeQPN:]) != qp.num {
		q.m.t.Fatalf("completion %x, want %08x of %d in QP %d", e, want, index, qp.num)
	}
	return e
}

// testQP is a queue pair of the driver, with 64 units and 16 receives.
type testQP struct {
	m          *machine
	num        uint32
	send, recv *testCQ
	sq, rq     uint64
	pi, rpi    uint16
	cookie     uint32
	sendPage   uint64
	recvPage   uint64
}

const (
	testUnits = 64
	testRecvs = 16
)

func (m *machine) qpCommand(q *testQP) command {
	c := newCommand().put(8, 4, 6<<20|uint64(q.num)).put(12, 4, 4<<20|testPD).put(16, 4, uint64(q.send.num)).put(20, 4, uint64(q.recv.num)).
		put(24, 8, q.sq).put(32, 8, q.rq).put(40, 4, 1<<1).put(44, 4, 1<<1).put(48, 8, m.record).put(56, 8, m.record+8)
	return c
}

// createQP makes a QP of the kernel.
func (m *machine) createQP() *testQP {
	m.t.Helper()
	m.qpns++
	q := &testQP{m: m, num: m.qpns, send: m.createCQ(), recv: m.createCQ(), sq: m.alloc(testUnits * unit), rq: m.alloc(testRecvs * unit), sendPage: 95, recvPage: firstRecvPage}
	q.cookie = uint32(m.must(opcode{rdma, 1}, m.qpCommand(q))[0])
	return q
}

// rts returns the command that moves a QP to RTS, connected to another by a TCP connection.
func (q *testQP) rts(p *testQP) command {
	address := func(q *testQP) uint64 { return uint64(q.m.dev.cfg.MAC[5])<<24 | 10 }
	port := func(q *testQP) uint64 { return uint64(q.num) + uint64(q.m.dev.cfg.MAC[5])<<8 }
	return newCommand().put(8, 4, uint64(qpRTS)<<24|uint64(q.num)).put(12, 4, uint64(p.cookie)).put(16, 4, address(p)).put(20, 4, address(q)).
		put(24, 2, port(q)).put(26, 2, port(p)).put(28, 4, 1000*uint64(q.num)+uint64(q.m.dev.cfg.MAC[5])).put(32, 4, 1000*uint64(p.num)+uint64(p.m.dev.cfg.MAC[5]))
}

func (q *testQP) to(s qpState) byte {
	q.m.t.Helper()
	_, status := q.m.run(opcode{rdma, 3}, newCommand().put(8, 4, uint64(s)<<24|uint64(q.num)))
	return status
}

// connect connects two QPs.
func connect(q, p *testQP) {
	q.m.t.Helper()
	q.m.must(opcode{rdma, 3}, q.rts(p))
	p.m.must(opcode{rdma, 3}, p.rts(q))
}

// pair returns two connected QPs.
func pair(t *testing.T) (q, p *testQP) {
	t.Helper()
	n := newNetwork()
	q, p = newMachine(t, n, 1).createQP(), newMachine(t, n, 2).createQP()
	connect(q, p)
	return q, p
}

// region is registered memory.
type region struct {
	addr uint64
	key  uint32
}

const allRights = 1<<0 | 1<<1 | 1<<2 | 1<<3 | 1<<4

// mrCommand is of a region of two pages, the first of which is behind the second.
func (m *machine) mrCommand(index uint32, addr, rights uint64) command {
	return newCommand().put(8, 4, 1<<31|uint64(index)).put(12, 4, testPD<<12|rights<<1).put(16, 8, addr).put(24, 4, 2*pageSize).
		put(28, 4, 12<<27|2).put(32, 8, addr).put(40, 8, addr+pageSize)
}

func (m *machine) register(rights uint64) region {
	m.t.Helper()
	m.stags++
	r := region{m.alloc(2 * pageSize), m.stags << 8}
	m.must(opcode{rdma, 8}, m.mrCommand(m.stags, r.addr, rights))
	return r
}

// request is a request of units, whose header post completes.
type request []byte

func newRequest(units int) request { return make(request, units*unit) }

func (r request) put(off, size int, v uint64) request {
	var b [8]byte
	le.PutUint64(b[:], v)
	copy(r[off:][:size], b[:])
	return r
}

// sge stores a segment.
func (r request) sge(off int, addr uint64, n, key uint32) request {
	return r.put(off, 8, addr).put(off+8, 4, uint64(n)).put(off+12, 4, uint64(key))
}

// send returns a SEND of one segment.
func send(op byte, addr uint64, n, key uint32) request {
	return newRequest(1).put(0, 8, 1<<sqeLength|uint64(op)<<sqeOpcode|sqeSignaled).put(12, 4, uint64(n)).sge(16, addr, n, key)
}

// write returns a WRITE of one segment.
func write(op byte, addr uint64, n, key uint32, to region) request {
	return newRequest(2).put(0, 8, 1<<sqeLength|uint64(op)<<sqeOpcode|sqeSignaled).put(12, 4, uint64(n)).put(16, 4, uint64(to.key)).put(20, 8, to.addr).sge(32, addr, n, key)
}

// read returns a READ.
func read(op byte, addr uint64, n, key uint32, from region) request {
	return newRequest(2).put(0, 8, uint64(op)<<sqeOpcode|sqeSignaled).put(12, 4, uint64(n)).put(16, 4, uint64(key)).put(20, 8, addr).sge(32, from.addr, n, from.key)
}

// write stores a request in the queue, and returns its index.
func (q *testQP) write(r request) (index uint16) {
	index = q.pi
	units := len(r) / unit
	q.pi += uint16(units)
	h := le.Uint64(r) | uint64(units-1)<<sqeUnits | uint64(q.num)<<sqeQPN | uint64(q.pi)
	for i := range units {
		copy(q.m.at(q.sq+uint64(int(index)+i)%testUnits*unit, unit), r[i*unit:])
	}
	le.PutUint64(q.m.at(q.sq+uint64(index)%testUnits*unit, 8), h)
	return index
}

func (q *testQP) ring() { q.m.store(q.sendPage<<12, uint64(q.num)<<32|uint64(q.pi)) }

func (q *testQP) post(r request) (index uint16) {
	index = q.write(r)
	q.ring()
	return index
}

// receive posts a receive.
func (q *testQP) receive(addr uint64, n, key uint32) (index uint16) {
	index = q.rpi
	q.rpi++
	e := q.m.at(q.rq+uint64(index)%testRecvs*unit, unit)
	le.PutUint64(e, uint64(q.num)<<32|uint64(q.rpi))
	le.PutUint64(e[16:], addr)
	le.PutUint32(e[24:], n)
	le.PutUint32(e[28:], key)
	q.m.store(q.recvPage<<12, le.Uint64(e))
	return index
}

// sent waits for a completion of a request.
func (q *testQP) sent(index uint16, op byte, status uint32) {
	q.m.t.Helper()
	q.send.expect(q, typeSend, uint32(op), status, index)
}

func (q *testQP) received(index uint16, op byte, status uint32) []byte {
	q.m.t.Helper()
	return q.recv.expect(q, typeRecv, uint32(op), status, index)
}

// state returns the state of the engine's QP.
func (q *testQP) state() verbs.QPState {
	p, ok := q.m.dev.qps.Get(q.num)
	if !ok {
		q.m.t.Fatalf("no QP %d", q.num)
	}
	return p.e.Query().State
}

// event returns the next event of an EQ, or false.
func (m *machine) event(eq uint64, taken *uint32) (e [eqeSize]byte, ok bool) {
	m.dev.cqs.Len()
	b := m.at(eq+uint64(*taken%eqDepth)*eqeSize, eqeSize)
	if le.Uint32(b)>>31 == *taken/eqDepth&1 {
		return e, false
	}
	*taken++
	copy(e[:], b)
	return e, true
}

// expectEvent waits for the completion event of a CQ.
func (m *machine) expectEvent(q *testCQ) {
	m.t.Helper()
	var e [eqeSize]byte
	m.until("an event", func() (ok bool) { e, ok = m.event(m.eq, &m.events); return ok })
	if got := le.Uint64(e[:]); uint32(got)&0xfffff != q.num {
		m.t.Fatalf("event %x, want CQ %d", e, q.num)
	}
	m.store(regEQDoorbells+8, uint64(m.events&eqIndexes)|1<<31)
}

func (q *testCQ) arm(solicitedOnly bool) {
	v := uint64(q.num)<<32 | 1<<31 | uint64(q.ci&0xffffff)
	if solicitedOnly {
		v |= 1 << 30
	}
	q.m.store(firstCQPage<<12, v)
}

func (s qpState) String() string { return fmt.Sprintf("state %d", uint8(s)) }
