//go:build linux

package connectx

import (
	"bytes"
	"maps"
)

// coreCommands are those that bring the adapter up, and those of more than one part of it.
var coreCommands = map[uint16]func(*Device, *call) status{
	opEnableHca:            (*Device).enableHCA,
	opDisableHca:           (*Device).disableHCA,
	opInitHca:              (*Device).initHCA,
	opTeardownHca:          (*Device).teardownHCA,
	opSetDriverVersion:     done,
	opNop:                  done,
	opSetL2TableEntry:      done,
	opDeleteL2TableEntry:   done,
	opQueryIssi:            queryISSI,
	opSetIssi:              setISSI,
	opQueryPages:           queryPages,
	opManagePages:          func(d *Device, c *call) status { return d.fw.manage(d.mem, c) },
	opQueryAdapter:         queryAdapter,
	opQuerySpecialContexts: querySpecialContexts,
	opQueryQCounter:        (*Device).queryQCounter,
	opAccessReg:            (*Device).accessRegister,
	opQueryVportCounter:    (*Device).queryVportCounter,
	opSetRoceAddress:       (*Device).setRoCEAddress,
}

func done(*Device, *call) status { return statusOk }

func (d *Device) accessRegister(c *call) status {
	id := accessRegisterInRegisterId.int(c.in)
	in, out := accessRegisterInRegisterData.at(c.in), accessRegisterOutRegisterData.at(c.out)
	size, known := registers[id]
	switch {
	case !known, c.mod > 1:
		return statusBadParamErr
	case len(in) < size:
		return statusBadInpLenErr
	case len(out) < size:
		return statusBadOutpLenErr
	case id == regPpcnt:
		copy(out[:8], in)
		d.portCounters(in, ppcntRegCounterSet.at(out))
	default:
		d.port.readRegister(id, in, out)
	}
	return statusOk
}

// setRoCEAddress sets or, if all is zero, removes a GID.
func (d *Device) setRoCEAddress(c *call) status {
	i := setRoceAddressInRoceAddressIndex.int(c.in)
	if i >= roceAddresses || setRoceAddressInVhcaPortNum.get(c.in) > 1 {
		return statusBadParamErr
	}
	a := bytes.Clone(setRoceAddressInRoceAddress.at(c.in))
	st := d.t.setAddress(i, a)
	if st == statusOk {
		d.port.setAddress(i, a)
	}
	return st
}

func (d *Device) enableHCA(c *call) status {
	if enableHcaInFunctionId.is(c.in) || enableHcaInEmbeddedCpuFunction.is(c.in) {
		return statusBadParamErr
	}
	d.hca = hcaEnabled
	return statusOk
}

func (d *Device) disableHCA(c *call) status {
	if disableHcaInFunctionId.is(c.in) || disableHcaInEmbeddedCpuFunction.is(c.in) {
		return statusBadParamErr
	}
	d.disable()
	return statusOk
}

func (d *Device) initHCA(*call) status {
	d.hca = hcaReady
	return statusOk
}

// teardownHCA removes what the driver has left, in the graceful profile as in the forced one. The
// pages that the driver has lent are still the firmware's.
func (d *Device) teardownHCA(c *call) status {
	const graceful, force = 0, 1
	switch teardownHcaInProfile.get(c.in) {
	case graceful, force:
		d.release()
		d.hca = hcaEnabled
		return statusOk
	}
	return statusBadParamErr
}

func queryISSI(_ *Device, c *call) status {
	queryIssiOutSupportedIssiDw0.set(c.out, 1<<1|1<<0)
	return statusOk
}

func setISSI(_ *Device, c *call) status {
	if setIssiInCurrentIssi.get(c.in) > 1 {
		return statusBadParamErr
	}
	return statusOk
}

func queryPages(_ *Device, c *call) status {
	const boot, initialize, regular = 1, 2, 3
	n := map[uint16]uint64{boot: bootPages, initialize: initPages, regular: 0}
	v, ok := n[c.mod]
	if !ok {
		return statusBadParamErr
	}
	queryPagesOutNumPages.set(c.out, v)
	return statusOk
}

func queryAdapter(_ *Device, c *call) status {
	p := queryAdapterOutQueryAdapterStruct.at(c.out)
	queryAdapterParamBlockIeeeVendorId.set(p, 0x2c9)
	copy(queryAdapterParamBlockVsdContdPsid.at(p), "GOV0000000001")
	return statusOk
}

func querySpecialContexts(_ *Device, c *call) status {
	querySpecialContextsOutResdLkey.set(c.out, reservedLKey)
	querySpecialContextsOutNullMkey.set(c.out, nullMKey)
	querySpecialContextsOutTerminateScatterListMkey.set(c.out, terminateLKey)
	return statusOk
}

// handlers execute the commands: those of each part of the adapter stand with it.
var handlers = func() map[uint16]func(*Device, *call) status {
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
	return all
}()

// add adds the handlers of a part.
func add[P any](all map[uint16]func(*Device, *call) status, part func(*Device) *P, commands map[uint16]func(*P, *call) status) {
	for op, run := range commands {
		all[op] = func(d *Device, c *call) status { return run(part(d), c) }
	}
}

// execute executes a command, of which in is the whole input, and returns outLen bytes of output.
func (d *Device) execute(in []byte, outLen int) []byte {
	c := &call{op: be.Uint16(in), mod: be.Uint16(in[6:]), in: in, out: make([]byte, outLen)}
	st := d.dispatch(c)
	out := c.out[:outLen]
	if st != statusOk {
		clear(out)
	}
	out[0] = byte(st)
	be.PutUint32(out[4:], c.syndrome)
	d.record(Event{Kind: RecordCommand, Number: uint32(c.op), Status: byte(st), In: in, Out: out})
	return out
}

// shorter has the sizes of commands whose structures have grown since Linux 6.1.
var shorter = map[uint16]layout{
	opCreateFlowTable:      {in: 64, out: 16},
	opQueryQp:              {in: 16, out: 272},
	opQuerySpecialContexts: {in: 16, out: 16},
}

// dispatch checks what all commands have in common, and calls the handler.
func (d *Device) dispatch(c *call) status {
	if st, ok := d.faults.take(FaultCommand); ok {
		return status(st)
	}
	run, l := handlers[c.op], layouts[c.op]
	if run == nil {
		return statusBadOpErr
	}
	least := l
	if s, ok := shorter[c.op]; ok {
		least = s
	}
	switch {
	case len(c.in) < least.in:
		return statusBadInpLenErr
	case len(c.out) < least.out:
		return statusBadOutpLenErr
	}
	// What an older driver lacks is zero.
	c.in = append(c.in, make([]byte, max(l.in-len(c.in), 0))...)
	c.out = append(c.out, make([]byte, max(l.out-len(c.out), 0))...)
	for _, f := range l.reserved {
		if !f.zero(c.in) {
			return statusBadParamErr
		}
	}
	if !d.hca.allowed(c.op) {
		return statusBadSysStateErr
	}
	return run(d, c)
}
