//go:build linux

package connectx

import (
	"slices"
	"sync"
)

// coreCommands are those that bring the adapter up, and of objects that are only numbers.
var coreCommands = map[uint16]func(*Device, *call) status{
	opEnableHca:              (*Device).enableHCA,
	opDisableHca:             (*Device).disableHCA,
	opInitHca:                (*Device).initHCA,
	opTeardownHca:            (*Device).teardownHCA,
	opSetDriverVersion:       done,
	opNop:                    done,
	opQueryIssi:              (*Device).queryISSI,
	opSetIssi:                (*Device).setISSI,
	opQueryPages:             (*Device).queryPages,
	opManagePages:            (*Device).managePages,
	opQueryHcaCap:            (*Device).queryHCACap,
	opSetHcaCap:              (*Device).setHCACap,
	opQueryAdapter:           (*Device).queryAdapter,
	opQuerySpecialContexts:   (*Device).querySpecialContexts,
	opAllocPd:                (*Device).allocPD,
	opDeallocPd:              (*Device).deallocPD,
	opAllocUar:               (*Device).allocUAR,
	opDeallocUar:             (*Device).deallocUAR,
	opAllocTransportDomain:   alloc(func(d *Device) *objects[struct{}] { return &d.res.tds }, 1, 1, allocTransportDomainOutTransportDomain),
	opDeallocTransportDomain: drop(func(d *Device) *objects[struct{}] { return &d.res.tds }, deallocTransportDomainInTransportDomain, nil),
	opAllocXrcd:              alloc(func(d *Device) *objects[struct{}] { return &d.res.xrcds }, 1, 1<<16, allocXrcdOutXrcd),
	opDeallocXrcd:            drop(func(d *Device) *objects[struct{}] { return &d.res.xrcds }, deallocXrcdInXrcd, nil),
	opAllocQCounter:          alloc(func(d *Device) *objects[struct{}] { return &d.res.counters }, 1, 255, allocQCounterOutCounterSetId),
	opDeallocQCounter:        drop(func(d *Device) *objects[struct{}] { return &d.res.counters }, deallocQCounterInCounterSetId, nil),
	opQueryQCounter:          (*Device).queryQCounter,
	opAccessReg:              (*Device).accessRegister,
	opQueryVportState:        (*Device).queryVportState,
	opQueryNicVportContext:   (*Device).queryNICVport,
	opModifyNicVportContext:  (*Device).modifyNICVport,
	opQueryVportCounter:      (*Device).queryVportCounter,
	opSetRoceAddress:         (*Device).setRoCEAddress,
	opQueryRoceAddress:       (*Device).queryRoCEAddress,
	opQueryHcaVportContext:   (*Device).queryHCAVport,
	opModifyHcaVportContext:  (*Device).modifyHCAVport,
	opQueryHcaVportGid:       (*Device).queryHCAVportGID,
	opQueryHcaVportPkey:      (*Device).queryHCAVportPKey,
}

func done(*Device, *call) status { return statusOk }

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

// alloc returns the handler that gives out a number.
func alloc(of func(*Device) *objects[struct{}], first, last uint32, num field) func(*Device, *call) status {
	return func(d *Device, c *call) status {
		n, ok := of(d).add(struct{}{}, first, last)
		if !ok {
			return statusNoResErr
		}
		num.set(c.out, uint64(n))
		return statusOk
	}
}

// allocUAR gives out the first UAR of a page of the driver's processor, which maps all that are in it.
func (d *Device) allocUAR(c *call) status {
	n := d.caps.uarsPerPage()
	page, ok := d.res.uarPages.add(struct{}{}, firstUAR/n, (1<<logUARs-1)/n)
	if !ok {
		return statusNoResErr
	}
	for i := range n {
		d.res.uars.put(page*n+i, struct{}{})
	}
	allocUarOutUar.set(c.out, uint64(page*n))
	return statusOk
}

func (d *Device) deallocUAR(c *call) status {
	n, first := d.caps.uarsPerPage(), deallocUarInUar.u32(c.in)
	if _, ok := d.res.uarPages.get(first / n); !ok || first%n != 0 {
		return statusBadResErr
	}
	d.res.uarPages.remove(first / n)
	for i := range n {
		d.res.uars.remove(first + i)
	}
	return statusOk
}

func (d *Device) queryISSI(c *call) status {
	queryIssiOutSupportedIssiDw0.set(c.out, 1<<1|1<<0)
	return statusOk
}

func (d *Device) setISSI(c *call) status {
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

func (d *Device) queryPages(c *call) status {
	const boot, initialize, regular = 1, 2, 3
	n := map[uint16]uint64{boot: 8, initialize: 16, regular: 0}
	v, ok := n[c.mod]
	if !ok {
		return statusBadParamErr
	}
	queryPagesOutNumPages.set(c.out, v)
	return statusOk
}

func (d *Device) managePages(c *call) status {
	d.fw.mu.Lock()
	defer d.fw.mu.Unlock()
	n := managePagesInInputNumEntries.int(c.in)
	switch c.mod {
	case pagesCannotGive:
	case pagesGive:
		list := managePagesInPas.at(c.in)
		if n > len(list)/8 {
			return statusBadInpLenErr
		}
		var first [1]byte
		for ; n > 0; n, list = n-1, list[8:] {
			a := be.Uint64(list)
			if a&0xfff != 0 || d.mem.ReadAt(first[:], a) != nil {
				return statusBadParamErr
			}
			d.fw.pages = append(d.fw.pages, a)
		}
	case pagesTake:
		list := managePagesOutPas.at(c.out)
		n = min(n, len(d.fw.pages), len(list)/8)
		keep := len(d.fw.pages) - n
		for i, a := range d.fw.pages[keep:] {
			be.PutUint64(list[i*8:], a)
		}
		d.fw.pages = d.fw.pages[:keep]
		managePagesOutOutputNumEntries.set(c.out, uint64(n))
	default:
		return statusBadParamErr
	}
	return statusOk
}

func (d *Device) queryAdapter(c *call) status {
	p := queryAdapterOutQueryAdapterStruct.at(c.out)
	queryAdapterParamBlockIeeeVendorId.set(p, 0x2c9)
	copy(queryAdapterParamBlockVsdContdPsid.at(p), "GOV0000000001")
	return statusOk
}

// Keys with a meaning of their own.
const (
	reservedLKey  = 0x100
	nullMKey      = 0x200
	terminateLKey = 0x300
)

func (d *Device) querySpecialContexts(c *call) status {
	querySpecialContextsOutResdLkey.set(c.out, reservedLKey)
	querySpecialContextsOutNullMkey.set(c.out, nullMKey)
	querySpecialContextsOutTerminateScatterListMkey.set(c.out, terminateLKey)
	return statusOk
}

func (d *Device) allocPD(c *call) status {
	pd, err := d.t.eng.AllocPD()
	if err != nil {
		return statusNoResErr
	}
	n, ok := d.res.pds.add(pd, 1, 1<<16)
	if !ok {
		pd.Dealloc()
		return statusNoResErr
	}
	allocPdOutPd.set(c.out, uint64(n))
	return statusOk
}

func (d *Device) deallocPD(c *call) status {
	n := deallocPdInPd.u32(c.in)
	pd, ok := d.res.pds.get(n)
	if !ok {
		return statusBadResErr
	}
	if pd.Dealloc() != nil { // objects depend on it
		return statusBadResStateErr
	}
	d.res.pds.remove(n)
	return statusOk
}
