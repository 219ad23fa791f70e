package cm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/attr"
	"github.com/goverbs/verbs/internal/host"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/uverbs"
)

// Path describes how this machine reaches an address by RDMA.
type Path struct {
	Device        uverbs.Device
	Port          int
	GID           verbs.GID // local
	Local, Remote netip.Addr
	Record        PathRecord // zero on iWARP
}

// AddressVector returns the address vector for datagrams to p.Remote, from a context of p.Device.
func (p *Path) AddressVector(c *uverbs.Context) (verbs.AddressVector, error) {
	local, err := c.FindGID(p.Port, p.GID.Addr())
	if err != nil {
		return verbs.AddressVector{}, fail("find address vector of", p.Remote.String(), err)
	}
	r := &p.Record
	return verbs.AddressVector{
		Global: r.HopLimit > 1 || r.DLID == 0, // RoCE has no LIDs
		DGID:   r.DGID, SGIDIndex: uint8(local.Index), FlowLabel: r.FlowLabel, HopLimit: r.HopLimit, TrafficClass: r.TrafficClass,
		DLID: r.DLID, SL: r.SL, StaticRate: r.Rate, Port: uint8(p.Port),
	}, nil
}

// Lookup is [Dialer.Lookup] of the zero [Dialer].
func Lookup(ctx context.Context, addr string) (Path, error) { return new(Dialer).Lookup(ctx, addr) }

// Lookup returns the device, port and GID that lead to addr, "10.9.0.1" or a name. If there is
// none, the error matches [verbs.ErrNoRoute] and lists the devices.
func (d *Dialer) Lookup(ctx context.Context, addr string) (p Path, err error) {
	defer wrap(&err, "lookup", addr)
	addrs, err := resolve(ctx, d.Resolver, net.JoinHostPort(strings.Trim(addr, "[]"), "0"))
	if err != nil {
		return Path{}, err
	}
	var first error
	for _, dst := range addrs {
		if p, err = d.pathTo(ctx, dst); err == nil {
			return p, nil
		}
		first = cmp.Or(first, err)
	}
	return Path{}, first
}

func (d *Dialer) pathTo(ctx context.Context, dst netip.AddrPort) (Path, error) {
	id, err := d.Transport.orDefault().newID(PortSpaceUDP, nil)
	if err != nil {
		return Path{}, err
	}
	defer id.Close()
	if err := d.resolve(ctx, id, dst, nil); err != nil {
		return Path{}, err
	}
	if _, err := id.events.await(ctx, RouteResolved); err != nil {
		return Path{}, fmt.Errorf("resolve route: %w", noRoute(err, dst.Addr()))
	}
	r, err := id.Route()
	if err != nil {
		return Path{}, err
	}
	p := Path{Port: r.Port, Local: r.Local.Addr(), Remote: r.Remote.Addr()}
	if p.Device, err = r.FindDevice(); err != nil {
		return p, err
	}
	if p.GID, _, err = id.GIDs(); err != nil || p.Device.IWARP() {
		return p, err
	}
	records, err := id.PathRecords()
	if len(records) > 0 {
		p.Record = records[0]
	}
	return p, err
}

// noRoute adds ErrNoRoute and the list of devices to err if err means that no
// device leads to the address.
func noRoute(err error, dst netip.Addr) error {
	errno, _ := errors.AsType[syscall.Errno](err)
	switch {
	case errno == syscall.ENODEV || errno == syscall.ENETUNREACH || errno == syscall.EHOSTUNREACH:
	case errno == syscall.EADDRINUSE || slices.ContainsFunc(host.Devices(), func(d *host.Device) bool { return slices.Contains(d.Addrs, dst) }):
		return err // a device leads there, or the local port is the cause
	case errno != 0 && dst.IsLoopback(): // EINVAL if siw is the first device, ENOENT if siw is on lo
	default:
		return err
	}
	devices, reachable := describeDevices()
	return noRouteTo(dst, devices, reachable, err)
}

// noRouteTo is the error for an address to which none of the devices leads. reachable reports
// whether one of them has an address.
func noRouteTo(dst netip.Addr, devices []string, reachable bool, err error) error {
	to := dst.String()
	if dst.IsLoopback() && reachable {
		to += ", use an address of a device"
	}
	return fmt.Errorf("%w to %s; devices: %s: %w", verbs.ErrNoRoute, to, strings.Join(devices, ", "), err)
}

// FindDevice returns the device that the route leads to. A process that may not use netlink, which
// reports indexes, finds only devices whose GUID is unique: two on one interface have the same.
func (r Route) FindDevice() (uverbs.Device, error) {
	d, err := uverbs.FindIndex(r.Index)
	if err == nil || errors.Is(err, verbs.ErrNoDevice) {
		return d, err
	}
	devs, derr := uverbs.Devices()
	if derr != nil {
		return uverbs.Device{}, derr
	}
	devs = slices.DeleteFunc(devs, func(d uverbs.Device) bool { return d.GUID != r.Device })
	if len(devs) == 1 {
		return devs[0], nil
	}
	return uverbs.Device{}, fail("find", fmt.Sprintf("device %d with GUID %v", r.Index, r.Device), err)
}

// usable returns an error that matches [verbs.ErrNoRDMA] if this process cannot use the route's
// device, or, for the route of a wildcard, which has none, any device. The kernel listens anyway.
func (r Route) usable() error {
	devs, err := uverbs.Devices()
	if r.hasDevice() {
		devs = make([]uverbs.Device, 1)
		devs[0], err = r.FindDevice()
	}
	if err == nil {
		err = verbs.ErrNoDevice
		for i := 0; i < len(devs) && errors.Is(err, verbs.ErrNoRDMA); i++ {
			var ctx *uverbs.Context
			if ctx, err = devs[i].Open(); err == nil {
				return ctx.Close()
			}
		}
	}
	if errors.Is(err, verbs.ErrNoRDMA) {
		return err
	}
	return nil // if err lasts, connections will fail with it
}

// describeInterface describes a network interface: " on v0 (10.9.0.1)", and reports whether its
// addresses lead to a device on it.
func describeInterface(name string) (text string, reachable bool) {
	interfaces, _ := host.Interfaces()
	i := slices.IndexFunc(interfaces, func(ifi host.Interface) bool { return ifi.Name == name })
	if i < 0 {
		return "", false
	}
	ifi := &interfaces[i]
	addrs := ifi.Addrs()
	addrs = slices.DeleteFunc(addrs, netip.Addr.IsLoopback) // the kernel finds no device by them
	if len(addrs) == 0 && ifi.Flags&net.FlagLoopback != 0 {
		return " on " + ifi.Name + ", whose addresses lead to no device", false
	}
	return " on " + ifi.Name + describeAddrs(addrs), len(addrs) > 0
}

// describeAddrs lists addresses, except link-local ones: " (10.9.0.1 fd00:9::1)".
func describeAddrs(addrs []netip.Addr) string {
	var all []string
	for _, a := range addrs {
		if !a.IsLinkLocalUnicast() {
			all = append(all, a.String())
		}
	}
	if len(all) == 0 {
		return ""
	}
	return " (" + strings.Join(all, " ") + ")"
}

// describeDevices describes each device: "rxe0 on v0 (10.9.0.1)", and reports whether one of them
// has an address.
func describeDevices() (all []string, reachable bool) {
	devs, _ := uverbs.Devices()
	for _, d := range devs {
		text := d.Name
		if addrs := host.Addrs(d.Node); addrs != nil {
			text += describeAddrs(addrs)
			reachable = true
		} else if on := d.Interfaces(); len(on) > 0 {
			at, has := describeInterface(on[0])
			text += at
			reachable = reachable || has
		}
		all = append(all, text)
	}
	if all == nil {
		return []string{"none"}, false
	}
	return all, reachable
}

// DeviceAddrs returns the addresses of this machine that lead to a device, to listen on. It fails
// if there are none.
func DeviceAddrs(d uverbs.Device) (found []netip.Addr, err error) {
	defer wrap(&err, "find addresses of", d.Name)
	if addrs := host.Addrs(d.Node); addrs != nil {
		return addrs, nil
	}
	index, err := d.Index()
	if err != nil {
		return nil, err
	}
	local, err := localAddrs()
	if err != nil {
		return nil, err
	}
	for _, addr := range local {
		r, err := defaultTransport.routeFrom(addr)
		if err != nil {
			return nil, err
		}
		if r.hasDevice() && r.Index == index {
			found = append(found, addr)
		}
	}
	if found == nil {
		return nil, fmt.Errorf("no address of this machine leads to it: %w", syscall.EADDRNOTAVAIL)
	}
	return found, nil
}

func localAddrs() (all []netip.Addr, err error) {
	interfaces, err := host.Interfaces()
	for _, ifi := range interfaces {
		all = append(all, ifi.Addrs()...)
	}
	return all, err
}

// routeFrom returns the route of an ID bound to an address, without a device if none has the
// address.
func (t *Transport) routeFrom(addr netip.Addr) (Route, error) {
	id, err := t.newID(PortSpaceTCP, nil)
	if err != nil {
		return Route{}, err
	}
	defer id.Close()
	if id.bind(netip.AddrPortFrom(addr, 0)) != nil {
		return Route{}, nil
	}
	r, err := id.Route()
	if errors.Is(err, verbs.ErrDeviceRemoved) {
		return Route{}, nil
	}
	return r, err
}

// PathRecord is a path between two ports as InfiniBand's subnet administrator describes it
// (PathRecord, InfiniBand specification 1, 15.2.5.16). On RoCE the kernel makes one. A record of
// [ID.PathRecords] also keeps the values that have no field here.
type PathRecord struct {
	ServiceID    uint64
	DGID, SGID   verbs.GID // destination and source
	DLID, SLID   uint16
	FlowLabel    uint32 // 20 bits
	HopLimit     uint8
	TrafficClass uint8
	PKey         uint16
	SL           uint8 // 4 bits: service level
	MTU          verbs.MTU
	Rate         verbs.Rate
	Lifetime     uint8 // 6 bits: a packet lives for 4.096 µs * 2^Lifetime

	kernel abi.IbPathRecData // of PathRecords, or zero
}

// encode returns the kernel's record. A record that the program has filled in itself becomes the
// primary path, in both directions, as ucma_set_ib_path demands.
func (p *PathRecord) encode() abi.IbPathRecData {
	r := p.kernel
	if r.Flags == 0 {
		r.Flags = abi.IB_PATH_GMP | abi.IB_PATH_PRIMARY | abi.IB_PATH_BIDIRECTIONAL
	}
	b := mmap.Bytes(&r.PathRec)
	record := attr.UnpackPath(b)
	record.ServiceID, record.DGID, record.SGID, record.DLID, record.SLID = p.ServiceID, p.DGID, p.SGID, p.DLID, p.SLID
	record.FlowLabel, record.HopLimit, record.TrafficClass, record.PKey, record.SL = p.FlowLabel, p.HopLimit, p.TrafficClass, p.PKey, p.SL
	record.MTU, record.Rate, record.Lifetime = p.MTU, uint8(p.Rate), p.Lifetime
	record.Pack(b)
	return r
}

func (p *PathRecord) decode(r *abi.IbPathRecData) {
	d := attr.UnpackPath(mmap.Bytes(&r.PathRec))
	*p = PathRecord{
		ServiceID: d.ServiceID, DGID: d.DGID, SGID: d.SGID, DLID: d.DLID, SLID: d.SLID,
		FlowLabel: d.FlowLabel, HopLimit: d.HopLimit, TrafficClass: d.TrafficClass, PKey: d.PKey, SL: d.SL,
		MTU: d.MTU, Rate: verbs.Rate(d.Rate), Lifetime: d.Lifetime, kernel: *r,
	}
}

// SetPath sets the ID's path, and optionally others for replies or as a fallback, instead of
// resolving one. [ID.PathRecords] of another ID returns such paths. SetPath is for InfiniBand
// and RoCE.
func (id *ID) SetPath(paths ...PathRecord) error {
	var records []byte
	for i := range paths {
		r := paths[i].encode()
		records = append(records, mmap.Bytes(&r)...)
	}
	return id.setOption("paths", abi.RDMA_OPTION_IB, abi.RDMA_OPTION_IB_PATH, records)
}

// PathRecords returns the paths of a resolved route.
func (id *ID) PathRecords() ([]PathRecord, error) {
	var r struct {
		head abi.RdmaUcmQueryPathResp
		path [2]abi.IbPathRecData
	}
	req := abi.RdmaUcmQuery{Id: id.handle, Option: abi.RDMA_USER_CM_QUERY_PATH}
	if err := idQuery(id, abi.RDMA_USER_CM_CMD_QUERY, &req, &req.Response, &r); err != nil {
		return nil, fail("query path of ID", "", err)
	}
	paths := make([]PathRecord, min(int(r.head.NumPaths), len(r.path)))
	for i := range paths {
		paths[i].decode(&r.path[i])
	}
	return paths, nil
}
