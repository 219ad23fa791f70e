//go:build linux

package connectx

import (
	"github.com/goverbs/verbs/internal/engine"
	"github.com/goverbs/verbs/lab/connectx/internal/ifc"
)

// pdTable has the protection domains. They are the engine's.
type pdTable struct {
	eng *engine.Device
	objects[*engine.PD]
}

var pdCommands = map[uint16]func(*pdTable, *call) ifc.Status{
	ifc.OpAllocPd:   (*pdTable).alloc,
	ifc.OpDeallocPd: drop((*pdTable).table, ifc.DeallocPdInPd, deallocPD),
}

func (t *pdTable) alloc(c *call) ifc.Status {
	pd, err := t.eng.AllocPD()
	if err != nil {
		return ifc.StatusNoResErr
	}
	_, st := t.give(pd, 1, 1<<16, c, ifc.AllocPdOutPd)
	if st != ifc.StatusOk {
		pd.Destroy()
	}
	return st
}

func deallocPD(pd *engine.PD) ifc.Status {
	if pd.Destroy() != nil { // objects depend on it
		return ifc.StatusBadResStateErr
	}
	return ifc.StatusOk
}
