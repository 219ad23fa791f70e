//go:build linux

package connectx

import "github.com/goverbs/verbs/lab/connectx/internal/ifc"

// flowTables have the tables by which the driver steers frames. The adapter keeps their structure, so
// that it refuses what real ones refuse, but matches no frames against it: all that arrive go to the
// receive queues. Only commands use the tables.
type flowTables struct {
	tirs     *objects[[]byte]
	next     uint32 // last number of a table or group
	groups   int    // of all tables
	entries  int    // of all tables
	tables   map[uint32]*flowTable
	roots    map[int]uint32 // by type
	counters objects[struct{}]
}

type flowTable struct {
	typ     int
	size    uint64
	groups  map[uint32]flowGroup
	entries map[uint64]struct{}
}

const (
	// Of all tables. mlx5e has a few groups in each, and an entry for each protocol, VLAN or address.
	maxFlowGroups  = 1 << 12
	maxFlowEntries = 1 << 16
)

type flowGroup struct{ first, last uint64 }

func flowCounters(f *flowTables) *objects[struct{}] { return &f.counters }

var flowCommands = map[uint16]func(*flowTables, *call) ifc.Status{
	ifc.OpCreateFlowTable:      (*flowTables).create,
	ifc.OpModifyFlowTable:      onTable(ifc.ModifyFlowTableInTableType, ifc.ModifyFlowTableInTableId, keepTable),
	ifc.OpDestroyFlowTable:     onTable(ifc.DestroyFlowTableInTableType, ifc.DestroyFlowTableInTableId, (*flowTables).destroy),
	ifc.OpSetFlowTableRoot:     setRoot,
	ifc.OpCreateFlowGroup:      onTable(ifc.CreateFlowGroupInTableType, ifc.CreateFlowGroupInTableId, (*flowTables).createGroup),
	ifc.OpDestroyFlowGroup:     onTable(ifc.DestroyFlowGroupInTableType, ifc.DestroyFlowGroupInTableId, (*flowTables).destroyGroup),
	ifc.OpSetFlowTableEntry:    onTable(ifc.SetFteInTableType, ifc.SetFteInTableId, (*flowTables).setEntry),
	ifc.OpDeleteFlowTableEntry: onTable(ifc.DeleteFteInTableType, ifc.DeleteFteInTableId, (*flowTables).deleteEntry),
	ifc.OpAllocFlowCounter:     alloc(flowCounters, 1, 1024, ifc.AllocFlowCounterOutFlowCounterId),
	ifc.OpDeallocFlowCounter:   drop(flowCounters, ifc.DeallocFlowCounterInFlowCounterId, nil),
	ifc.OpQueryFlowCounter:     on(flowCounters, ifc.QueryFlowCounterInFlowCounterId, ignore), // zeros, as no flow is matched
}

// Types of tables, enum fs_flow_table_type.
const (
	tableNICReceive  = 0
	tableNICTransmit = 1
)

func (f *flowTables) reset() {
	f.tables, f.roots, f.next, f.groups, f.entries = nil, nil, 0, 0, 0
	f.counters.clear(nil)
}

func (f *flowTables) create(c *call) ifc.Status {
	typ := ifc.CreateFlowTableInTableType.Int(c.in)
	log := ifc.FlowTableContextLogSize.Int(ifc.CreateFlowTableInFlowTableContext.At(c.in))
	if typ != tableNICReceive && typ != tableNICTransmit || log > logTableSize || ifc.CreateFlowTableInOtherVport.Is(c.in) {
		return ifc.StatusBadParamErr
	}
	if f.tables == nil {
		f.tables, f.roots = map[uint32]*flowTable{}, map[int]uint32{}
	}
	if len(f.tables) >= 1<<logTables {
		return ifc.StatusNoResErr
	}
	f.next++
	f.tables[f.next] = &flowTable{typ: typ, size: 1 << log, groups: map[uint32]flowGroup{}, entries: map[uint64]struct{}{}}
	ifc.CreateFlowTableOutTableId.Set(c.out, uint64(f.next))
	return ifc.StatusOk
}

// onTable returns the handler of a command that names a table by its type and number.
func onTable(typ, id ifc.Field, do func(*flowTables, *flowTable, *call) ifc.Status) func(*flowTables, *call) ifc.Status {
	return func(f *flowTables, c *call) ifc.Status {
		t := f.tables[id.U32(c.in)]
		if t == nil || t.typ != typ.Int(c.in) {
			return ifc.StatusBadResErr
		}
		return do(f, t, c)
	}
}

func keepTable(*flowTables, *flowTable, *call) ifc.Status { return ifc.StatusOk }

func (f *flowTables) destroy(t *flowTable, c *call) ifc.Status {
	// fs_core destroys a group's entries before it, and a table's groups.
	if len(t.groups) > 0 {
		return ifc.StatusBadResStateErr
	}
	num := ifc.DestroyFlowTableInTableId.U32(c.in)
	if f.roots[t.typ] == num {
		delete(f.roots, t.typ)
	}
	delete(f.tables, num)
	return ifc.StatusOk
}

func setRoot(f *flowTables, c *call) ifc.Status {
	const disconnect = 1 // op_mod with which mlx5_cmd_update_root_ft removes the last table
	typ, num := ifc.SetFlowTableRootInTableType.Int(c.in), ifc.SetFlowTableRootInTableId.U32(c.in)
	if c.mod == disconnect {
		delete(f.roots, typ)
		return ifc.StatusOk
	}
	if t := f.tables[num]; t == nil || t.typ != typ {
		return ifc.StatusBadResErr
	}
	f.roots[typ] = num
	return ifc.StatusOk
}

func (f *flowTables) createGroup(t *flowTable, c *call) ifc.Status {
	g := flowGroup{ifc.CreateFlowGroupInStartFlowIndex.Get(c.in), ifc.CreateFlowGroupInEndFlowIndex.Get(c.in)}
	if g.first > g.last || g.last >= t.size {
		return ifc.StatusBadParamErr
	}
	// Groups may not overlap: an entry's index tells its group.
	for _, other := range t.groups {
		if g.first <= other.last && other.first <= g.last {
			return ifc.StatusBadParamErr
		}
	}
	if f.groups >= maxFlowGroups {
		return ifc.StatusNoResErr
	}
	f.next++
	f.groups++
	t.groups[f.next] = g
	ifc.CreateFlowGroupOutGroupId.Set(c.out, uint64(f.next))
	return ifc.StatusOk
}

func (f *flowTables) destroyGroup(t *flowTable, c *call) ifc.Status {
	num := ifc.DestroyFlowGroupInGroupId.U32(c.in)
	g, ok := t.groups[num]
	if !ok {
		return ifc.StatusBadResErr
	}
	for i := range t.entries {
		if i >= g.first && i <= g.last {
			return ifc.StatusBadResStateErr
		}
	}
	f.groups--
	delete(t.groups, num)
	return ifc.StatusOk
}

func (f *flowTables) setEntry(t *flowTable, c *call) ifc.Status {
	ctx, index := ifc.SetFteInFlowContext.At(c.in), ifc.SetFteInFlowIndex.Get(c.in)
	g, ok := t.groups[ifc.FlowContextGroupId.U32(ctx)]
	if !ok {
		return ifc.StatusBadResErr
	}
	if index < g.first || index > g.last {
		return ifc.StatusBadParamErr
	}
	if st := f.checkActions(ctx, ifc.FlowContextDestination.From(ifc.SetFteInFlowContext.From(c.in))); st != ifc.StatusOk {
		return st
	}
	// The command also changes an existing entry (mlx5_cmd_update_fte).
	if _, ok := t.entries[index]; !ok {
		if len(t.entries) >= 1<<logFlows || f.entries >= maxFlowEntries {
			return ifc.StatusNoResErr
		}
		f.entries++
	}
	t.entries[index] = struct{}{}
	return ifc.StatusOk
}

// checkActions checks the actions of an entry. list has its destinations, followed by its counters, as
// mlx5_cmd_set_fte writes them.
func (f *flowTables) checkActions(ctx, list []byte) ifc.Status {
	const allow, drop, forward, count = 1, 2, 4, 8 // MLX5_FLOW_CONTEXT_ACTION_*
	const toTable, toTIR = 1, 2                    // MLX5_IFC_FLOW_DESTINATION_TYPE_*
	action, to, counters := ifc.FlowContextAction.Int(ctx), ifc.FlowContextDestinationListSize.Int(ctx), ifc.FlowContextFlowCounterListSize.Int(ctx)
	switch {
	case action&^(allow|drop|forward|count) != 0, action&forward == 0 && to > 0, action&count == 0 && counters > 0:
		return ifc.StatusBadParamErr
	case to+counters > len(list)/ifc.DestFormatSize:
		return ifc.StatusBadInpLenErr
	}
	for i := range to + counters {
		e := list[i*ifc.DestFormatSize:]
		typ, num, ok := ifc.DestFormatDestinationType.Int(e), ifc.DestFormatDestinationId.U32(e), false
		switch {
		case i >= to: // a struct mlx5_ifc_flow_counter_list_bits
			ok = f.counters.Has(be.Uint32(e))
		case typ == toTable:
			ok = f.tables[num] != nil
		case typ == toTIR:
			ok = f.tirs.Has(num)
		default:
			return ifc.StatusBadParamErr
		}
		if !ok {
			return ifc.StatusBadResErr
		}
	}
	return ifc.StatusOk
}

func (f *flowTables) deleteEntry(t *flowTable, c *call) ifc.Status {
	index := ifc.DeleteFteInFlowIndex.Get(c.in)
	if _, ok := t.entries[index]; !ok {
		return ifc.StatusBadResErr
	}
	f.entries--
	delete(t.entries, index)
	return ifc.StatusOk
}
