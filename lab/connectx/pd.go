//go:build linux

package connectx

import "github.com/goverbs/verbs/internal/engine"

// pdTable has the protection domains, which are the engine's.
type pdTable struct {
	eng *engine.Device
	objects[*engine.PD]
}

func pds(t *pdTable) *objects[*engine.PD] { return &t.objects }

var pdCommands = map[uint16]func(*pdTable, *call) status{
	opAllocPd:   (*pdTable).alloc,
	opDeallocPd: drop(pds, deallocPdInPd, deallocPD),
}

func (t *pdTable) alloc(c *call) status {
	pd, err := t.eng.AllocPD()
	if err != nil {
		return statusNoResErr
	}
	_, st := t.give(pd, 1, 1<<16, c, allocPdOutPd)
	if st != statusOk {
		pd.Dealloc()
	}
	return st
}

func deallocPD(pd *engine.PD) status {
	if pd.Dealloc() != nil { // objects depend on it
		return statusBadResStateErr
	}
	return statusOk
}
