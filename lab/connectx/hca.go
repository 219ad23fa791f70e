//go:build linux

package connectx

import (
	"slices"
	"sync"

	"github.com/goverbs/verbs/lab/vfiouser"
)

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
