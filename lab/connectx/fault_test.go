//go:build linux

package connectx

import (
	"testing"
	"time"

	"github.com/goverbs/verbs/lab/connectx/internal/ifc"
	"github.com/goverbs/verbs/lab/internal/pcidev"
	"github.com/goverbs/verbs/lab/vfiouser"
)

// inject causes a fault as a guest does.
func (m *machine) inject(kind Fault, arg byte, count uint16) {
	m.dev.Write(vfiouser.Config, pcidev.FaultRegister, []byte{byte(kind), arg, byte(count), byte(count >> 8)})
}

func TestFaultCapability(t *testing.T) {
	m := newMachine(t, newHub(), 1)
	var b [256]byte
	m.dev.Read(vfiouser.Config, 0, b[:])
	seen := map[byte]byte{}
	for at := b[0x34]; at != 0; at = b[at+1] {
		if seen[b[at]] != 0 || at%4 != 0 {
			t.Fatalf("capability %#x at %#x", b[at], at)
		}
		seen[b[at]] = at
	}
	if seen[0x09] != pcidev.FaultCapability || seen[0x10] == 0 || seen[0x11] == 0 || b[pcidev.FaultCapability+2] != 8 {
		t.Errorf("capabilities %#x", seen)
	}
}

func TestFaults(t *testing.T) {
	h := newHub()
	a, b := newMachine(t, h, 1).newNetdev(), newMachine(t, h, 2).newNetdev()
	frame := append([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1, 8, 6}, make([]byte, 2)...)
	send := func() uint16 { return a.send(ifc.OpcodeSend, ethSeg(0, 0, nil, 0), inlineSeg(frame)) }

	a.m.inject(FaultCompletion, 0x15, 1)
	a.sendCQ.expect(cqeRequestError, send(), 0x15)
	b.receive()
	a.m.inject(FaultLost, 0, 1)
	send()
	b.receive()
	a.sendCQ.expect(cqeRequest, send(), 0) // the one before is lost
	b.receive()

	a.m.inject(FaultCommand, byte(ifc.StatusLimErr), 2)
	for _, want := range []ifc.Status{ifc.StatusLimErr, ifc.StatusLimErr, ifc.StatusOk} {
		if _, st := a.m.run(ifc.OpAllocXrcd, 0, nil); st != want {
			t.Errorf("status %#x, want %#x", st, want)
		}
	}

	// A link that is down carries nothing, and each change is an event.
	port := func(subtype uint8) {
		t.Helper()
		for {
			at := int(a.m.eqIndex&255)*eqeSize + 3
			typ, data, ok := a.m.event()
			if !ok {
				t.Fatalf("no event of the port, subtype %d", subtype)
			}
			if typ == ifc.EventPortChange {
				if got := a.m.eq.at(at, 1)[0]; got != subtype || data[8] != 1<<4 {
					t.Errorf("port %#x: subtype %d, want %d", data[8], got, subtype)
				}
				return
			}
		}
	}
	a.m.inject(FaultPortDown, 0, 0)
	port(ifc.PortChangeDown)
	out, _ := a.m.mustRun(ifc.OpQueryVportState, 0, nil)
	if ifc.QueryVportStateOutState.Is(out) {
		t.Error("the vport is up")
	}
	a.sendCQ.expect(cqeRequest, send(), 0)
	a.m.inject(FaultPortUp, 0, 0)
	port(ifc.PortChangeActive)
	a.m.inject(FaultStorm, 0, 3)
	for range 3 {
		port(ifc.PortChangeActive)
	}
	a.sendCQ.expect(cqeRequest, send(), 0)
	b.receive()
	b.recvCQ.empty()

	// A firmware that has ended shows a health counter that stands still.
	var x, y [4]byte
	a.m.inject(FaultFirmware, 0, 0)
	a.m.dev.Read(0, segHealthCounter, x[:])
	a.m.dev.Read(0, segHealthCounter, y[:])
	if x != y {
		t.Error("the health counter goes on")
	}
	e := a.m.newEntry(3, queryCap(0), 16)
	e.store()
	a.m.inject(FaultNone, 0, 0)
	if d := e.wait(); d != 0 {
		t.Errorf("delivery %#x of a command that has waited", d)
	}
	if a.m.dev.Read(0, segHealthCounter, y[:]); x == y {
		t.Error("the health counter stands still")
	}
	a.m.inject(FaultFatal, 0, 0)
	if a.m.dev.Read(0, segCommandsLow, x[:]); be.Uint32(x[:])&nicStateMask != nicDisabled {
		t.Errorf("state %#x", x)
	}
}

// TestGatewayIsNoFault writes to the word what mlx5_core of a physical function does at probe.
func TestGatewayIsNoFault(t *testing.T) {
	m := newMachine(t, newHub(), 1)
	x := m.withCQ(m.createCQ(4, 64))
	for i, space := range []Fault{0x7, 0xa} {
		m.inject(space, 0, 0)
		x.nops(1)
		if e := x.send.expect(cqeRequest, uint16(i), 0); be.Uint32(e[cqeOpQPN:])&indexMask != x.num {
			t.Errorf("space %#x: entry % x", space, e)
		}
	}
}

// TestMalformedEntries changes one field of an entry each.
func TestMalformedEntries(t *testing.T) {
	m := newMachine(t, newHub(), 1)
	q := m.createCQ(6, 64)
	x := m.withCQ(q)
	good := func() cqe {
		x.nops(1)
		e := q.next()
		clear(e[cqeTime : cqeTime+8])
		be.PutUint16(e[cqeCounter:], 0)
		return e
	}
	want := good()
	for _, tt := range []struct {
		fault  Fault
		arg    byte
		change func(e *cqe, counter uint16)
	}{
		{FaultOpcode, 9, func(e *cqe, _ uint16) { e[cqeOpOwn] = 9<<4 | e[cqeOpOwn]&0xf }},
		{FaultQPN, 3, func(e *cqe, _ uint16) { be.PutUint32(e[cqeOpQPN:], x.num+3) }},
		{FaultCounter, 5, func(e *cqe, counter uint16) { be.PutUint16(e[cqeCounter:], counter+5) }},
	} {
		m.inject(tt.fault, tt.arg, 2)
		for range 2 {
			counter := x.pi
			x.nops(1)
			got := q.next() // its owner bit is right
			clear(got[cqeTime : cqeTime+8])
			w := want
			be.PutUint16(w[cqeCounter:], counter)
			tt.change(&w, counter)
			if got != w {
				t.Errorf("fault %d: entry\n% x, want\n% x", tt.fault, got, w)
			}
		}
		if e := good(); e != want {
			t.Errorf("after fault %d: entry % x", tt.fault, e)
		}
	}
}

func TestLateEntries(t *testing.T) {
	m := newMachine(t, newHub(), 1)
	q, other := m.createCQ(2, 64), m.createCQ(2, 64)
	x, y := m.withCQ(q), m.withCQ(other)
	// After the next event: those behind it wait as well, other queues do not.
	m.inject(FaultAfterEvent, 0, 1)
	q.arm(false)
	x.nops(2)
	y.nops(1)
	other.expect(cqeRequest, 0, 0)
	q.empty()
	m.noEvent()
	m.inject(FaultStorm, 0, 1)
	q.expect(cqeRequest, 0, 0)
	q.expect(cqeRequest, 1, 0)
	m.expectEvent(ifc.EventPortChange, 0)
	m.expectEvent(ifc.EventComp, q.num)
	// After a time.
	m.inject(FaultLate, 30, 1)
	start := time.Now()
	x.nops(1)
	x.nops(1)
	q.expect(cqeRequest, 2, 0)
	if d := time.Since(start); d < 30*time.Millisecond {
		t.Errorf("the entry has come after %v", d)
	}
	q.expect(cqeRequest, 3, 0)
	// They take room, and no fault that is pending holds them back.
	m.inject(FaultAfterEvent, 0, 1)
	x.nops(4)
	m.noEvent()
	m.inject(FaultNone, 0, 0)
	for i := range uint16(4) {
		q.expect(cqeRequest, 4+i, 0)
	}
	m.inject(FaultAfterEvent, 0, 1)
	x.nops(5)
	m.expectEvent(ifc.EventCqError, q.num)
	// A queue that goes with its entries.
	m.inject(FaultLate, 1, 1)
	y.nops(1)
	m.mustRun(ifc.OpDestroyQp, 0, func(in []byte) { ifc.DestroyQpInQpn.Set(in, uint64(y.num)) })
	m.mustRun(ifc.OpDestroyCq, 0, func(in []byte) { ifc.DestroyCqInCqn.Set(in, uint64(other.num)) })
}

// TestInfiniBandLink reads the link of an InfiniBand port, which has four lanes and can be down.
func TestInfiniBandLink(t *testing.T) {
	m := newMachine(t, newHub(), 1, func(c *Config) { c.InfiniBand = true })
	const width4X = 1 << 2 // MLX5_PTYS_WIDTH_4X
	if w := ifc.PtysRegIbLinkWidthOper.Get(m.readRegister(ifc.RegPtys, ifc.PtysRegSize, func([]byte) {})); w != width4X {
		t.Errorf("width %#x, want %#x", w, width4X)
	}
	for _, want := range []struct {
		fault           Fault
		state, physical uint64
	}{{FaultPortDown, stateDown, physicalPolling}, {FaultPortUp, stateActive, physicalUp}} {
		m.inject(want.fault, 0, 0)
		out, _ := m.mustRun(ifc.OpQueryHcaVportContext, 0, nil)
		ctx := ifc.QueryHcaVportContextOutHcaVportContext.At(out)
		if state, physical := ifc.HcaVportContextPortState.Get(ctx), ifc.HcaVportContextPortPhysicalState.Get(ctx); state != want.state || physical != want.physical {
			t.Errorf("fault %d: state %d, physical %d; want %d and %d", want.fault, state, physical, want.state, want.physical)
		}
	}
}

// TestLinkDowned takes the link down and up: register PAOS shows it, and each time that it went
// down is counted, as far as the field of 8 bits goes.
func TestLinkDowned(t *testing.T) {
	for _, infiniBand := range []bool{false, true} {
		m := newMachine(t, newHub(), 1, func(c *Config) { c.InfiniBand = infiniBand })
		expect := func(state, downs uint64) {
			t.Helper()
			if s := ifc.PaosRegOperStatus.Get(m.readRegister(ifc.RegPaos, ifc.PaosRegSize, func([]byte) {})); s != state {
				t.Errorf("the port is in state %d, want %d", s, state)
			}
			if n := ifc.IbPortCntrsGrpDataLayoutLinkDownedCounter.Get(m.portCounters(groupIB, 0)); n != downs {
				t.Errorf("link_downed is %d, want %d", n, downs)
			}
		}
		expect(portUp, 0)
		for n := range uint64(3) {
			m.inject(FaultPortDown, 0, 0)
			m.inject(FaultPortDown, 0, 0) // it is already
			expect(portDown, n+1)
			m.inject(FaultPortUp, 0, 0)
			expect(portUp, n+1)
		}
		for range 300 {
			m.inject(FaultPortDown, 0, 0)
			m.inject(FaultPortUp, 0, 0)
		}
		expect(portUp, 255)
	}
}
