//go:build linux

package connectx

import (
	"bytes"
	"slices"
	"sync"

	"github.com/goverbs/verbs/lab/vfiouser"
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

// hcaState is how far a driver has brought up the adapter.
type hcaState uint8

const (
	hcaDisabled hcaState = iota // after a reset
	hcaEnabled                  // by ENABLE_HCA: the driver sets capabilities and lends memory
	hcaReady                    // by INIT_HCA: there may be objects
)

// hcaStates are the commands that are for other states than hcaReady (mlx5_core's main.c,
// mlx5_function_setup).
var hcaStates = map[uint16][]hcaState{
	opEnableHca: {hcaDisabled}, opDisableHca: {hcaEnabled}, opInitHca: {hcaEnabled},
	opQueryIssi: {hcaEnabled, hcaReady}, opSetIssi: {hcaEnabled, hcaReady}, opQueryPages: {hcaEnabled, hcaReady},
	opManagePages: {hcaEnabled, hcaReady}, opQueryHcaCap: {hcaEnabled, hcaReady}, opSetHcaCap: {hcaEnabled, hcaReady},
	opQueryAdapter: {hcaEnabled, hcaReady}, opAccessReg: {hcaEnabled, hcaReady},
}

// allowed reports whether a command is one for the state.
func (s hcaState) allowed(op uint16) bool {
	states, ok := hcaStates[op]
	return !ok && s == hcaReady || slices.Contains(states, s)
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

// firmwarePages are the pages that the driver lends to the firmware, which needs none: it asks for
// some, so that the driver's side is used, and gives the same back.
type firmwarePages struct {
	mu    sync.Mutex
	pages []uint64
}

// Operations of MANAGE_PAGES, mlx5_core's pagealloc.c.
const (
	pagesCannotGive = 0
	pagesGive       = 1
	pagesTake       = 2
)

func (f *firmwarePages) reset() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pages = nil
}

// What the firmware asks for, and so the most that it takes.
const (
	bootPages = 8
	initPages = 16
	maxPages  = bootPages + initPages
)

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

func (f *firmwarePages) manage(mem *vfiouser.Memory, c *call) status {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := managePagesInInputNumEntries.int(c.in)
	switch c.mod {
	case pagesCannotGive:
	case pagesGive:
		list := managePagesInPas.at(c.in)
		if n > len(list)/8 {
			return statusBadInpLenErr
		}
		if n > maxPages-len(f.pages) {
			return statusLimErr
		}
		var first [1]byte
		given := f.pages
		for ; n > 0; n, list = n-1, list[8:] {
			a := be.Uint64(list)
			if a&0xfff != 0 || mem.ReadAt(first[:], a) != nil {
				return statusBadParamErr
			}
			given = append(given, a)
		}
		f.pages = given
	case pagesTake:
		list := managePagesOutPas.at(c.out)
		n = min(n, len(f.pages), len(list)/8)
		keep := len(f.pages) - n
		for i, a := range f.pages[keep:] {
			be.PutUint64(list[i*8:], a)
		}
		f.pages = f.pages[:keep]
		managePagesOutOutputNumEntries.set(c.out, uint64(n))
	default:
		return statusBadParamErr
	}
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
