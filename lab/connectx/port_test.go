//go:build linux

package connectx

import (
	"bytes"
	"testing"

	"github.com/goverbs/verbs/lab/connectx/internal/ifc"
)

// TestPortDown checks what a port says of its link in each of the ways that drivers ask, while it is
// up and while it is down.
func TestPortDown(t *testing.T) {
	p := &port{eqs: new(eqTable)}
	for _, c := range []struct {
		name                         string
		paos, vport, state, physical uint64
		down                         bool
	}{
		{"at first", portUp, 1, stateActive, physicalUp, false},
		{"down", portDown, 0, stateDown, physicalPolling, true},
		{"up again", portUp, 1, stateActive, physicalUp, false},
	} {
		if c.name != "at first" {
			p.setLink(!c.down)
		}
		paos := make([]byte, ifc.PaosRegSize)
		p.readRegister(ifc.RegPaos, make([]byte, ifc.PaosRegSize), paos)
		if oper, admin := ifc.PaosRegOperStatus.Get(paos), ifc.PaosRegAdminStatus.Get(paos); oper != c.paos || admin != portUp {
			t.Errorf("%s: PAOS has state %d, want %d, and the administrator's %d, want %d", c.name, oper, c.paos, admin, portUp)
		}
		vport := &call{in: make([]byte, 64), out: make([]byte, 64)}
		if status := p.queryVportState(vport); status != ifc.StatusOk || ifc.QueryVportStateOutState.Get(vport.out) != c.vport {
			t.Errorf("%s: the vport's state is %d (status %v), want %d", c.name, ifc.QueryVportStateOutState.Get(vport.out), status, c.vport)
		}
		hca := &call{in: make([]byte, 64), out: make([]byte, 1024)}
		status := p.queryHCAVport(hca)
		ctx := ifc.QueryHcaVportContextOutHcaVportContext.At(hca.out)
		state, physical := ifc.HcaVportContextPortState.Get(ctx), ifc.HcaVportContextPortPhysicalState.Get(ctx)
		if status != ifc.StatusOk || state != c.state || physical != c.physical {
			t.Errorf("%s: an InfiniBand port in state %d, %d (status %v), want %d, %d", c.name, state, physical, status, c.state, c.physical)
		}
		if p.isDown() != c.down {
			t.Errorf("%s: down is %v", c.name, p.isDown())
		}
	}
}

// TestPortRegisters reads the registers that mlx5_core and mlx5_ib read of a port, of both link layers.
func TestPortRegisters(t *testing.T) {
	for _, infiniBand := range []bool{false, true} {
		m := newMachine(t, newHub(), 1, func(c *Config) { c.InfiniBand = infiniBand })
		read := func(id, size int) ([]byte, ifc.Status) {
			in := make([]byte, 16+size)
			be.PutUint16(in, ifc.OpAccessReg)
			ifc.AccessRegisterInRegisterId.Set(in, uint64(id))
			out := m.dev.execute(in, 16+size)
			return ifc.AccessRegisterOutRegisterData.At(out), ifc.Status(out[0])
		}
		for id, size := range registers {
			if _, st := read(id, size); st != ifc.StatusOk {
				t.Errorf("register %#x of %d bytes: status %#x", id, size, st)
			}
			if _, st := read(id, size-1); st != ifc.StatusBadInpLenErr {
				t.Errorf("register %#x of %d bytes, in %d: status %#x", id, size, size-1, st)
			}
			in := make([]byte, 16+size)
			be.PutUint16(in, ifc.OpAccessReg)
			ifc.AccessRegisterInRegisterId.Set(in, uint64(id))
			if out := m.dev.execute(in, 16+size-1); ifc.Status(out[0]) != ifc.StatusBadOutpLenErr {
				t.Errorf("register %#x of %d bytes, out %d: status %#x", id, size, size-1, out[0])
			}
			if be.PutUint16(in[6:], 2); ifc.Status(m.dev.execute(in, 16+size)[0]) != ifc.StatusBadParamErr {
				t.Errorf("register %#x is neither read nor written", id)
			}
		}
		if _, st := read(0x1234, 64); st != ifc.StatusBadParamErr {
			t.Errorf("a register that is not there: status %#x", st)
		}
		mtu, speed := uint64(9216), [2]uint64{1 << 20, 0}
		if infiniBand {
			mtu, speed = 4096, [2]uint64{0, 0x20}
		}
		pmtu, _ := read(ifc.RegPmtu, ifc.PmtuRegSize)
		for _, f := range []ifc.Field{ifc.PmtuRegMaxMtu, ifc.PmtuRegAdminMtu, ifc.PmtuRegOperMtu} {
			if f.Get(pmtu) != mtu || ifc.PmtuRegLocalPort.Get(pmtu) != 1 {
				t.Errorf("PMTU % x, want %d", pmtu, mtu)
			}
		}
		pvlc, _ := read(ifc.RegPvlc, ifc.PvlcRegSize)
		if ifc.PvlcRegVlHwCap.Get(pvlc) != 4 || ifc.PvlcRegVlAdmin.Get(pvlc) != 4 || ifc.PvlcRegVlOperational.Get(pvlc) != 4 || ifc.PvlcRegLocalPort.Get(pvlc) != 1 {
			t.Errorf("PVLC % x", pvlc)
		}
		paos, _ := read(ifc.RegPaos, ifc.PaosRegSize)
		if ifc.PaosRegLocalPort.Get(paos) != 1 {
			t.Errorf("PAOS % x", paos)
		}
		ptys, _ := read(ifc.RegPtys, ifc.PtysRegSize)
		if ifc.PtysRegEthProtoCapability.Get(ptys) != speed[0] || ifc.PtysRegEthProtoAdmin.Get(ptys) != speed[0] || ifc.PtysRegEthProtoOper.Get(ptys) != speed[0] {
			t.Errorf("PTYS % x of a port of Ethernet", ptys)
		}
		if ifc.PtysRegIbProtoCapability.Get(ptys) != speed[1] || ifc.PtysRegIbProtoOper.Get(ptys) != speed[1] {
			t.Errorf("PTYS % x of a port of InfiniBand", ptys)
		}
	}
}

// TestVport writes each field of a vport alone, and reads them all.
func TestVport(t *testing.T) {
	m := newMachine(t, newHub(), 1)
	query := func() []byte {
		out, _ := m.mustRun(ifc.OpQueryNicVportContext, 0, nil)
		return ifc.QueryNicVportContextOutNicVportContext.At(out)
	}
	if v := query(); ifc.NicVportContextMtu.Get(v) != 1500 || !ifc.NicVportContextRoceEn.Is(v) || string(ifc.NicVportContextPermanentAddress.At(v)[2:8]) != "\x02\x00\x00\x00\x00\x01" {
		t.Errorf("the vport is % x at first", v)
	}
	for bit, fields := range vportFields {
		before := query()
		inverse := make([]byte, len(before))
		for i := range before {
			inverse[i] = ^before[i]
		}
		clear(ifc.NicVportContextPermanentAddress.At(inverse)[:2]) // reserved
		want := bytes.Clone(before)
		for _, f := range fields {
			f.Copy(want, inverse)
		}
		m.mustRun(ifc.OpModifyNicVportContext, 0, func(in []byte) {
			bit.Set(ifc.ModifyNicVportContextInFieldSelect.At(in), 1)
			for _, all := range vportFields {
				for _, f := range all {
					f.Copy(ifc.ModifyNicVportContextInNicVportContext.At(in), inverse)
				}
			}
		})
		if now := query(); !bytes.Equal(now, want) || len(fields) > 0 && bytes.Equal(now, before) {
			t.Errorf("bit %d: the vport is % x, want % x", bit.Off(), now, want)
		}
	}
	if _, st := m.run(ifc.OpModifyNicVportContext, 0, func(in []byte) { be.PutUint32(ifc.ModifyNicVportContextInFieldSelect.At(in), 1<<31) }); st != ifc.StatusBadParamErr {
		t.Errorf("a field that is not there: status %#x", st)
	}
}

// TestInfiniBandPort asks for a port's GID and P_Key as mlx5_core does, and sets its capabilities.
func TestInfiniBandPort(t *testing.T) {
	m := newMachine(t, newHub(), 1, func(c *Config) { c.InfiniBand = true })
	for i, want := range []string{"\xfe\x80\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff\xfe\x00\x00\x01", string(make([]byte, 16))} {
		in := make([]byte, ifc.Layouts[ifc.OpQueryHcaVportGid].In)
		be.PutUint16(in, ifc.OpQueryHcaVportGid)
		ifc.QueryHcaVportGidInGidIndex.Set(in, uint64(i))
		out := m.dev.execute(in, ifc.Layouts[ifc.OpQueryHcaVportGid].Out+16)
		if gid := ifc.QueryHcaVportGidOutGid.At(out); string(gid[:16]) != want || ifc.QueryHcaVportGidOutGidsNum.Get(out) != 1 {
			t.Errorf("GID %d: % x", i, gid)
		}
	}
	for i, want := range map[uint64]uint32{0: 0xffff, 1: 0, 0xffff: 0xffff} {
		in := make([]byte, ifc.Layouts[ifc.OpQueryHcaVportPkey].In)
		be.PutUint16(in, ifc.OpQueryHcaVportPkey)
		ifc.QueryHcaVportPkeyInPkeyIndex.Set(in, i)
		out := m.dev.execute(in, ifc.Layouts[ifc.OpQueryHcaVportPkey].Out+4)
		if k := be.Uint32(ifc.QueryHcaVportPkeyOutPkey.At(out)); k != want {
			t.Errorf("P_Key %d: %#x, want %#x", i, k, want)
		}
	}
	caps := func() uint32 {
		out, _ := m.mustRun(ifc.OpQueryHcaVportContext, 0, nil)
		return ifc.HcaVportContextCapMask1.U32(ifc.QueryHcaVportContextOutHcaVportContext.At(out))
	}
	set := func(mask, to uint64) ifc.Status {
		_, st := m.run(ifc.OpModifyHcaVportContext, 0, func(in []byte) {
			ctx := ifc.ModifyHcaVportContextInHcaVportContext.At(in)
			ifc.HcaVportContextCapMask1FieldSelect.Set(ctx, mask)
			ifc.HcaVportContextCapMask1.Set(ctx, to)
		})
		return st
	}
	if set(1<<16, 1<<16|1) != ifc.StatusOk || caps() != capMask|1<<16 || set(0, 0) != ifc.StatusOk || caps() != capMask|1<<16 || set(1<<16, 0) != ifc.StatusOk || caps() != capMask&^(1<<16) {
		t.Errorf("capabilities %#x", caps())
	}
	if st := set(1<<17, 0); st != ifc.StatusBadParamErr {
		t.Errorf("a capability that cannot be set: status %#x", st)
	}
}
