//go:build linux

package connectx

import (
	"slices"

	"github.com/goverbs/verbs/lab/connectx/internal/ifc"
	"github.com/goverbs/verbs/lab/vfiouser"
)

// hcaState is how far a driver has brought up the adapter.
type hcaState uint8

const (
	hcaDisabled hcaState = iota // after a reset
	hcaEnabled                  // by ENABLE_HCA: the driver sets capabilities and lends memory
	hcaReady                    // by INIT_HCA: there may be objects
)

// hcaStates has the commands that are allowed in other states than hcaReady alone: the driver brings
// the adapter up with them (mlx5_core's mlx5_function_setup).
var hcaStates = map[uint16][]hcaState{
	ifc.OpEnableHca: {hcaDisabled}, ifc.OpDisableHca: {hcaEnabled}, ifc.OpInitHca: {hcaEnabled},
	ifc.OpQueryIssi: {hcaEnabled, hcaReady}, ifc.OpSetIssi: {hcaEnabled, hcaReady}, ifc.OpQueryPages: {hcaEnabled, hcaReady},
	ifc.OpManagePages: {hcaEnabled, hcaReady}, ifc.OpQueryHcaCap: {hcaEnabled, hcaReady}, ifc.OpSetHcaCap: {hcaEnabled, hcaReady},
	ifc.OpQueryAdapter: {hcaEnabled, hcaReady}, ifc.OpAccessReg: {hcaEnabled, hcaReady},
}

// allowed reports whether a command may be executed in the state.
func (s hcaState) allowed(op uint16) bool {
	states, ok := hcaStates[op]
	return !ok && s == hcaReady || slices.Contains(states, s)
}

// firmwarePages are the addresses of the pages that the driver lends to the firmware. This firmware
// needs none, but asks for some to exercise the driver's code, and gives the same back. Only
// commands use them.
type firmwarePages []uint64

// Operations of MANAGE_PAGES, MLX5_PAGES_* of mlx5_core's pagealloc.c.
const (
	pagesCannotGive = 0
	pagesGive       = 1
	pagesTake       = 2
)

// The numbers of pages that QUERY_PAGES asks for. Their sum is the most that the firmware takes.
const (
	bootPages = 8
	initPages = 16
	maxPages  = bootPages + initPages
)

func (f *firmwarePages) manage(mem *vfiouser.Memory, c *call) ifc.Status {
	n := ifc.ManagePagesInInputNumEntries.Int(c.in)
	switch c.mod {
	case pagesCannotGive:
	case pagesGive:
		list := ifc.ManagePagesInPas.At(c.in)
		if n > len(list)/8 {
			return ifc.StatusBadInpLenErr
		}
		if n > maxPages-len(*f) {
			return ifc.StatusLimErr
		}
		var first [1]byte
		given := *f
		for ; n > 0; n, list = n-1, list[8:] {
			a := be.Uint64(list)
			if a&0xfff != 0 || mem.ReadAt(first[:], a) != nil {
				return ifc.StatusBadParamErr
			}
			given = append(given, a)
		}
		*f = given
	case pagesTake:
		list := ifc.ManagePagesOutPas.At(c.out)
		n = min(n, len(*f), len(list)/8)
		keep := len(*f) - n
		for i, a := range (*f)[keep:] {
			be.PutUint64(list[i*8:], a)
		}
		*f = (*f)[:keep]
		ifc.ManagePagesOutOutputNumEntries.Set(c.out, uint64(n))
	default:
		return ifc.StatusBadParamErr
	}
	return ifc.StatusOk
}
