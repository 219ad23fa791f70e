//go:build linux

package connectx

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/internal/netif"
	"github.com/goverbs/verbs/lab/connectx/internal/ifc"
	"github.com/goverbs/verbs/lab/internal/pcidev/pcitest"
	"github.com/goverbs/verbs/lab/vfiouser"
)

// hub is a network of the adapters of a test.
type hub struct {
	mu    sync.Mutex
	ports map[netip.AddrPort]*hubPort
	wire  *Wire
}

func newHub() *hub { return &hub{ports: map[netip.AddrPort]*hubPort{}, wire: NewWire()} }

type hubPort struct {
	h       *hub
	addr    netip.AddrPort
	packets chan []netif.Packet
	done    chan struct{}
}

func (h *hub) Open(addr netip.AddrPort) (netif.Port, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ports[addr] != nil {
		return nil, fmt.Errorf("address %v is in use", addr)
	}
	p := &hubPort{h: h, addr: addr, packets: make(chan []netif.Packet, 4096)}
	h.ports[addr] = p
	return p, nil
}

func (p *hubPort) Addr() netip.AddrPort { return p.addr }
func (p *hubPort) MTU() int             { return 9000 }

func (p *hubPort) Send(pkts []netif.Packet) error {
	p.h.mu.Lock()
	defer p.h.mu.Unlock()
	for _, k := range pkts {
		k.Data, k.IDKnown = append([]byte(nil), k.Data...), true
		for addr, to := range p.h.ports {
			if addr == k.Dst || k.Dst.Addr().IsMulticast() && addr != k.Src {
				select {
				case to.packets <- []netif.Packet{k}:
				default:
				}
			}
		}
	}
	return nil
}

func (p *hubPort) Start(receive func([]netif.Packet)) {
	p.done = make(chan struct{})
	go func() {
		defer close(p.done)
		for pkts := range p.packets {
			receive(pkts)
		}
	}()
}

func (p *hubPort) Close() error {
	p.h.mu.Lock()
	if p.h.ports[p.addr] == p {
		delete(p.h.ports, p.addr)
		close(p.packets)
	}
	p.h.mu.Unlock()
	if p.done != nil {
		<-p.done
	}
	return nil
}

// machine is a virtual machine with an adapter: its memory, which the adapter has through the
// protocol, and what a driver does.
type machine struct {
	t    testing.TB
	mem  []byte
	next uint64 // address of the next free page
	dev  *Device

	uar, pd, eqn uint32
	eq           buffer
	eqIndex      uint32
	keys         uint32
	key          uint32 // of all memory
}

const pageBytes = 4096

// newMachine makes a machine with memory of 32 MiB at address 1 MiB. An address of the port is
// 10.0.0.n.
func newMachine(t testing.TB, h *hub, n byte, change ...func(*Config)) *machine {
	t.Helper()
	m := &machine{t: t, next: base}
	cfg := Config{Name: "mlx5", MAC: net.HardwareAddr{2, 0, 0, 0, 0, n}, Network: h, Wire: h.wire}
	for _, f := range change {
		f(&cfg)
	}
	m.mem = pcitest.Attach(t, base, 32<<20, func(bus *vfiouser.Bus) (_ pcitest.Card, err error) {
		m.dev, err = New(cfg, bus)
		return m.dev, err
	})
	m.begin(n)
	return m
}

// lastRefusal makes the recorder keep the reason of the last refusal, a string.
func lastRefusal(reason *atomic.Value) func(*Config) {
	return func(c *Config) {
		c.Record = func(e Event) {
			if e.Kind == RecordRefusal {
				reason.Store(e.Reason)
			}
		}
	}
}

// begin makes what all tests need.
func (m *machine) begin(n byte) {
	m.t.Helper()
	m.mustRun(ifc.OpEnableHca, 0, nil)
	m.mustRun(ifc.OpInitHca, 0, nil)
	if !m.dev.cfg.InfiniBand {
		m.setAddress(0, netip.AddrFrom4([4]byte{10, 0, 0, n}))
	}
	out, _ := m.mustRun(ifc.OpAllocUar, 0, nil)
	m.uar = ifc.AllocUarOutUar.U32(out)
	m.createEQ()
	out, _ = m.mustRun(ifc.OpAllocPd, 0, nil)
	m.pd = ifc.AllocPdOutPd.U32(out)
	m.key = m.register(base, uint64(len(m.mem)), m.pages(base, len(m.mem)/pageBytes), func([]byte) {})
}

const base = 1 << 20

// buffer is memory of the machine in several pages, one after the other.
type buffer struct {
	m    *machine
	addr []uint64
}

// alloc returns zeroed pages, the later ones at lower addresses.
func (m *machine) alloc(bytes int) buffer {
	n := (bytes + pageBytes - 1) / pageBytes
	b := buffer{m: m}
	for i := range n {
		b.addr = append(b.addr, m.next+uint64(n-1-i)*pageBytes)
	}
	m.next += uint64(n) * pageBytes
	if m.next > base+uint64(len(m.mem)) {
		m.t.Fatal("no memory")
	}
	return b
}

// at returns n bytes of the buffer, which are in one page.
func (b buffer) at(off, n int) []byte {
	return b.m.bytes(b.addr[off/pageBytes]+uint64(off%pageBytes), n)
}

func (m *machine) bytes(addr uint64, n int) []byte { return m.mem[addr-base:][:n:n] }

func (m *machine) pages(addr uint64, n int) []byte {
	var list []byte
	for i := range n {
		list = be.AppendUint64(list, addr+uint64(i)*pageBytes)
	}
	return list
}

func (b buffer) list() (list []byte) {
	for _, a := range b.addr {
		list = be.AppendUint64(list, a)
	}
	return list
}

// run executes a command, whose input fill completes; pas follows it.
func (m *machine) run(op, mod uint16, fill func(in []byte), pas ...byte) (out []byte, st ifc.Status) {
	m.t.Helper()
	l, ok := ifc.Layouts[op]
	if !ok {
		m.t.Fatalf("no command %#x", op)
	}
	in := append(make([]byte, l.In), pas...)
	be.PutUint16(in, op)
	be.PutUint16(in[6:], mod)
	if fill != nil {
		fill(in)
	}
	out = m.dev.execute(in, l.Out)
	return out, ifc.Status(out[0])
}

func (m *machine) mustRun(op, mod uint16, fill func(in []byte), pas ...byte) (out []byte, st ifc.Status) {
	m.t.Helper()
	out, st = m.run(op, mod, fill, pas...)
	if st != ifc.StatusOk {
		m.t.Fatalf("command %s: status %#x", ifc.Layouts[op].Name, st)
	}
	return out, st
}

func (m *machine) setAddress(i int, addr netip.Addr) {
	m.t.Helper()
	m.mustRun(ifc.OpSetRoceAddress, 0, func(in []byte) {
		ifc.SetRoceAddressInRoceAddressIndex.Set(in, uint64(i))
		a := ifc.SetRoceAddressInRoceAddress.At(in)
		if addr.IsValid() {
			ip := addr.As16()
			copy(a, ip[:])
			ifc.RoceAddrLayoutRoceVersion.Set(a, 2)
		}
	})
}

func (m *machine) createEQ() {
	m.t.Helper()
	m.eq = m.alloc(16 << 10)
	out, _ := m.mustRun(ifc.OpCreateEq, 0, func(in []byte) {
		ctx := ifc.CreateEqInEqContextEntry.At(in)
		ifc.EqcLogEqSize.Set(ctx, 8)
		ifc.EqcUarPage.Set(ctx, uint64(m.uar))
		be.PutUint64(ifc.CreateEqInEventBitmask.At(in), ^uint64(1<<ifc.EventCmd))
	}, m.eq.list()...)
	m.eqn = ifc.CreateEqOutEqNumber.U32(out)
}

// event returns the next event, if there is one.
func (m *machine) event() (typ uint8, data []byte, ok bool) {
	e := m.eq.at(int(m.eqIndex&255)*eqeSize, eqeSize)
	m.dev.eqs.All()[0].Mu.Lock() // as the interrupt orders it
	defer m.dev.eqs.All()[0].Mu.Unlock()
	if e[63]&1 != byte(m.eqIndex>>8&1) || e[1] == 0 && be.Uint32(e[56:]) == 0 {
		return 0, nil, false
	}
	m.eqIndex++
	m.dev.eqs.All()[0].CI = m.eqIndex
	return e[1], append([]byte(nil), e[32:60]...), true
}

// expectEvent waits for an event of a type about a queue.
func (m *machine) expectEvent(typ uint8, num uint32) {
	m.t.Helper()
	got, data := m.nextEvent()
	if n := max(be.Uint32(data[24:]), be.Uint32(data)); got != typ || n != num {
		m.t.Fatalf("event %#x of %#x; want %#x of %#x", got, n, typ, num)
	}
}

// nextEvent waits for an event.
func (m *machine) nextEvent() (typ uint8, data []byte) {
	m.t.Helper()
	labtest.Until(m.t, "an event", func() (ok bool) {
		typ, data, ok = m.event()
		return ok
	})
	return typ, data
}

func (m *machine) noEvent() {
	m.t.Helper()
	if typ, data, ok := m.event(); ok {
		m.t.Fatalf("event %#x: %x", typ, data)
	}
}

// register makes an mkey of pages, with all rights, and returns it.
func (m *machine) register(start, length uint64, pas []byte, change func(mkc []byte)) uint32 {
	m.t.Helper()
	m.keys++
	out, _ := m.mustRun(ifc.OpCreateMkey, 0, func(in []byte) { m.fillMkey(in, start, length, len(pas), change) }, pas...)
	return ifc.CreateMkeyOutMkeyIndex.U32(out)<<8 | m.keys&0xff
}

func (m *machine) fillMkey(in []byte, start, length uint64, pas int, change func(mkc []byte)) {
	mkc := ifc.CreateMkeyInMemoryKeyMkeyEntry.At(in)
	for _, f := range []ifc.Field{ifc.MkcA, ifc.MkcRw, ifc.MkcRr, ifc.MkcLw, ifc.MkcLr} {
		f.Set(mkc, 1)
	}
	ifc.MkcAccessMode10.Set(mkc, ifc.MkcModeMtt)
	ifc.MkcMkey70.Set(mkc, uint64(m.keys&0xff))
	ifc.MkcQpn.Set(mkc, 0xffffff)
	ifc.MkcPd.Set(mkc, uint64(m.pd))
	ifc.MkcStartAddr.Set(mkc, start)
	ifc.MkcLen.Set(mkc, length)
	ifc.MkcLogPageSize.Set(mkc, 12)
	ifc.CreateMkeyInTranslationsOctwordActualSize.Set(in, uint64(pas/16))
	change(mkc)
}

// testCQ is a CQ as a driver has it.
type testCQ struct {
	m      *machine
	num    uint32
	mem    buffer
	record buffer
	log    int
	size   int // of an entry
	ci     uint32
}

func (m *machine) createCQ(log, size int, change ...func(cqc []byte)) *testCQ {
	m.t.Helper()
	q := &testCQ{m: m, log: log, size: size, mem: m.alloc(size << log), record: m.alloc(8)}
	for i := range 1 << log {
		q.mem.at(i*size, size)[size-1] = cqeInvalid<<4 | 1
	}
	out, _ := m.mustRun(ifc.OpCreateCq, 0, func(in []byte) {
		ctx := ifc.CreateCqInCqContext.At(in)
		q.fill(ctx)
		for _, f := range change {
			f(ctx)
		}
	}, q.mem.list()...)
	q.num = ifc.CreateCqOutCqn.U32(out)
	return q
}

func (q *testCQ) fill(ctx []byte) {
	ifc.CqcLogCqSize.Set(ctx, uint64(q.log))
	ifc.CqcCqeSz.Set(ctx, uint64(q.size/128))
	ifc.CqcUarPage.Set(ctx, uint64(q.m.uar))
	ifc.CqcCEqnOrApuElement.Set(ctx, uint64(q.m.eqn))
	ifc.CqcDbrAddr.Set(ctx, q.record.addr[0])
}

// poll takes an entry.
func (q *testCQ) poll() (e cqe, ok bool) {
	i := q.ci & (1<<q.log - 1)
	b := q.mem.at(int(i)*q.size, q.size)
	if own := b[q.size-1]; own>>4 == cqeInvalid || own&1 != byte(q.ci>>q.log&1) {
		return e, false
	}
	q.m.dev.t.cqs.All() // its lock is the barrier between the owner bit and the rest
	copy(e[:], b[q.size-64:])
	q.ci++
	be.PutUint32(q.record.at(0, 4), q.ci&indexMask)
	return e, true
}

// next waits for an entry.
func (q *testCQ) next() cqe {
	q.m.t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(50 * time.Microsecond) {
		if e, ok := q.poll(); ok {
			return e
		}
		if time.Now().After(deadline) {
			q.m.t.Fatalf("CQ %#x has no entry %d", q.num, q.ci)
		}
	}
}

// expect waits for an entry with an opcode, a counter and, of an error, a syndrome.
func (q *testCQ) expect(op byte, counter uint16, syndrome byte) cqe {
	q.m.t.Helper()
	e := q.next()
	got := e[cqeSyndrome]
	if e[cqeOpOwn]>>4 < cqeRequestError {
		got = 0
	}
	if e[cqeOpOwn]>>4 != op || be.Uint16(e[cqeCounter:]) != counter || got != syndrome {
		q.m.t.Fatalf("entry with opcode %d, counter %d, syndrome %#x; want %d, %d, %#x\n% x", e[cqeOpOwn]>>4, be.Uint16(e[cqeCounter:]), got, op, counter, syndrome, e)
	}
	if want := map[byte]byte{0x05: 0xf9, 0x13: 0x88, 0x14: 0x89, 0x15: 0x81}[got]; e[cqeVendor] != want && got != 0 {
		q.m.t.Errorf("vendor error %#x with syndrome %#x, want %#x", e[cqeVendor], got, want)
	}
	return e
}

func (q *testCQ) empty() {
	q.m.t.Helper()
	if e, ok := q.poll(); ok {
		q.m.t.Fatalf("CQ %#x: % x", q.num, e)
	}
}

// arm arms the queue by its UAR, or by another.
func (q *testCQ) arm(solicitedOnly bool, uar ...uint32) {
	var b [8]byte
	be.PutUint32(b[:], q.ci&indexMask)
	if solicitedOnly {
		b[0] |= 1
	}
	be.PutUint32(b[4:], q.num)
	q.m.dev.doorbell(append(uar, q.m.uar)[0], uarCQ, b[:])
}

// testQP is a QP as a driver has it.
type testQP struct {
	m          *machine
	num        uint32
	st         int
	send, recv *testCQ
	mem        buffer
	record     buffer
	logRecv    int
	logSend    int
	pi, rpi    uint16
	remote     uint32
	to         netip.Addr
	retries    uint64 // of connect; 0: without an end
	rnrRetry   uint64
}

const testStride = 64

// createQP makes a QP with 16 receives of 4 SGEs, and 16 blocks of send requests.
func (m *machine) createQP(st int, send, recv *testCQ, change ...func(qpc []byte)) *testQP {
	m.t.Helper()
	q := &testQP{m: m, st: st, send: send, recv: recv, logRecv: 4, logSend: 4, record: m.alloc(8)}
	q.mem = m.alloc(testStride<<q.logRecv + sendBlock<<q.logSend)
	out, _ := m.mustRun(ifc.OpCreateQp, 0, func(in []byte) {
		ctx := ifc.CreateQpInQpc.At(in)
		q.fill(ctx)
		for _, f := range change {
			f(ctx)
		}
	}, q.mem.list()...)
	q.num = ifc.CreateQpOutQpn.U32(out)
	return q
}

func (q *testQP) fill(ctx []byte) {
	ifc.QpcSt.Set(ctx, uint64(q.st))
	ifc.QpcPd.Set(ctx, uint64(q.m.pd))
	ifc.QpcUarPage.Set(ctx, uint64(q.m.uar))
	ifc.QpcUserIndex.Set(ctx, 0x1234)
	ifc.QpcLogRqSize.Set(ctx, uint64(q.logRecv))
	ifc.QpcLogRqStride.Set(ctx, 2)
	ifc.QpcLogSqSize.Set(ctx, uint64(q.logSend))
	ifc.QpcCqnSnd.Set(ctx, uint64(q.send.num))
	ifc.QpcCqnRcv.Set(ctx, uint64(q.recv.num))
	ifc.QpcDbrAddr.Set(ctx, q.record.addr[0])
}

// modify runs a transition.
func (q *testQP) modify(op uint16, change func(in, qpc []byte)) ifc.Status {
	q.m.t.Helper()
	_, st := q.m.run(op, 0, func(in []byte) {
		ifc.Rst2initQpInQpn.Set(in, uint64(q.num))
		if change != nil {
			change(in, ifc.Rst2initQpInQpc.At(in))
		}
	})
	return st
}

func (q *testQP) mustModify(op uint16, change func(in, qpc []byte)) {
	q.m.t.Helper()
	if st := q.modify(op, change); st != ifc.StatusOk {
		q.m.t.Fatalf("QP %#x: command %s: status %#x", q.num, ifc.Layouts[op].Name, st)
	}
}

const testQKey = 0x1111

// connect moves the QP to RTS, with a peer at an address.
func (q *testQP) connect(remote uint32, to netip.Addr) {
	q.m.t.Helper()
	q.remote, q.to = remote, to
	q.mustModify(ifc.OpRst2initQp, func(_, ctx []byte) {
		for _, f := range []ifc.Field{ifc.QpcRre, ifc.QpcRwe, ifc.QpcRae, inPath(ifc.AdsVhcaPortNum)} {
			f.Set(ctx, 1)
		}
		ifc.QpcQKey.Set(ctx, testQKey)
	})
	q.mustModify(ifc.OpInit2rtrQp, func(_, ctx []byte) {
		ifc.QpcMtu.Set(ctx, 3)
		ifc.QpcRemoteQpn.Set(ctx, uint64(remote))
		ifc.QpcNextRcvPsn.Set(ctx, 0xfffff0)
		ifc.QpcLogRraMax.Set(ctx, 2)
		ifc.QpcMinRnrNak.Set(ctx, 1)
		path := ifc.QpcPrimaryAddressPath.At(ctx)
		gid := to.As16()
		copy(ifc.AdsRgidRip.At(path), gid[:])
		if !lids.Contains(to) {
			ifc.AdsGrh.Set(path, 1)
		}
		ifc.AdsRlid.Set(path, uint64(lidOf(gid[14:]))) // of InfiniBand
		ifc.AdsHopLimit.Set(path, 64)
	})
	q.mustModify(ifc.OpRtr2rtsQp, func(_, ctx []byte) {
		ifc.QpcNextSendPsn.Set(ctx, 0xfffff0)
		ifc.QpcLogSraMax.Set(ctx, 2)
		ifc.QpcRetryCount.Set(ctx, cmp.Or(q.retries, 7))
		ifc.QpcRnrRetry.Set(ctx, cmp.Or(q.rnrRetry, 7))
		timeout := uint64(21) // 8.6 s: tests count packets, of which a busy machine must cause none
		if q.retries != 0 {
			timeout = 10 // 4.2 ms
		}
		inPath(ifc.AdsAckTimeout).Set(ctx, timeout)
	})
}

// pair makes two connected QPs of a type on a machine, or on two.
func pair(a, b *machine, st int) (x, y *testQP) {
	x = a.createQP(st, a.createCQ(6, 64), a.createCQ(6, 64))
	y = b.createQP(st, b.createCQ(6, 64), b.createCQ(6, 64))
	x.connect(y.num, b.addr())
	y.connect(x.num, a.addr())
	return x, y
}

func (m *machine) addr() netip.Addr {
	gid, _ := m.dev.t.eng.GID(0)
	return gid.Addr()
}

// seg is a data segment.
func seg(n int, key uint32, addr uint64) []byte {
	b := be.AppendUint32(nil, uint32(n))
	return be.AppendUint64(be.AppendUint32(b, key), addr)
}

// vector returns an address vector that leads to a QP by its GID.
func vector(num uint32, to netip.Addr) []byte {
	av := make([]byte, avSize)
	be.PutUint32(av[avQKey:], testQKey)
	be.PutUint32(av[avQPN:], extendedAV|num)
	be.PutUint32(av[avGRHFlow:], 1<<30)
	gid := to.As16()
	copy(av[avGID:], gid[:])
	return av
}

func inlineSeg(data []byte) []byte {
	b := append(be.AppendUint32(nil, uint32(len(data))|inlineBit), data...)
	for len(b)%16 != 0 {
		b = append(b, 0)
	}
	return b
}

func remoteSeg(addr uint64, key uint32) []byte {
	return append(be.AppendUint32(be.AppendUint64(nil, addr), key), 0, 0, 0, 0)
}

// put adds a send request, of a control segment and others, without a doorbell.
func (q *testQP) put(opcode, flags byte, imm uint32, segs ...[]byte) {
	wqe := be.AppendUint32(nil, uint32(q.pi)<<8|uint32(opcode))
	wqe = append(be.AppendUint32(wqe, q.num<<8), 0, 0, 0, flags)
	wqe = be.AppendUint32(wqe, imm)
	for _, s := range segs {
		wqe = append(wqe, s...)
	}
	wqe[7] = byte((len(wqe) + 15) / 16)
	q.putRaw(wqe)
}

func (q *testQP) putRaw(wqe []byte) {
	for ; len(wqe) > 0; wqe = wqe[min(len(wqe), sendBlock):] {
		i := int(q.pi) & (1<<q.logSend - 1)
		copy(q.mem.at(testStride<<q.logRecv+i*sendBlock, sendBlock), wqe[:min(len(wqe), sendBlock)])
		q.pi++
	}
}

// ring publishes the requests.
func (q *testQP) ring() {
	be.PutUint32(q.record.at(4, 4), uint32(q.pi))
	b := make([]byte, 8)
	be.PutUint32(b[4:], q.num<<8)
	q.m.dev.doorbell(q.m.uar, uarSend, b)
}

func (q *testQP) post(opcode, flags byte, imm uint32, segs ...[]byte) {
	q.put(opcode, flags, imm, segs...)
	q.ring()
}

// postRecv adds a receive.
func (q *testQP) postRecv(segs ...[]byte) {
	b := q.mem.at(int(q.rpi)&(1<<q.logRecv-1)*testStride, testStride)
	clear(b)
	n := 0
	for _, s := range segs {
		n += copy(b[n:], s)
	}
	if n < len(b) {
		copy(b[n:], seg(0, reservedLKey, 0))
	}
	q.rpi++
	be.PutUint32(q.record.at(0, 4), uint32(q.rpi))
}
