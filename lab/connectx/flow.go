//go:build linux

package connectx

import "sync"

// flowTables are what the driver steers frames with. The adapter keeps them, so that it refuses
// what real ones refuse, but does not match frames: all that arrive go to the receive queues.
type flowTables struct {
	tirs *objects[[]byte]

	mu       sync.Mutex
	next     uint32
	groups   int // of all tables, as entries
	entries  int
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
	// Of all tables: mlx5e has a few groups in each, and an entry for a protocol, a VLAN or an address.
	maxFlowGroups  = 1 << 12
	maxFlowEntries = 1 << 16
)

type flowGroup struct{ first, last uint64 }

func flowCounters(f *flowTables) *objects[struct{}] { return &f.counters }

var flowCommands = map[uint16]func(*flowTables, *call) status{
	opCreateFlowTable:      (*flowTables).create,
	opModifyFlowTable:      onTable(modifyFlowTableInTableType, modifyFlowTableInTableId, keepTable),
	opDestroyFlowTable:     onTable(destroyFlowTableInTableType, destroyFlowTableInTableId, (*flowTables).destroy),
	opSetFlowTableRoot:     (*flowTables).setRoot,
	opCreateFlowGroup:      onTable(createFlowGroupInTableType, createFlowGroupInTableId, (*flowTables).createGroup),
	opDestroyFlowGroup:     onTable(destroyFlowGroupInTableType, destroyFlowGroupInTableId, (*flowTables).destroyGroup),
	opSetFlowTableEntry:    onTable(setFteInTableType, setFteInTableId, (*flowTables).setEntry),
	opDeleteFlowTableEntry: onTable(deleteFteInTableType, deleteFteInTableId, (*flowTables).deleteEntry),
	opAllocFlowCounter:     alloc(flowCounters, 1, 1024, allocFlowCounterOutFlowCounterId),
	opDeallocFlowCounter:   drop(flowCounters, deallocFlowCounterInFlowCounterId, nil),
	opQueryFlowCounter:     on(flowCounters, queryFlowCounterInFlowCounterId, ignore), // zeros, as no flow is matched
}

// Types of tables, enum fs_flow_table_type.
const (
	tableNICReceive  = 0
	tableNICTransmit = 1
)

func (f *flowTables) reset() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tables, f.roots, f.next, f.groups, f.entries = nil, nil, 0, 0, 0
	f.counters.clear(nil)
}

func (f *flowTables) create(c *call) status {
	f.mu.Lock()
	defer f.mu.Unlock()
	typ := createFlowTableInTableType.int(c.in)
	log := flowTableContextLogSize.int(createFlowTableInFlowTableContext.at(c.in))
	if typ != tableNICReceive && typ != tableNICTransmit || log > logTableSize || createFlowTableInOtherVport.is(c.in) {
		return statusBadParamErr
	}
	if f.tables == nil {
		f.tables, f.roots = map[uint32]*flowTable{}, map[int]uint32{}
	}
	if len(f.tables) >= 1<<logTables {
		return statusNoResErr
	}
	f.next++
	f.tables[f.next] = &flowTable{typ: typ, size: 1 << log, groups: map[uint32]flowGroup{}, entries: map[uint64]struct{}{}}
	createFlowTableOutTableId.set(c.out, uint64(f.next))
	return statusOk
}

// onTable returns the handler of a command that names a table by its type and number. It is called
// with the tables locked.
func onTable(typ, id field, do func(*flowTables, *flowTable, *call) status) func(*flowTables, *call) status {
	return func(f *flowTables, c *call) status {
		f.mu.Lock()
		defer f.mu.Unlock()
		t := f.tables[id.u32(c.in)]
		if t == nil || t.typ != typ.int(c.in) {
			return statusBadResErr
		}
		return do(f, t, c)
	}
}

func keepTable(*flowTables, *flowTable, *call) status { return statusOk }

func (f *flowTables) destroy(t *flowTable, c *call) status {
	if len(t.groups) > 0 {
		return statusBadResStateErr
	}
	num := destroyFlowTableInTableId.u32(c.in)
	if f.roots[t.typ] == num {
		delete(f.roots, t.typ)
	}
	delete(f.tables, num)
	return statusOk
}

func (f *flowTables) setRoot(c *call) status {
	const disconnect = 1 // op_mod
	if c.mod == disconnect {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.roots, setFlowTableRootInTableType.int(c.in))
		return statusOk
	}
	return connectRoot(f, c)
}

var connectRoot = onTable(setFlowTableRootInTableType, setFlowTableRootInTableId, func(f *flowTables, t *flowTable, c *call) status {
	f.roots[t.typ] = setFlowTableRootInTableId.u32(c.in)
	return statusOk
})

func (f *flowTables) createGroup(t *flowTable, c *call) status {
	g := flowGroup{createFlowGroupInStartFlowIndex.get(c.in), createFlowGroupInEndFlowIndex.get(c.in)}
	if g.first > g.last || g.last >= t.size {
		return statusBadParamErr
	}
	for _, other := range t.groups {
		if g.first <= other.last && other.first <= g.last {
			return statusBadParamErr
		}
	}
	if f.groups >= maxFlowGroups {
		return statusNoResErr
	}
	f.next++
	f.groups++
	t.groups[f.next] = g
	createFlowGroupOutGroupId.set(c.out, uint64(f.next))
	return statusOk
}

func (f *flowTables) destroyGroup(t *flowTable, c *call) status {
	num := destroyFlowGroupInGroupId.u32(c.in)
	g, ok := t.groups[num]
	if !ok {
		return statusBadResErr
	}
	for i := range t.entries {
		if i >= g.first && i <= g.last {
			return statusBadResStateErr
		}
	}
	f.groups--
	delete(t.groups, num)
	return statusOk
}

func (f *flowTables) setEntry(t *flowTable, c *call) status {
	ctx, index := setFteInFlowContext.at(c.in), setFteInFlowIndex.get(c.in)
	g, ok := t.groups[flowContextGroupId.u32(ctx)]
	if !ok {
		return statusBadResErr
	}
	if index < g.first || index > g.last {
		return statusBadParamErr
	}
	if st := f.checkActions(ctx, flowContextDestination.from(setFteInFlowContext.from(c.in))); st != statusOk {
		return st
	}
	if _, ok := t.entries[index]; !ok {
		if len(t.entries) >= 1<<logFlows || f.entries >= maxFlowEntries {
			return statusNoResErr
		}
		f.entries++
	}
	t.entries[index] = struct{}{}
	return statusOk
}

// checkActions checks what an entry does with frames, of which list has the destinations, and then the
// counters. The tables are locked.
func (f *flowTables) checkActions(ctx, list []byte) status {
	const allow, drop, forward, count = 1, 2, 4, 8 // MLX5_FLOW_CONTEXT_ACTION_*
	const toTable, toTIR = 1, 2                    // MLX5_IFC_FLOW_DESTINATION_TYPE_*
	action, to, counters := flowContextAction.int(ctx), flowContextDestinationListSize.int(ctx), flowContextFlowCounterListSize.int(ctx)
	switch {
	case action&^(allow|drop|forward|count) != 0, action&forward == 0 && to > 0, action&count == 0 && counters > 0:
		return statusBadParamErr
	case to+counters > len(list)/destFormatSize:
		return statusBadInpLenErr
	}
	for i := range to + counters {
		e := list[i*destFormatSize:]
		typ, num, ok := destFormatDestinationType.int(e), destFormatDestinationId.u32(e), false
		switch {
		case i >= to: // struct mlx5_ifc_flow_counter_list_bits
			ok = f.counters.has(be.Uint32(e))
		case typ == toTable:
			ok = f.tables[num] != nil
		case typ == toTIR:
			ok = f.tirs.has(num)
		default:
			return statusBadParamErr
		}
		if !ok {
			return statusBadResErr
		}
	}
	return statusOk
}

func (f *flowTables) deleteEntry(t *flowTable, c *call) status {
	index := deleteFteInFlowIndex.get(c.in)
	if _, ok := t.entries[index]; !ok {
		return statusBadResErr
	}
	f.entries--
	delete(t.entries, index)
	return statusOk
}
