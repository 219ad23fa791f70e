//go:build linux

package connectx

import (
	"bytes"
	"maps"

	"github.com/goverbs/verbs/lab/connectx/internal/ifc"
)

// coreCommands bring the adapter up, or concern several parts of it.
var coreCommands = map[uint16]func(*Device, *call) ifc.Status{
	ifc.OpEnableHca:            (*Device).enableHCA,
	ifc.OpDisableHca:           (*Device).disableHCA,
	ifc.OpInitHca:              (*Device).initHCA,
	ifc.OpTeardownHca:          (*Device).teardownHCA,
	ifc.OpSetDriverVersion:     done,
	ifc.OpNop:                  done,
	ifc.OpSetL2TableEntry:      done,
	ifc.OpDeleteL2TableEntry:   done,
	ifc.OpQueryIssi:            queryISSI,
	ifc.OpSetIssi:              setISSI,
	ifc.OpQueryPages:           queryPages,
	ifc.OpManagePages:          func(d *Device, c *call) ifc.Status { return d.fw.manage(d.mem, c) },
	ifc.OpQueryAdapter:         queryAdapter,
	ifc.OpQuerySpecialContexts: querySpecialContexts,
	ifc.OpQueryQCounter:        (*Device).queryQCounter,
	ifc.OpAccessReg:            (*Device).accessRegister,
	ifc.OpQueryVportCounter:    (*Device).queryVportCounter,
	ifc.OpSetRoceAddress:       (*Device).setRoCEAddress,
}

// done handles commands without visible effect: the adapter uses neither the driver's version nor
// the L2 table, as every frame on the wire is received.
func done(*Device, *call) ifc.Status { return ifc.StatusOk }

func (d *Device) accessRegister(c *call) ifc.Status {
	id := ifc.AccessRegisterInRegisterId.Int(c.in)
	in, out := ifc.AccessRegisterInRegisterData.At(c.in), ifc.AccessRegisterOutRegisterData.At(c.out)
	size, known := registers[id]
	switch {
	case !known, c.mod > 1:
		return ifc.StatusBadParamErr
	case len(in) < size:
		return ifc.StatusBadInpLenErr
	case len(out) < size:
		return ifc.StatusBadOutpLenErr
	case id == ifc.RegPpcnt:
		copy(out[:8], in)
		d.portCounters(in, ifc.PpcntRegCounterSet.At(out))
	default:
		d.port.readRegister(id, in, out)
	}
	return ifc.StatusOk
}

// setRoCEAddress sets a GID, or removes it if the address is zero (mlx5_core's lib/gid.c,
// mlx5_core_roce_gid_set).
func (d *Device) setRoCEAddress(c *call) ifc.Status {
	i := ifc.SetRoceAddressInRoceAddressIndex.Int(c.in)
	if i >= roceAddresses || ifc.SetRoceAddressInVhcaPortNum.Get(c.in) > 1 {
		return ifc.StatusBadParamErr
	}
	a := bytes.Clone(ifc.SetRoceAddressInRoceAddress.At(c.in))
	st := d.t.setAddress(i, a)
	if st == ifc.StatusOk {
		d.port.setAddress(i, a)
	}
	return st
}

func (d *Device) enableHCA(c *call) ifc.Status {
	if ifc.EnableHcaInFunctionId.Is(c.in) || ifc.EnableHcaInEmbeddedCpuFunction.Is(c.in) {
		return ifc.StatusBadParamErr
	}
	d.hca = hcaEnabled
	return ifc.StatusOk
}

func (d *Device) disableHCA(c *call) ifc.Status {
	if ifc.DisableHcaInFunctionId.Is(c.in) || ifc.DisableHcaInEmbeddedCpuFunction.Is(c.in) {
		return ifc.StatusBadParamErr
	}
	d.disable()
	return ifc.StatusOk
}

func (d *Device) initHCA(*call) ifc.Status {
	d.hca = hcaReady
	return ifc.StatusOk
}

// teardownHCA removes the objects that the driver has left. The firmware keeps the pages that the
// driver has lent: it reclaims them afterwards (mlx5_reclaim_startup_pages).
func (d *Device) teardownHCA(c *call) ifc.Status {
	// MLX5_TEARDOWN_HCA_IN_PROFILE_*. The driver forces the teardown before a reboot, without
	// destroying its objects (mlx5_try_fast_unload).
	const graceful, force = 0, 1
	switch ifc.TeardownHcaInProfile.Get(c.in) {
	case graceful, force:
		d.release()
		d.hca = hcaEnabled
		return ifc.StatusOk
	}
	return ifc.StatusBadParamErr
}

func queryISSI(_ *Device, c *call) ifc.Status {
	// Interface steps 0 and 1: mlx5_core_set_issi selects 1 if it is offered.
	ifc.QueryIssiOutSupportedIssiDw0.Set(c.out, 1<<1|1<<0)
	return ifc.StatusOk
}

func setISSI(_ *Device, c *call) ifc.Status {
	if ifc.SetIssiInCurrentIssi.Get(c.in) > 1 {
		return ifc.StatusBadParamErr
	}
	return ifc.StatusOk
}

func queryPages(_ *Device, c *call) ifc.Status {
	const boot, initialize, regular = 1, 2, 3
	n := map[uint16]uint64{boot: bootPages, initialize: initPages, regular: 0}
	v, ok := n[c.mod]
	if !ok {
		return ifc.StatusBadParamErr
	}
	ifc.QueryPagesOutNumPages.Set(c.out, v)
	return ifc.StatusOk
}

func queryAdapter(_ *Device, c *call) ifc.Status {
	p := ifc.QueryAdapterOutQueryAdapterStruct.At(c.out)
	ifc.QueryAdapterParamBlockIeeeVendorId.Set(p, 0x2c9)
	copy(ifc.QueryAdapterParamBlockVsdContdPsid.At(p), "GOV0000000001")
	return ifc.StatusOk
}

func querySpecialContexts(_ *Device, c *call) ifc.Status {
	ifc.QuerySpecialContextsOutResdLkey.Set(c.out, reservedLKey)
	ifc.QuerySpecialContextsOutNullMkey.Set(c.out, nullMKey)
	ifc.QuerySpecialContextsOutTerminateScatterListMkey.Set(c.out, terminateLKey)
	return ifc.StatusOk
}

// handlers execute the commands. Each part of the adapter has a table of its own.
var handlers = func() map[uint16]func(*Device, *call) ifc.Status {
	all := maps.Clone(coreCommands)
	add(all, func(d *Device) *capabilities { return &d.caps }, capCommands)
	add(all, func(d *Device) *port { return &d.port }, portCommands)
	add(all, func(d *Device) *resources { return &d.res }, resourceCommands)
	add(all, func(d *Device) *eqTable { return &d.eqs }, eqCommands)
	add(all, func(d *Device) *ethernet { return &d.eth }, ethCommands)
	add(all, func(d *Device) *flowTables { return &d.eth.flow }, flowCommands)
	add(all, func(d *Device) *pdTable { return &d.t.pds }, pdCommands)
	add(all, func(d *Device) *keyTable { return &d.t.mkeys }, mkeyCommands)
	add(all, func(d *Device) *cqTable { return &d.t.cqs }, cqCommands)
	add(all, func(d *Device) *srqTable { return &d.t.srqs }, srqCommands)
	add(all, func(d *Device) *qpTable { return &d.t.qps }, qpCommands)
	add(all, func(d *Device) *qpTable { return &d.t.qps }, transitionCommands)
	add(all, func(d *Device) *dctTable { return &d.t.dcts }, dctCommands)
	add(all, func(d *Device) *transport { return d.t }, pagingCommands)
	return all
}()

// add adds the handlers of a part.
func add[P any](all map[uint16]func(*Device, *call) ifc.Status, part func(*Device) *P, commands map[uint16]func(*P, *call) ifc.Status) {
	for op, run := range commands {
		all[op] = func(d *Device, c *call) ifc.Status { return run(part(d), c) }
	}
}

// execute executes the command with the input in, and returns outLen bytes of output. Input and
// output begin alike for all commands (struct mlx5_ifc_mbox_in_bits and _out_bits): with the opcode,
// and op_mod at 6; with the status, and the syndrome at 4, which is 0 here: nothing public lists its
// values.
func (d *Device) execute(in []byte, outLen int) []byte {
	c := &call{op: be.Uint16(in), mod: be.Uint16(in[6:]), in: in, out: make([]byte, outLen)}
	st := d.dispatch(c)
	out := c.out[:outLen]
	if st != ifc.StatusOk {
		clear(out)
	}
	out[0] = byte(st)
	d.record(Event{Kind: RecordCommand, Number: uint32(c.op), Status: byte(st), In: in, Out: out})
	return out
}

// shorter has the sizes that Linux 6.1 gives to commands whose structures have grown since.
var shorter = map[uint16]ifc.Layout{
	ifc.OpCreateFlowTable:      {In: 64, Out: 16},
	ifc.OpQueryQp:              {In: 16, Out: 272},
	ifc.OpQuerySpecialContexts: {In: 16, Out: 16},
}

// dispatch makes the checks that all commands have in common, and calls the handler.
func (d *Device) dispatch(c *call) ifc.Status {
	if st, ok := d.faults.Take(FaultCommand); ok {
		return ifc.Status(st)
	}
	run, l := handlers[c.op], ifc.Layouts[c.op]
	if run == nil {
		return ifc.StatusBadOpErr
	}
	least := l
	if s, ok := shorter[c.op]; ok {
		least = s
	}
	switch {
	case len(c.in) < least.In:
		return ifc.StatusBadInpLenErr
	case len(c.out) < least.Out:
		return ifc.StatusBadOutpLenErr
	}
	// What an older driver lacks is zero.
	c.in = append(c.in, make([]byte, max(l.In-len(c.in), 0))...)
	c.out = append(c.out, make([]byte, max(l.Out-len(c.out), 0))...)
	for _, f := range l.Reserved {
		if !f.Zero(c.in) {
			return ifc.StatusBadParamErr
		}
	}
	if !d.hca.allowed(c.op) {
		return ifc.StatusBadSysStateErr
	}
	return run(d, c)
}
