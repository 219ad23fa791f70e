package uverbs

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/sys"
	"github.com/goverbs/verbs/mmap"
)

// DeviceAttr is a device's limits and capabilities (ibv_query_device_ex(3)),
// as the kernel lays them out: struct ib_uverbs_ex_query_device_resp.
type DeviceAttr = abi.IbUverbsExQueryDeviceResp

// QueryDevice returns the device's attributes.
func (c *Context) QueryDevice() (*DeviceAttr, error) {
	const op = "query device"
	if err := c.obj.enter(op); err != nil {
		return nil, err
	}
	defer c.obj.exit()
	var req abi.IbUverbsExQueryDevice
	resp := new(DeviceAttr)
	const cmd = abi.IB_USER_VERBS_EX_CMD_QUERY_DEVICE | abi.IB_USER_VERBS_CMD_FLAG_EXTENDED
	if err := c.file.Invoke(cmd, mmap.Bytes(&req), mmap.Bytes(resp), nil, nil); err != nil {
		return nil, c.obj.fail(op, err)
	}
	return resp, nil
}

var noAddr netip.Addr // any

// PortState is the logical state of a port (enum ib_port_state).
type PortState uint8

const (
	PortNop PortState = iota
	PortDown
	PortInit
	PortArmed
	PortActive
	PortActiveDefer
)

func (s PortState) String() string {
	names := [...]string{"NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER"}
	if int(s) < len(names) {
		return names[s]
	}
	return "unknown"
}

// PortAttr is the state of a port (ibv_query_port(3)), as the kernel lays it
// out: struct ib_uverbs_query_port_resp_ex.
type PortAttr = abi.IbUverbsQueryPortRespEx

// QueryPort returns the attributes of a port; ports count from 1.
func (c *Context) QueryPort(port int) (*PortAttr, error) {
	const op = "query port"
	if err := c.obj.enter(op); err != nil {
		return nil, err
	}
	defer c.obj.exit()
	if err := c.checkPort(port); err != nil {
		return nil, c.obj.fail(op, err)
	}
	resp := new(PortAttr)
	err := c.file.Ioctl(sys.Call{Object: abi.UVERBS_OBJECT_DEVICE, Method: abi.UVERBS_METHOD_QUERY_PORT, Attrs: []sys.Attr{
		sys.Const(abi.UVERBS_ATTR_QUERY_PORT_PORT_NUM, uint64(port)),
		sys.Out(abi.UVERBS_ATTR_QUERY_PORT_RESP, resp),
	}})
	if err != nil {
		return nil, c.obj.fail(op, err)
	}
	return resp, nil
}

func (c *Context) checkPort(port int) error {
	if port < 1 || port > c.device.Ports {
		return fmt.Errorf("port %d of %d: %w", port, c.device.Ports, ErrRange)
	}
	return nil
}

// GID is a global identifier: an IPv6 address in form; on RoCE v2 that of the
// network interface, IPv4 mapped into it.
type GID [16]byte

// Addr is the GID as an address; IPv4 if it maps one.
func (g GID) Addr() netip.Addr { return netip.AddrFrom16(g).Unmap() }

// String prints the address in full, as ibv_devinfo does.
func (g GID) String() string { return netip.AddrFrom16(g).String() }

// GIDType is what kind of traffic a GID is for (enum ib_uverbs_gid_type).
type GIDType uint32

const (
	GIDIB     GIDType = abi.IB_UVERBS_GID_TYPE_IB
	GIDRoCEv1 GIDType = abi.IB_UVERBS_GID_TYPE_ROCE_V1
	GIDRoCEv2 GIDType = abi.IB_UVERBS_GID_TYPE_ROCE_V2
)

func (t GIDType) String() string {
	switch t {
	case GIDIB:
		return "IB"
	case GIDRoCEv1:
		return "RoCE v1"
	case GIDRoCEv2:
		return "RoCE v2"
	}
	return "unknown"
}

// GIDEntry is a valid entry of a port's GID table.
type GIDEntry struct {
	Port      int
	Index     int
	GID       GID
	Type      GIDType
	Interface int // network interface index; 0 if there is none
}

// GIDTable returns the valid entries of all ports' GID tables.
func (c *Context) GIDTable() ([]GIDEntry, error) {
	const op = "query GID table"
	size := 0
	for port := 1; port <= c.device.Ports; port++ {
		p, err := c.QueryPort(port)
		if err != nil {
			return nil, err
		}
		size += int(p.LegacyResp.GidTblLen)
	}
	if size == 0 {
		return nil, nil
	}
	if err := c.obj.enter(op); err != nil { // not before QueryPort, which does so itself
		return nil, err
	}
	defer c.obj.exit()
	entrySize := len(mmap.Bytes(new(abi.IbUverbsGidEntry)))
	size = min(size, sys.MaxAttr/entrySize)
	raw := make([]byte, size*entrySize)
	var n uint64
	err := c.file.Ioctl(sys.Call{Object: abi.UVERBS_OBJECT_DEVICE, Method: abi.UVERBS_METHOD_QUERY_GID_TABLE, Attrs: []sys.Attr{
		sys.Const(abi.UVERBS_ATTR_QUERY_GID_TABLE_ENTRY_SIZE, uint64(entrySize)),
		sys.Const(abi.UVERBS_ATTR_QUERY_GID_TABLE_FLAGS, 0),
		sys.OutBytes(abi.UVERBS_ATTR_QUERY_GID_TABLE_RESP_ENTRIES, raw),
		sys.Out(abi.UVERBS_ATTR_QUERY_GID_TABLE_RESP_NUM_ENTRIES, &n),
	}})
	if err != nil {
		return nil, c.obj.fail(op, err)
	}
	table := make([]GIDEntry, min(int(n), size))
	for i := range table {
		var e abi.IbUverbsGidEntry
		copy(mmap.Bytes(&e), raw[i*entrySize:])
		table[i] = gidEntry(&e)
	}
	return table, nil
}

// QueryGID returns an entry of a port's GID table (ibv_query_gid_ex(3)).
func (c *Context) QueryGID(port, index int) (GIDEntry, error) {
	const op = "query GID"
	if err := c.checkPort(port); err != nil {
		return GIDEntry{}, c.obj.fail(op, err)
	}
	if err := c.obj.enter(op); err != nil {
		return GIDEntry{}, err
	}
	defer c.obj.exit()
	var e abi.IbUverbsGidEntry
	err := c.file.Ioctl(sys.Call{Object: abi.UVERBS_OBJECT_DEVICE, Method: abi.UVERBS_METHOD_QUERY_GID_ENTRY, Attrs: []sys.Attr{
		sys.Const(abi.UVERBS_ATTR_QUERY_GID_ENTRY_PORT, uint64(port)),
		sys.Const(abi.UVERBS_ATTR_QUERY_GID_ENTRY_GID_INDEX, uint64(uint32(index))),
		sys.Const(abi.UVERBS_ATTR_QUERY_GID_ENTRY_FLAGS, 0),
		sys.Out(abi.UVERBS_ATTR_QUERY_GID_ENTRY_RESP_ENTRY, &e),
	}})
	if err != nil {
		return GIDEntry{}, c.obj.fail(op, err)
	}
	return gidEntry(&e), nil
}

func gidEntry(e *abi.IbUverbsGidEntry) GIDEntry {
	g := GIDEntry{Port: int(e.PortNum), Index: int(e.GidIndex), Type: GIDType(e.GidType), Interface: int(e.NetdevIfindex)}
	copy(g.GID[:], mmap.Bytes(&e.Gid))
	return g
}

// FindGID returns the GID that traffic from addr uses: the entry with that
// address, for RoCE v2 if there is a choice. The zero Addr takes the best of
// the port: RoCE v2 before others, IPv4 before IPv6, no link-local address
// unless there is nothing else.
func (c *Context) FindGID(port int, addr netip.Addr) (GIDEntry, error) {
	table, err := c.GIDTable()
	if err != nil {
		return GIDEntry{}, err
	}
	score := func(e GIDEntry) (n int) {
		if e.Type == GIDRoCEv2 {
			n += 4
		}
		if !e.GID.Addr().IsLinkLocalUnicast() {
			n += 2
		}
		if e.GID.Addr().Is4() {
			n++
		}
		return n
	}
	best := -1
	for i, e := range table {
		if e.Port != port || addr.IsValid() && e.GID.Addr() != addr.Unmap().WithZone("") {
			continue
		}
		if best < 0 || score(e) > score(table[best]) {
			best = i
		}
	}
	if best < 0 {
		return GIDEntry{}, c.obj.fail("find GID", fmt.Errorf("port %d, address %v: %w", port, addr, ErrRange))
	}
	return table[best], nil
}

// PKeys returns a port's partition keys.
func (c *Context) PKeys(port int) ([]uint16, error) {
	if err := c.checkPort(port); err != nil {
		return nil, c.obj.fail("query P_Keys", err)
	}
	dir := filepath.Join(sysClass, "infiniband", c.device.Name, "ports", strconv.Itoa(port), "pkeys")
	var keys []uint16
	for i := 0; ; i++ {
		text, err := readAttr(dir, strconv.Itoa(i))
		if err != nil {
			return keys, nil // past the last; iWARP has none
		}
		v, err := strconv.ParseUint(text, 0, 16)
		if err != nil {
			return nil, c.obj.fail("query P_Keys", err)
		}
		keys = append(keys, uint16(v))
	}
}

// PKeyIndex returns where a partition key is in a port's table
// (ibv_get_pkey_index(3)).
func (c *Context) PKeyIndex(port int, key uint16) (int, error) {
	keys, err := c.PKeys(port)
	if err != nil {
		return 0, err
	}
	if len(keys) == 0 {
		return 0, c.obj.fail("find P_Key", fmt.Errorf("port %d has none: %w", port, errors.ErrUnsupported))
	}
	i := slices.Index(keys, key)
	if i < 0 {
		return 0, c.obj.fail("find P_Key", fmt.Errorf("%#x at port %d: %w", key, port, ErrRange))
	}
	return i, nil
}
