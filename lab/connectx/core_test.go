//go:build linux

package connectx

import (
	"slices"
	"testing"

	"github.com/goverbs/verbs/lab/connectx/internal/ifc"
	"github.com/goverbs/verbs/lab/vfiouser"
)

// TestStates runs each command in each state of the adapter.
func TestStates(t *testing.T) {
	m := newMachine(t, newHub(), 1)
	start := []uint16{
		ifc.OpQueryIssi, ifc.OpSetIssi, ifc.OpQueryPages, ifc.OpManagePages, ifc.OpQueryHcaCap, ifc.OpSetHcaCap, ifc.OpQueryAdapter, ifc.OpAccessReg,
	}
	for _, s := range []struct {
		state   hcaState
		allowed []uint16 // nil: all but those that follow
		not     []uint16
	}{
		{hcaDisabled, []uint16{ifc.OpEnableHca}, nil},
		{hcaEnabled, append(start, ifc.OpDisableHca, ifc.OpInitHca), nil},
		{hcaReady, nil, []uint16{ifc.OpEnableHca, ifc.OpDisableHca, ifc.OpInitHca}},
	} {
		for op, l := range ifc.Layouts {
			if handlers[op] == nil {
				continue
			}
			m.dev.hca = s.state
			in := make([]byte, l.In)
			be.PutUint16(in, op)
			st := ifc.Status(m.dev.execute(in, max(l.Out, 16))[0])
			want := !slices.Contains(s.not, op) && (s.allowed == nil || slices.Contains(s.allowed, op))
			if got := st != ifc.StatusBadSysStateErr; got != want {
				t.Errorf("state %d: %s has status %#x", s.state, ifc.Layouts[op].Name, st)
			}
		}
	}
	m.dev.hca = hcaReady
}

// objects returns the number of objects of each kind, and of the engine's.
func (m *machine) objects() map[string]int {
	d := m.dev
	n := map[string]int{
		"EQs": len(d.eqs.All()), "PDs": len(d.t.pds.All()), "UARs": len(d.res.uars.All()), "TISs": len(d.eth.tises.All()), "SQs": len(d.eth.sqs.All()),
		"RQs": len(d.eth.rqs.All()), "TIRs": len(d.eth.tirs.All()), "CQs": len(d.t.cqs.All()), "QPs": len(d.t.qps.All()), "SRQs": len(d.t.srqs.All()),
		"mkeys": len(d.t.mkeys.All()), "GIDs": len(d.t.eng.GIDs()), "transport domains": len(d.res.tds.All()), "entries": int(d.t.mkeys.xlt.Load()),
	}
	for name, v := range n {
		if v == 0 {
			delete(n, name)
		}
	}
	return n
}

// TestTeardown ends a driver's use of the adapter in each way, with its objects left, after which
// another one begins.
func TestTeardown(t *testing.T) {
	m := newMachine(t, newHub(), 1)
	teardown := func(profile uint64) func() {
		return func() { m.mustRun(ifc.OpTeardownHca, 0, func(in []byte) { ifc.TeardownHcaInProfile.Set(in, profile) }) }
	}
	for _, tt := range []struct {
		name string
		end  func()
		then hcaState
	}{
		{"graceful", teardown(0), hcaEnabled},
		{"forced", teardown(1), hcaEnabled},
		{"function level reset", m.dev.Reset, hcaDisabled},
		{"given up by the driver", func() {
			var b [4]byte
			be.PutUint32(b[:], nicDisabled)
			m.dev.Write(0, segCommandsLow, b[:])
		}, hcaDisabled},
		{"fatal error", func() { m.inject(FaultFatal, 0, 0) }, hcaDisabled},
	} {
		m.next = base
		clear(m.mem)
		m.newNetdev()
		m.createSRQ(true)
		x, y := pair(m, m, ifc.QpTypeRc)
		y.postRecv(seg(8, m.key, base))
		x.post(ifc.OpcodeSend, update, 0, inlineSeg([]byte("x")))
		x.send.expect(cqeRequest, 0, 0)
		y.recv.expect(cqeSend, 0, 0)
		tt.end()
		if n := m.objects(); len(n) > 0 || m.dev.hca != tt.then {
			t.Errorf("%s: state %d, %v are left", tt.name, m.dev.hca, n)
		}
		x.ring() // of a UAR that is gone
		if m.dev.hca == hcaEnabled {
			m.mustRun(ifc.OpDisableHca, 0, nil)
		}
		m.eqIndex = 0
		m.begin(1)
	}
	if _, st := m.run(ifc.OpTeardownHca, 0, func(in []byte) { ifc.TeardownHcaInProfile.Set(in, 2) }); st != ifc.StatusBadParamErr {
		t.Errorf("fast teardown: status %#x", st)
	}
	// The pages that the driver has lent outlive a teardown, as it takes them back after that.
	lend := func(op uint16, n uint64, pas ...byte) []byte {
		out, _ := m.mustRun(ifc.OpManagePages, op, func(in []byte) { ifc.ManagePagesInInputNumEntries.Set(in, n) }, pas...)
		return out
	}
	lend(pagesGive, 1, m.pages(base, 1)...)
	for _, n := range []int{maxPages, 1 << 16} { // more than the firmware has asked for
		if _, st := m.run(ifc.OpManagePages, pagesGive, func(in []byte) { ifc.ManagePagesInInputNumEntries.Set(in, uint64(n)) }, m.pages(base, n)...); st != ifc.StatusLimErr {
			t.Errorf("%d pages given, and 1 before: status %#x", n, st)
		}
	}
	teardown(0)()
	in := make([]byte, ifc.Layouts[ifc.OpManagePages].In)
	be.PutUint16(in, ifc.OpManagePages)
	be.PutUint16(in[6:], pagesTake)
	ifc.ManagePagesInInputNumEntries.Set(in, 8)
	if out := m.dev.execute(in, ifc.Layouts[ifc.OpManagePages].Out+64); ifc.ManagePagesOutOutputNumEntries.Get(out) != 1 || be.Uint64(ifc.ManagePagesOutPas.At(out)) != base {
		t.Errorf("pages % x", out)
	}
}

// TestLargePages gives queues and keys in pages of 4, 16 and 64 KiB, as guests have them.
func TestLargePages(t *testing.T) {
	for _, log := range []uint64{12, 14, 16} {
		m := newMachine(t, newHub(), 1)
		size := uint64(1) << log
		m.next = (m.next + 1<<16 - 1) &^ (1<<16 - 1)
		take := func() uint64 { m.next += size; return m.next - size }
		list := func(addr ...uint64) (pas []byte) {
			for _, a := range addr {
				pas = be.AppendUint64(pas, a)
			}
			return pas
		}
		// A CQ in two pages that are not side by side.
		first, _, second := take(), take(), take()
		cq := &testCQ{m: m, log: int(log) - 5, size: 64, record: m.alloc(8)}
		m.next = (m.next + 1<<16 - 1) &^ (1<<16 - 1)
		for p := first; p < first+size; p += pageBytes {
			cq.mem.addr = append(cq.mem.addr, p)
		}
		for p := second; p < second+size; p += pageBytes {
			cq.mem.addr = append(cq.mem.addr, p)
		}
		cq.mem.m = m
		for i := range 1 << cq.log {
			cq.mem.at(i*64, 64)[63] = cqeInvalid<<4 | 1
		}
		out, _ := m.mustRun(ifc.OpCreateCq, 0, func(in []byte) {
			ctx := ifc.CreateCqInCqContext.At(in)
			cq.fill(ctx)
			ifc.CqcLogPageSize.Set(ctx, log-12)
		}, list(first, second)...)
		cq.num = ifc.CreateCqOutCqn.U32(out)
		// A QP that begins in the middle of its page.
		page := take()
		x := &testQP{m: m, st: ifc.QpTypeUd, send: cq, recv: cq, logRecv: 4, logSend: 4, record: m.alloc(8)}
		m.next = (m.next + 1<<16 - 1) &^ (1<<16 - 1)
		x.mem = buffer{m, []uint64{page + size/64*8}}
		out, _ = m.mustRun(ifc.OpCreateQp, 0, func(in []byte) {
			ctx := ifc.CreateQpInQpc.At(in)
			x.fill(ctx)
			ifc.QpcLogPageSize.Set(ctx, log-12)
			ifc.QpcPageOffset.Set(ctx, 8)
		}, list(page)...)
		x.num = ifc.CreateQpOutQpn.U32(out)
		x.connect(0, m.addr())
		for i := range uint16(2<<cq.log + 3) {
			x.nops(1)
			cq.expect(cqeRequest, i, 0)
		}
		// A region of three pages.
		a, b, c := take(), take(), take()
		key := m.register(size/2, 2*size, list(b, c, a, 0), func(mkc []byte) { ifc.MkcLogPageSize.Set(mkc, log) })
		y, _ := pair(m, m, ifc.QpTypeRc)
		src := m.next
		m.next += 2 * size
		fillPattern(m.bytes(src, int(2*size)), int(log))
		y.post(ifc.OpcodeRdmaWrite, update, 0, remoteSeg(size/2, key), seg(int(2*size), m.key, src))
		y.send.expect(cqeRequest, 0, 0)
		got := slices.Concat(m.bytes(b+size/2, int(size/2)), m.bytes(c, int(size)), m.bytes(a, int(size/2)))
		if !slices.Equal(got, m.bytes(src, int(2*size))) {
			t.Errorf("pages of %d bytes: contents differ", size)
		}
	}
}

// TestLargeParts writes through a key of parts of 8 GiB, whose entries say no length: so Linux 7.3
// makes the keys of all memory.
func TestLargeParts(t *testing.T) {
	m := newMachine(t, newHub(), 1)
	const log, size = 33, 4096
	src, dst := m.alloc(size), m.alloc(size)
	fillPattern(m.bytes(src.addr[0], size), 1)
	part := func(key uint32, addr uint64) (b []byte) {
		return be.AppendUint64(be.AppendUint32(be.AppendUint32(nil, 0), key), addr)
	}
	absent := part(m.key^1, 0)
	key := m.register(0, 4<<log, slices.Concat(absent, absent, part(m.key, dst.addr[0]), absent), func(mkc []byte) {
		ifc.MkcAccessMode10.Set(mkc, ifc.MkcModeKsm)
		ifc.MkcAccessMode42.Set(mkc, ifc.MkcModeKsm>>2)
		ifc.MkcLogPageSize.Set(mkc, log)
	})
	x, _ := pair(m, m, ifc.QpTypeRc)
	x.post(ifc.OpcodeRdmaWrite, update, 0, remoteSeg(2<<log, key), seg(size, m.key, src.addr[0]))
	x.send.expect(cqeRequest, 0, 0)
	if !slices.Equal(m.bytes(dst.addr[0], size), m.bytes(src.addr[0], size)) {
		t.Error("contents differ")
	}
}

// TestUARPages allocates UARs for processors with pages of 4, 16 and 64 KiB, which map all UARs of
// a page.
func TestUARPages(t *testing.T) {
	for _, log := range []uint64{0, 2, 4} {
		m := newMachine(t, newHub(), 1)
		m.mustRun(ifc.OpDeallocUar, 0, func(in []byte) { ifc.DeallocUarInUar.Set(in, uint64(m.uar)) })
		set := func(log uint64, fourK uint64) ifc.Status {
			_, st := m.run(ifc.OpSetHcaCap, ifc.CapGeneral<<1, func(in []byte) {
				b := ifc.SetHcaCapInCapability.At(in)
				copy(b, m.dev.caps.now[ifc.CapGeneral])
				ifc.CmdHcaCapLogUarPageSz.Set(b, log)
				ifc.CmdHcaCapUar4k.Set(b, fourK)
			})
			return st
		}
		if st := set(log, 1); st != ifc.StatusOk {
			t.Fatalf("log_uar_page_sz %d: status %#x", log, st)
		}
		if set(5, 1) != ifc.StatusBadParamErr || set(2, 0) != ifc.StatusBadParamErr {
			t.Error("pages of 128 KiB, or with one UAR each, are not refused")
		}
		n := uint32(m.dev.caps.int(ifc.CapGeneral, ifc.CmdHcaCapNumOfUarsPerPage))
		if n != 1<<log {
			t.Fatalf("%d UARs in a page of %d bytes", n, 4096<<log)
		}
		pages := map[uint32]bool{}
		for {
			out, st := m.run(ifc.OpAllocUar, 0, nil)
			if st != ifc.StatusOk {
				break
			}
			m.uar = ifc.AllocUarOutUar.U32(out)
			pages[m.uar] = true
			if m.uar < firstUAR || m.uar%n != 0 || m.uar+n > 1<<logUARs {
				t.Fatalf("UAR %d is not the first of %d in a page", m.uar, n)
			}
		}
		if want := (1<<logUARs - firstUAR) / int(n); len(pages) != want {
			t.Errorf("%d pages of %d UARs, want %d", len(pages), n, want)
		}
		// The last UAR of a page takes doorbells as the first does.
		page := m.uar
		m.uar += n - 1
		x, y := pair(m, m, ifc.QpTypeRc)
		y.postRecv(seg(8, m.key, base))
		x.post(ifc.OpcodeSend, update, 0, inlineSeg([]byte("x")))
		x.send.expect(cqeRequest, 0, 0)
		dealloc := func(num uint32) ifc.Status {
			_, st := m.run(ifc.OpDeallocUar, 0, func(in []byte) { ifc.DeallocUarInUar.Set(in, uint64(num)) })
			return st
		}
		if n > 1 && dealloc(m.uar) != ifc.StatusBadResErr {
			t.Error("a UAR that is not the first of its page is taken back")
		}
		if dealloc(page) != ifc.StatusOk || dealloc(page) != ifc.StatusBadResErr {
			t.Error("a page of UARs cannot be taken back, or can be twice")
		}
		if _, ok := m.dev.res.uars.Get(m.uar); ok {
			t.Errorf("UAR %d is left of the page", m.uar)
		}
	}
}

// TestRegistersOfLinks reads the registers that ethtool, and a bridge by its functions, wants of a
// link.
func TestRegistersOfLinks(t *testing.T) {
	m := newMachine(t, newHub(), 1)
	for _, id := range []uint64{ifc.RegPtys, ifc.RegPfcc} {
		l := ifc.Layouts[ifc.OpAccessReg]
		in := make([]byte, l.In+ifc.PtysRegSize)
		be.PutUint16(in, ifc.OpAccessReg)
		be.PutUint16(in[6:], 1)
		ifc.AccessRegisterInRegisterId.Set(in, id)
		if out := m.dev.execute(in, l.Out+ifc.PtysRegSize); out[0] != 0 {
			t.Errorf("register %#x: status %#x", id, out[0])
		}
	}
}

// TestOtherFunctions asks for what belongs to other functions of an adapter, which has none.
func TestOtherFunctions(t *testing.T) {
	m := newMachine(t, newHub(), 1)
	caps := func(in []byte) { copy(ifc.SetHcaCapInCapability.At(in), m.dev.caps.now[ifc.CapGeneral]) }
	for _, c := range []struct {
		op, mod uint16
		fill    func(in []byte)
		field   ifc.Field
		state   hcaState
	}{
		{ifc.OpQueryVportState, 0, nil, ifc.QueryVportStateInOtherVport, hcaReady},
		{ifc.OpQueryNicVportContext, 0, nil, ifc.QueryNicVportContextInOtherVport, hcaReady},
		{ifc.OpModifyNicVportContext, 0, nil, ifc.ModifyNicVportContextInOtherVport, hcaReady},
		{ifc.OpModifyHcaVportContext, 0, nil, ifc.ModifyHcaVportContextInOtherVport, hcaReady},
		{ifc.OpQueryVportCounter, 0, nil, ifc.QueryVportCounterInOtherVport, hcaReady},
		{ifc.OpQueryHcaCap, 0, nil, ifc.QueryHcaCapInOtherFunction, hcaReady},
		{ifc.OpSetHcaCap, ifc.CapGeneral << 1, caps, ifc.SetHcaCapInOtherFunction, hcaReady},
		{ifc.OpEnableHca, 0, nil, ifc.EnableHcaInFunctionId, hcaDisabled},
		{ifc.OpEnableHca, 0, nil, ifc.EnableHcaInEmbeddedCpuFunction, hcaDisabled},
		{ifc.OpDisableHca, 0, nil, ifc.DisableHcaInFunctionId, hcaEnabled},
		{ifc.OpDisableHca, 0, nil, ifc.DisableHcaInEmbeddedCpuFunction, hcaEnabled},
	} {
		for _, other := range []uint64{0, 1} {
			m.dev.hca = c.state
			_, st := m.run(c.op, c.mod, func(in []byte) {
				if c.fill != nil {
					c.fill(in)
				}
				c.field.Set(in, other)
			})
			if refused := st == ifc.StatusBadParamErr; refused != (other == 1) || !refused && st != ifc.StatusOk {
				t.Errorf("%s of function %d: status %#x", ifc.Layouts[c.op].Name, other, st)
			}
		}
	}
	m.dev.hca = hcaReady
}

// TestAsked checks what else the driver reads while it starts: struct mlx5_init_seg, interface steps, and the pages
// that the firmware wants.
func TestAsked(t *testing.T) {
	m := newMachine(t, newHub(), 1)
	word := func(off uint64) uint32 {
		b := make([]byte, 4)
		m.dev.Read(vfiouser.BAR0, off, b)
		return be.Uint32(b)
	}
	if fw, cmd := word(0), word(4); fw != 31<<16|20 || cmd != 5<<16|1010 {
		t.Errorf("firmware %#x, %#x, want 20.31.1010, and commands of version 5", fw, cmd)
	}
	before := m.dev.clock()
	if got := uint64(word(0x1000))<<32 | uint64(word(0x1004)); got < before || got > m.dev.clock() {
		t.Errorf("timer %d, %d before it", got, before)
	}
	if n := word(0x1010); word(0x1010) != n+1 || word(0x2000) != 0 {
		t.Error("the counter of health does not go on, or there is something between the segment and the UARs")
	}
	for mod, want := range map[uint16]uint64{1: 8, 2: 16, 3: 0} {
		if out, _ := m.mustRun(ifc.OpQueryPages, mod, nil); ifc.QueryPagesOutNumPages.Get(out) != want {
			t.Errorf("pages of stage %d: %d", mod, ifc.QueryPagesOutNumPages.Get(out))
		}
	}
	if _, st := m.run(ifc.OpQueryPages, 4, nil); st != ifc.StatusBadParamErr {
		t.Errorf("pages of stage 4: status %#x", st)
	}
	if out, _ := m.mustRun(ifc.OpQueryIssi, 0, nil); ifc.QueryIssiOutSupportedIssiDw0.Get(out) != 3 {
		t.Errorf("interface steps %#x", ifc.QueryIssiOutSupportedIssiDw0.Get(out))
	}
	for step, want := range []ifc.Status{ifc.StatusOk, ifc.StatusOk, ifc.StatusBadParamErr} {
		if _, st := m.run(ifc.OpSetIssi, 0, func(in []byte) { ifc.SetIssiInCurrentIssi.Set(in, uint64(step)) }); st != want {
			t.Errorf("interface step %d: status %#x", step, st)
		}
	}
	for i, want := range map[uint64]ifc.Status{roceAddresses - 1: ifc.StatusOk, roceAddresses: ifc.StatusBadParamErr} {
		if _, st := m.run(ifc.OpQueryRoceAddress, 0, func(in []byte) { ifc.QueryRoceAddressInRoceAddressIndex.Set(in, i) }); st != want {
			t.Errorf("query GID %d: status %#x", i, st)
		}
		if _, st := m.run(ifc.OpSetRoceAddress, 0, func(in []byte) { ifc.SetRoceAddressInRoceAddressIndex.Set(in, i) }); st != want {
			t.Errorf("set GID %d: status %#x", i, st)
		}
	}
	for port, want := range []ifc.Status{ifc.StatusOk, ifc.StatusOk, ifc.StatusBadParamErr} {
		if _, st := m.run(ifc.OpSetRoceAddress, 0, func(in []byte) {
			ifc.SetRoceAddressInRoceAddressIndex.Set(in, 5)
			ifc.SetRoceAddressInVhcaPortNum.Set(in, uint64(port))
		}); st != want {
			t.Errorf("set a GID of port %d: status %#x", port, st)
		}
	}
}
