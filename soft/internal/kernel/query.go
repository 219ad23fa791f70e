package kernel

import (
	"runtime"
	"syscall"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/attr"
	"github.com/goverbs/verbs/internal/host"
	"github.com/goverbs/verbs/mmap"
)

// deviceMethods are methods of the device and its event files.
var deviceMethods = map[methodID]method{
	{abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_GET_CONTEXT}: {run: getContext, specs: withUHW(
		spec{id: abi.UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS, kind: bytesOut, size: 4, optional: true},
		spec{id: abi.UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT, kind: bytesOut, size: 8, optional: true},
	)},
	{abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_QUERY_CONTEXT}: {run: queryContext, specs: []spec{
		{id: abi.UVERBS_ATTR_QUERY_CONTEXT_NUM_COMP_VECTORS, kind: bytesOut, size: 4, optional: true},
		{id: abi.UVERBS_ATTR_QUERY_CONTEXT_CORE_SUPPORT, kind: bytesOut, size: 8, optional: true},
	}},
	{abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_INVOKE_WRITE}: {run: invokeWrite, specs: withUHW(
		spec{id: abi.UVERBS_ATTR_WRITE_CMD, kind: constIn},
		spec{id: abi.UVERBS_ATTR_CORE_IN, kind: bytesIn, optional: true},
		spec{id: abi.UVERBS_ATTR_CORE_OUT, kind: bytesOut, optional: true},
	)},
	{abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_QUERY_PORT}: {run: queryPort, specs: []spec{
		{id: abi.UVERBS_ATTR_QUERY_PORT_PORT_NUM, kind: constIn},
		{id: abi.UVERBS_ATTR_QUERY_PORT_RESP, kind: bytesOut, size: sizeOf[abi.IbUverbsQueryPortRespEx]()},
	}},
	{abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_QUERY_GID_TABLE}: {run: queryGIDTable, specs: []spec{
		{id: abi.UVERBS_ATTR_QUERY_GID_TABLE_ENTRY_SIZE, kind: constIn},
		{id: abi.UVERBS_ATTR_QUERY_GID_TABLE_FLAGS, kind: constIn, optional: true},
		{id: abi.UVERBS_ATTR_QUERY_GID_TABLE_RESP_ENTRIES, kind: bytesOut},
		{id: abi.UVERBS_ATTR_QUERY_GID_TABLE_RESP_NUM_ENTRIES, kind: bytesOut, size: 8},
	}},
	{abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_QUERY_GID_ENTRY}: {run: queryGIDEntry, specs: []spec{
		{id: abi.UVERBS_ATTR_QUERY_GID_ENTRY_PORT, kind: constIn},
		{id: abi.UVERBS_ATTR_QUERY_GID_ENTRY_GID_INDEX, kind: constIn},
		{id: abi.UVERBS_ATTR_QUERY_GID_ENTRY_FLAGS, kind: constIn},
		{id: abi.UVERBS_ATTR_QUERY_GID_ENTRY_RESP_ENTRY, kind: bytesOut, size: sizeOf[abi.IbUverbsGidEntry]()},
	}},
	{abi.UVERBS_OBJECT_ASYNC_EVENT, abi.UVERBS_METHOD_ASYNC_EVENT_ALLOC}: {run: allocAsync, specs: []spec{
		{id: abi.UVERBS_ATTR_ASYNC_EVENT_ALLOC_FD_HANDLE, kind: handleOut},
	}},
}

// compVectors returns the number of completion vectors, as many as processors, as rxe's.
func compVectors() uint32 { return uint32(runtime.NumCPU()) }

func getContext(c *call) syscall.Errno {
	vectors, support := compVectors(), uint64(abi.IB_UVERBS_CORE_SUPPORT_OPTIONAL_MR_ACCESS)
	if errno := first(
		c.put(abi.UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS, mmap.Bytes(&vectors)),
		c.put(abi.UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT, mmap.Bytes(&support)),
	); errno != 0 {
		return errno
	}
	f := c.file
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.removed:
		return syscall.EIO
	case f.hasContext:
		return syscall.EINVAL
	}
	f.hasContext = true
	return 0
}

// queryContext fails, as rxe does not support it.
func queryContext(c *call) syscall.Errno {
	if errno := c.file.checkUsable(); errno != 0 {
		return errno
	}
	return syscall.EOPNOTSUPP
}

func (f *file) checkUsable() syscall.Errno {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.usable()
}

func queryDevice(c command, req abi.IbUverbsExQueryDevice) syscall.Errno {
	if errno := c.file.checkUsable(); errno != 0 {
		return errno
	}
	if req.CompMask != 0 || req.Reserved != 0 || len(c.driverIn) > 0 || c.driverOut.size > 0 {
		return syscall.EINVAL
	}
	resp := attr.Device(c.file.device.engine.Attr())
	resp.ResponseLength = uint32(min(c.response.size, sizeOf[abi.IbUverbsExQueryDeviceResp]()))
	return respond(c, &resp)
}

func queryPort(c *call) syscall.Errno {
	if errno := c.file.checkUsable(); errno != 0 {
		return errno
	}
	if uint8(c.constant(abi.UVERBS_ATTR_QUERY_PORT_PORT_NUM)) != 1 {
		return syscall.EINVAL
	}
	resp := attr.Port(c.file.device.engine.PortAttr())
	resp.LegacyResp.Flags |= abi.IB_UVERBS_QPF_GRH_REQUIRED
	return c.put(abi.UVERBS_ATTR_QUERY_PORT_RESP, mmap.Bytes(&resp))
}

// GIDs returns the GID table, with the network interfaces that have the addresses.
func (d *Device) GIDs() []verbs.GIDEntry {
	gids := d.engine.GIDs()
	for i := range gids {
		gids[i].Interface = d.interfaces[gids[i].GID.Addr()]
	}
	return gids
}

func gidEntry(g verbs.GIDEntry) abi.IbUverbsGidEntry {
	e := abi.IbUverbsGidEntry{
		GidIndex: uint32(g.Index), PortNum: uint32(g.Port), GidType: uint32(g.Type), NetdevIfindex: uint32(g.Interface),
	}
	copy(mmap.Bytes(&e.Gid), g.GID[:])
	return e
}

func queryGIDTable(c *call) syscall.Errno {
	size := c.constant(abi.UVERBS_ATTR_QUERY_GID_TABLE_ENTRY_SIZE)
	entries := c.out(abi.UVERBS_ATTR_QUERY_GID_TABLE_RESP_ENTRIES)
	if c.constant(abi.UVERBS_ATTR_QUERY_GID_TABLE_FLAGS) != 0 || size == 0 || uint64(entries.size) < size || uint64(entries.size)%size != 0 {
		return syscall.EINVAL
	}
	if errno := c.file.checkUsable(); errno != 0 {
		return errno
	}
	d := c.file.device
	table := make([]byte, entries.size)
	n := uint64(0)
	for _, g := range d.GIDs() {
		if n == uint64(entries.size)/size {
			return syscall.EINVAL // the kernel does not return a part of the table
		}
		e := gidEntry(g)
		copy(table[n*size:][:size], mmap.Bytes(&e))
		n++
	}
	return first(
		c.put(abi.UVERBS_ATTR_QUERY_GID_TABLE_RESP_ENTRIES, table),
		c.put(abi.UVERBS_ATTR_QUERY_GID_TABLE_RESP_NUM_ENTRIES, mmap.Bytes(&n)),
	)
}

func queryGIDEntry(c *call) syscall.Errno {
	if errno := c.file.checkUsable(); errno != 0 {
		return errno
	}
	d := c.file.device
	index := c.constant(abi.UVERBS_ATTR_QUERY_GID_ENTRY_GID_INDEX)
	if c.constant(abi.UVERBS_ATTR_QUERY_GID_ENTRY_FLAGS) != 0 || c.constant(abi.UVERBS_ATTR_QUERY_GID_ENTRY_PORT) != 1 ||
		index >= uint64(d.engine.PortAttr().GIDs) {
		return syscall.EINVAL
	}
	for _, g := range d.GIDs() {
		if uint64(g.Index) == index {
			e := gidEntry(g)
			return c.put(abi.UVERBS_ATTR_QUERY_GID_ENTRY_RESP_ENTRY, mmap.Bytes(&e))
		}
	}
	return host.ENODATA
}
