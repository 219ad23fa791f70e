package cm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/host"
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

// AddressVector returns the address vector for datagrams to p.Remote, from a context of
// p.Device.
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
func (d *Dialer) Lookup(ctx context.Context, addr string) (Path, error) {
	p, err := d.lookup(ctx, addr)
	return p, fail("lookup", addr, err)
}

func (d *Dialer) lookup(ctx context.Context, addr string) (Path, error) {
	addrs, err := resolve(ctx, d.Resolver, net.JoinHostPort(strings.Trim(addr, "[]"), "0"))
	if err != nil {
		return Path{}, err
	}
	var first error
	for _, dst := range addrs {
		p, err := d.pathTo(ctx, dst)
		if err == nil {
			return p, nil
		}
		if first == nil {
			first = err
		}
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
	case errno != 0 && dst.IsLoopback(): // EINVAL if siw is the first device, ENOENT if siw is on lo
	default:
		return err
	}
	devices, reachable := describeDevices()
	return noRouteTo(dst, devices, reachable, err)
}

// noRouteTo is the error for an address to which none of the devices leads. reachable reports whether
// one of them has an address.
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
	devs, err := uverbs.Devices()
	if err != nil {
		return uverbs.Device{}, err
	}
	devs = slices.DeleteFunc(devs, func(d uverbs.Device) bool { return d.GUID != r.Device })
	err = verbs.ErrNoDevice
	for _, d := range devs {
		switch i, ierr := d.Index(); {
		case ierr == nil && i == r.Index:
			return d, nil
		case ierr != nil && !errors.Is(ierr, verbs.ErrNoDevice):
			err = ierr
		}
	}
	if len(devs) == 1 && err != verbs.ErrNoDevice {
		return devs[0], nil
	}
	return uverbs.Device{}, fail("find", fmt.Sprintf("device %d with GUID %v", r.Index, r.Device), err)
}

// usable returns an error that matches [verbs.ErrNoRDMA] if this process cannot use the
// route's device, or, for the route of a wildcard, which has no device, any device. The
// kernel listens nevertheless.
func (r Route) usable() error {
	devs, err := uverbs.Devices()
	if r.Device != (verbs.GUID{}) {
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

// describeInterface describes a network interface: " on v0 (10.9.0.1)", and reports whether its addresses
// lead to a device on it.
func describeInterface(name string) (text string, reachable bool) {
	ifi, err := net.InterfaceByName(name)
	if err != nil {
		return "", false
	}
	addrs, _ := interfaceAddrs(ifi)
	addrs = slices.DeleteFunc(addrs, netip.Addr.IsLoopback) // by which the kernel finds no device
	if len(addrs) == 0 && ifi.Flags&net.FlagLoopback != 0 {
		return " on " + ifi.Name + ", whose addresses lead to no device", false
	}
	return " on " + ifi.Name + describeAddrs(addrs), len(addrs) > 0
}

// describeAddrs lists addresses, without those that are link-local: " (10.9.0.1 fd00:9::1)".
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

// describeDevices describes each device: "rxe0 on v0 (10.9.0.1)", and reports whether one of them has an
// address.
func describeDevices() (all []string, reachable bool) {
	devs, _ := uverbs.Devices()
	for _, d := range devs {
		text := d.Name
		if v := host.DeviceAt(d.Node); v != nil {
			text += describeAddrs(v.Addrs)
			reachable = reachable || len(v.Addrs) > 0
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
// if there are none. They come from the connection manager, as GIDs contain them on RoCE only.
func DeviceAddrs(d uverbs.Device) ([]netip.Addr, error) {
	const op = "find addresses of"
	if v := host.DeviceAt(d.Node); v != nil {
		return slices.Clone(v.Addrs), nil
	}
	index, err := d.Index()
	if err != nil {
		return nil, fail(op, d.Name, err)
	}
	local, err := localAddrs()
	if err != nil {
		return nil, fail(op, d.Name, err)
	}
	var found []netip.Addr
	for _, addr := range local {
		r, err := defaultTransport.routeFrom(addr)
		if err != nil {
			return nil, fail(op, d.Name, err)
		}
		if r.Device != (verbs.GUID{}) && r.Index == index {
			found = append(found, addr)
		}
	}
	if found == nil {
		return nil, fail(op, d.Name, fmt.Errorf("no address of this machine leads to it: %w", syscall.EADDRNOTAVAIL))
	}
	return found, nil
}

// localAddrs returns the addresses of this machine's network interfaces.
func localAddrs() (all []netip.Addr, err error) {
	interfaces, err := net.Interfaces()
	for i := 0; i < len(interfaces) && err == nil; i++ {
		var addrs []netip.Addr
		addrs, err = interfaceAddrs(&interfaces[i])
		all = append(all, addrs...)
	}
	return all, err
}

// interfaceAddrs returns the addresses of a network interface, those of the link with its zone.
func interfaceAddrs(ifi *net.Interface) (addrs []netip.Addr, err error) {
	all, err := ifi.Addrs()
	for _, a := range all {
		p, err := netip.ParsePrefix(a.String())
		if err != nil {
			return nil, err
		}
		addr := p.Addr()
		if addr.IsLinkLocalUnicast() && addr.Is6() {
			addr = addr.WithZone(ifi.Name)
		}
		addrs = append(addrs, addr)
	}
	return addrs, err
}

// routeFrom returns the route of an ID that is bound to an address: a zero Device if no device has it.
func (t *Transport) routeFrom(addr netip.Addr) (Route, error) {
	id, err := t.newID(PortSpaceTCP, nil)
	if err != nil {
		return Route{}, err
	}
	defer id.Close()
	if id.bind(netip.AddrPortFrom(addr, 0)) != nil {
		return Route{}, nil
	}
	return id.Route()
}
