package uverbs

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/attr"
	"github.com/goverbs/verbs/internal/bridge"
	"github.com/goverbs/verbs/internal/host"
	"github.com/goverbs/verbs/internal/sys"
	"github.com/goverbs/verbs/mmap"
)

func init() {
	bridge.DeviceAttr = func(ctx any) *verbs.DeviceAttr { return &ctx.(*Context).dev.Attr }
}

// QueryDevice returns the device's limits (ibv_query_device_ex(3)).
func (c *Context) QueryDevice() (*verbs.DeviceAttr, error) {
	return get(c.obj, "query device", c.queryDevice)
}

func (c *contextCore) queryDevice() (*verbs.DeviceAttr, error) {
	var req abi.IbUverbsExQueryDevice
	var resp abi.IbUverbsExQueryDeviceResp
	const cmd = abi.IB_USER_VERBS_EX_CMD_QUERY_DEVICE | abi.IB_USER_VERBS_CMD_FLAG_EXTENDED
	if err := c.file.Invoke(cmd, mmap.Bytes(&req), mmap.Bytes(&resp), nil, nil); err != nil {
		return nil, err
	}
	return deviceAttr(&resp), nil
}

func deviceAttr(r *abi.IbUverbsExQueryDeviceResp) *verbs.DeviceAttr {
	b, odp := &r.Base, &r.OdpCaps
	return &verbs.DeviceAttr{
		FirmwareVersion: b.FwVer, NodeGUID: attr.OfGUID(b.NodeGuid), SysImageGUID: attr.OfGUID(b.SysImageGuid),
		VendorID: b.VendorId, VendorPartID: b.VendorPartId, HWVersion: b.HwVer, Ports: int(b.PhysPortCnt),

		MaxMRSize: b.MaxMrSize, PageSizeCap: b.PageSizeCap, CapFlags: r.DeviceCapFlagsEx,

		MaxQP: int(b.MaxQp), MaxQPWR: int(b.MaxQpWr), MaxSGE: int(b.MaxSge), MaxSGERead: int(b.MaxSgeRd),
		MaxCQ: int(b.MaxCq), MaxCQE: int(b.MaxCqe), MaxMR: int(b.MaxMr), MaxPD: int(b.MaxPd), MaxMW: int(b.MaxMw),
		MaxAH: int(b.MaxAh), MaxSRQ: int(b.MaxSrq), MaxSRQWR: int(b.MaxSrqWr), MaxSRQSGE: int(b.MaxSrqSge),
		MaxPKeys: int(b.MaxPkeys),

		MaxQPRDAtomic: int(b.MaxQpRdAtom), MaxResRDAtomic: int(b.MaxResRdAtom),
		MaxQPInitRDAtomic: int(b.MaxQpInitRdAtom), AtomicCap: verbs.AtomicCap(b.AtomicCap),

		MaxMcastGroup: int(b.MaxMcastGrp), MaxMcastQPAttach: int(b.MaxMcastQpAttach),
		MaxTotalMcastQPAttach: int(b.MaxTotalMcastQpAttach),
		MaxRawIPv6QP:          int(b.MaxRawIpv6Qp), MaxRawEthernetQP: int(b.MaxRawEthyQp),

		MaxEE: int(b.MaxEe), MaxRDD: int(b.MaxRdd), MaxEERDAtomic: int(b.MaxEeRdAtom),
		MaxEEInitRDAtomic: int(b.MaxEeInitRdAtom), MaxFMR: int(b.MaxFmr), MaxMapPerFMR: int(b.MaxMapPerFmr),

		LocalCAAckDelay: b.LocalCaAckDelay,

		ODP: verbs.ODPCaps{
			General: odp.GeneralCaps, RC: odp.PerTransportCaps.RcOdpCaps, UC: odp.PerTransportCaps.UcOdpCaps,
			UD: odp.PerTransportCaps.UdOdpCaps, XRC: r.XrcOdpCaps,
		},
		TimestampMask: r.TimestampMask, CoreClock: r.HcaCoreClock,
		RSS: verbs.RSSCaps{
			QPTypes:                    r.RssCaps.SupportedQpts,
			MaxRWQIndirectionTables:    int(r.RssCaps.MaxRwqIndirectionTables),
			MaxRWQIndirectionTableSize: int(r.RssCaps.MaxRwqIndirectionTableSize),
		},
		MaxWQTypeRQ: int(r.MaxWqTypeRq), RawPacketCaps: r.RawPacketCaps,
		TagMatching: verbs.TagMatchingCaps{
			MaxRendezvousHeader: int(r.TmCaps.MaxRndvHdrSize), MaxTags: int(r.TmCaps.MaxNumTags),
			MaxOps: int(r.TmCaps.MaxOps), MaxSGE: int(r.TmCaps.MaxSge), Flags: r.TmCaps.Flags,
		},
		MaxCQModCount: int(r.CqModerationCaps.MaxCqModerationCount), MaxCQModPeriod: int(r.CqModerationCaps.MaxCqModerationPeriod),
		MaxDMSize: r.MaxDmSize,
	}
}

// anyAddr makes FindGID return the best entry of the port.
var anyAddr netip.Addr

// QueryPort returns state and limits of a port, from 1 (ibv_query_port(3)).
func (c *Context) QueryPort(port int) (*verbs.PortAttr, error) {
	return get(c.obj, "query port", func() (*verbs.PortAttr, error) {
		if err := c.checkPort(port); err != nil {
			return nil, err
		}
		return c.queryPort(port)
	})
}

func (c *contextCore) queryPort(port int) (*verbs.PortAttr, error) {
	var resp abi.IbUverbsQueryPortRespEx
	err := c.file.Ioctl(sys.Call{Object: abi.UVERBS_OBJECT_DEVICE, Method: abi.UVERBS_METHOD_QUERY_PORT, Attrs: []sys.Attr{
		sys.Const(abi.UVERBS_ATTR_QUERY_PORT_PORT_NUM, uint64(port)),
		sys.Out(abi.UVERBS_ATTR_QUERY_PORT_RESP, &resp),
	}})
	if err != nil {
		return nil, err
	}
	return portAttr(&resp), nil
}

func portAttr(r *abi.IbUverbsQueryPortRespEx) *verbs.PortAttr {
	p := &r.LegacyResp
	speed := r.ActiveSpeedEx // has room for more than 8 speeds; 0 from old kernels
	if speed == 0 {
		speed = uint32(p.ActiveSpeed)
	}
	return &verbs.PortAttr{
		State: verbs.PortState(p.State), PhysState: verbs.PhysState(p.PhysState), LinkLayer: verbs.LinkLayer(p.LinkLayer),
		MaxMTU: verbs.MTU(p.MaxMtu), ActiveMTU: verbs.MTU(p.ActiveMtu), MaxMessage: int(p.MaxMsgSz),
		GIDs: int(p.GidTblLen), PKeys: int(p.PkeyTblLen), BadPKeys: p.BadPkeyCntr, QKeyViolations: p.QkeyViolCntr,

		LID: p.Lid, LMC: p.Lmc, SMLID: p.SmLid, SMSL: p.SmSl, SubnetTimeout: p.SubnetTimeout,
		InitTypeReply: p.InitTypeReply, MaxVLs: p.MaxVlNum,

		ActiveWidth: verbs.LinkWidth(p.ActiveWidth), ActiveSpeed: verbs.LinkSpeed(speed),
		CapFlags: p.PortCapFlags, CapFlags2: r.PortCapFlags2, Flags: p.Flags,
	}
}

func (c *Context) checkPort(port int) error {
	if port < 1 || port > c.device.ports {
		return fmt.Errorf("port %d of %d: %w", port, c.device.ports, verbs.ErrRange)
	}
	return nil
}

// GIDTable returns the valid entries of all ports' GID tables.
func (c *Context) GIDTable() ([]verbs.GIDEntry, error) {
	size := 0
	for port := 1; port <= c.device.ports; port++ {
		p, err := c.QueryPort(port)
		if err != nil {
			return nil, err
		}
		size += p.GIDs
	}
	if size == 0 {
		return nil, nil
	}
	entrySize := len(mmap.Bytes(new(abi.IbUverbsGidEntry)))
	size = min(size, sys.MaxAttr/entrySize)
	raw := make([]byte, size*entrySize)
	var n uint64
	err := c.obj.do("query GID table", func() error { // QueryPort enters as well
		return c.file.Ioctl(sys.Call{Object: abi.UVERBS_OBJECT_DEVICE, Method: abi.UVERBS_METHOD_QUERY_GID_TABLE, Attrs: []sys.Attr{
			sys.Const(abi.UVERBS_ATTR_QUERY_GID_TABLE_ENTRY_SIZE, uint64(entrySize)),
			sys.Const(abi.UVERBS_ATTR_QUERY_GID_TABLE_FLAGS, 0),
			sys.OutBytes(abi.UVERBS_ATTR_QUERY_GID_TABLE_RESP_ENTRIES, raw),
			sys.Out(abi.UVERBS_ATTR_QUERY_GID_TABLE_RESP_NUM_ENTRIES, &n),
		}})
	})
	if err != nil {
		return nil, err
	}
	table := make([]verbs.GIDEntry, min(int(n), size))
	for i := range table {
		var e abi.IbUverbsGidEntry
		copy(mmap.Bytes(&e), raw[i*entrySize:])
		table[i] = gidEntry(&e)
	}
	return table, nil
}

// QueryGID returns an entry of a port's GID table (ibv_query_gid_ex(3)).
func (c *Context) QueryGID(port, index int) (verbs.GIDEntry, error) {
	var e abi.IbUverbsGidEntry
	err := c.obj.do("query GID", func() error {
		if err := c.checkPort(port); err != nil {
			return err
		}
		if index < 0 || index > math.MaxInt32 {
			return rangeError("GID index", index, 0, math.MaxInt32)
		}
		return c.file.Ioctl(sys.Call{Object: abi.UVERBS_OBJECT_DEVICE, Method: abi.UVERBS_METHOD_QUERY_GID_ENTRY, Attrs: []sys.Attr{
			sys.Const(abi.UVERBS_ATTR_QUERY_GID_ENTRY_PORT, uint64(port)),
			sys.Const(abi.UVERBS_ATTR_QUERY_GID_ENTRY_GID_INDEX, uint64(index)),
			sys.Const(abi.UVERBS_ATTR_QUERY_GID_ENTRY_FLAGS, 0),
			sys.Out(abi.UVERBS_ATTR_QUERY_GID_ENTRY_RESP_ENTRY, &e),
		}})
	})
	return gidEntry(&e), err
}

func gidEntry(e *abi.IbUverbsGidEntry) verbs.GIDEntry {
	g := verbs.GIDEntry{Port: int(e.PortNum), Index: int(e.GidIndex), Type: verbs.GIDType(e.GidType), Interface: int(e.NetdevIfindex)}
	copy(g.GID[:], mmap.Bytes(&e.Gid))
	return g
}

// FindGID returns the GID for traffic from addr, for RoCE v2 if there are several. For the zero
// Addr it returns the port's best GID. It prefers GIDs that are not loopback, then RoCE v2, then
// GIDs that are not link-local, then IPv4. No address vector has room for an index above 255.
func (c *Context) FindGID(port int, addr netip.Addr) (verbs.GIDEntry, error) {
	return c.bestGID(port, addr, func(a netip.Addr) bool { return !addr.IsValid() || a == addr.Unmap().WithZone("") })
}

// bestGID returns the best of the GIDs whose address fits, which is addr.
func (c *Context) bestGID(port int, addr netip.Addr, fits func(netip.Addr) bool) (verbs.GIDEntry, error) {
	table, err := c.GIDTable()
	if err != nil {
		return verbs.GIDEntry{}, err
	}
	score := func(e verbs.GIDEntry) (n int) {
		if !e.GID.Addr().IsLoopback() { // no peer can reach loopback
			n += 8
		}
		if e.Type == verbs.GIDRoCEv2 {
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
	err = verbs.ErrRange
	for i, e := range table {
		switch {
		case e.Port != port || !fits(e.GID.Addr()):
		case e.Index > math.MaxUint8:
			err = rangeError("GID index", e.Index, 0, math.MaxUint8)
		case best < 0 || score(e) > score(table[best]):
			best = i
		}
	}
	if best < 0 {
		return verbs.GIDEntry{}, c.obj.fail("find GID", fmt.Errorf("port %d, address %v: %w", port, addr, err))
	}
	return table[best], nil
}

// PKeys returns a port's partition keys.
func (c *Context) PKeys(port int) (keys []uint16, err error) {
	err = c.readPort(port, func(dir string) error {
		for keys = nil; ; {
			text, err := readAttr(filepath.Join(dir, "pkeys"), strconv.Itoa(len(keys)))
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.EINVAL) {
				return nil // past the last; iWARP has none
			}
			if err != nil {
				return err
			}
			v, err := strconv.ParseUint(text, 0, 16)
			if err != nil {
				return err
			}
			keys = append(keys, uint16(v))
		}
	})
	if err != nil {
		return nil, c.obj.fail("query P_Keys", err)
	}
	return keys, nil
}

// readPort calls read with the folder of a port in sysfs, again if the device is renamed meanwhile. It
// fails if the device has gone: part of its attributes were missing then.
func (c *Context) readPort(port int, read func(dir string) error) error {
	dir, err := c.portFolder(port)
	for range 3 {
		if err != nil {
			return err
		}
		readErr, was := read(dir), dir
		if dir, err = c.portFolder(port); err == nil && dir == was {
			return readErr
		}
	}
	return cmp.Or(err, errors.New("the device is renamed all the time"))
}

// portFolder returns the folder of a port in sysfs, which exists.
func (c *Context) portFolder(port int) (string, error) {
	if err := c.checkPort(port); err != nil {
		return "", err
	}
	dir := c.device.folder("ports", strconv.Itoa(port))
	_, err := host.ListAttrs(dir)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w: %w", verbs.ErrDeviceRemoved, err)
	}
	return dir, err
}

// PKeyIndex returns the index of a key in a port's table (ibv_get_pkey_index(3)).
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
		return 0, c.obj.fail("find P_Key", fmt.Errorf("%#x at port %d: %w", key, port, verbs.ErrRange))
	}
	return i, nil
}
