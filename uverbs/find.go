package uverbs

import (
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/host"
	"github.com/goverbs/verbs/internal/nldev"
)

// Find returns the device that spec describes. It tries in this order:
//
//	"rxe0"                 the device's name
//	"505400fffe123456"     its node GUID, in any form that [verbs.ParseGUID] takes
//	"eth0", "eth0.100"     its network interface, or an interface above it
//	"10.9.0.1", "fd00::1"  its address in user space, or the address of its interface
//	""                     the first device with a node
//
// The error lists the devices, and matches [verbs.ErrNoDevice] or [verbs.ErrAmbiguous]. cm.Lookup
// finds the device that leads to a remote address.
func Find(spec string) (Device, error) { return find("find", spec) }

// Open opens the device that spec describes, as [Find] does.
func Open(spec string) (*Context, error) {
	d, err := find("open", spec)
	if err != nil {
		return nil, err
	}
	return d.Open()
}

func find(op, spec string) (Device, error) {
	devs, err := Devices()
	if err != nil {
		return Device{}, err
	}
	if spec == "" {
		for _, d := range devs {
			if d.NodeErr == nil {
				return d, nil
			}
		}
		if len(devs) > 0 {
			return Device{}, devs[0].fail(devs[0].NodeErr)
		}
	}
	e := &verbs.Error{Op: op, Object: strings.TrimSpace("device " + spec), Err: verbs.ErrNoDevice}
	var scarce error // why a meaning of spec could not be looked up
	note := func(err error) {
		if host.TooManyFiles(err) {
			scarce = err
		}
	}
	for _, match := range matchers(spec, note) {
		switch found := slices.DeleteFunc(slices.Clone(devs), func(d Device) bool { return !match(d) }); len(found) {
		case 0:
		case 1:
			return found[0], nil
		default:
			e.Err, e.Hint = verbs.ErrAmbiguous, "name one of "+formatDevices(found)
			return Device{}, e
		}
	}
	switch {
	case scarce != nil:
		e.Err = scarce
	case len(devs) > 0:
		e.Hint = "there are " + formatDevices(devs)
	case runtime.GOOS != "linux":
		e.Hint = "only Linux has RDMA devices"
	default:
		e.Hint = "modprobe rdma_rxe; verbs link add rxe0 rxe DEV (or rdma link add rxe0 type rxe netdev DEV); or the same with siw; or VERBS_SOFT=1 for a device in user space"
		if _, err := os.Stat(sysClass); errors.Is(err, fs.ErrNotExist) {
			e.Hint = sysClass + " is missing: mount sysfs to find devices"
		}
	}
	return Device{}, e
}

// matchers returns a test for each meaning that spec may have, in order of preference. They tell note what they
// could not read.
func matchers(spec string, note func(error)) []func(Device) bool {
	m := []func(Device) bool{func(d Device) bool { return d.Name == spec }}
	if guid, err := verbs.ParseGUID(spec); err == nil {
		m = append(m, func(d Device) bool { return d.GUID == guid })
	}
	on := func(interfaces ...string) {
		interfaces = addLowerInterfaces(interfaces, note)
		m = append(m, func(d Device) bool {
			return slices.ContainsFunc(d.interfaces(note), func(i string) bool { return slices.Contains(interfaces, i) })
		})
	}
	if addr, err := netip.ParseAddr(spec); err == nil {
		m = append(m, func(d Device) bool {
			return slices.ContainsFunc(host.Addrs(d.Node), func(a netip.Addr) bool {
				return a == addr.Unmap() || addr.Zone() == "" && a.WithZone("") == addr
			})
		})
		on(interfacesWith(addr.Unmap(), note)...)
	} else if spec != "" && !strings.Contains(spec, "/") {
		on(spec)
	}
	return m
}

// formatDevices describes devices: "rxe0 (eth0), siw0 (eth1)".
func formatDevices(devs []Device) string {
	var all []string
	for _, d := range devs {
		text := d.Name
		if on := d.Interfaces(); len(on) > 0 {
			text += " (" + strings.Join(on, " ") + ")"
		}
		all = append(all, text)
	}
	return strings.Join(all, ", ")
}

// interfacesWith returns the network interfaces that have an address.
func interfacesWith(addr netip.Addr, note func(error)) (names []string) {
	all, err := host.Interfaces()
	note(err)
	for _, ifi := range all {
		has := slices.ContainsFunc(ifi.Prefixes, func(p netip.Prefix) bool { return p.Addr().Unmap() == addr.WithZone("") })
		if has && (addr.Zone() == "" || addr.Zone() == ifi.Name || addr.Zone() == strconv.Itoa(ifi.Index)) {
			names = append(names, ifi.Name)
		}
	}
	return names
}

// addLowerInterfaces adds the interfaces below the given ones, such as the parent of a VLAN: a
// device has the addresses of its own interface and of the interfaces above it.
func addLowerInterfaces(names []string, note func(error)) []string {
	for i := 0; i < len(names); i++ {
		links, err := os.ReadDir(filepath.Join(sysClass, "net", names[i]))
		note(err)
		for _, l := range links {
			if lower, ok := strings.CutPrefix(l.Name(), "lower_"); ok && !slices.Contains(names, lower) {
				names = append(names, lower)
			}
		}
	}
	return names
}

// Interfaces returns the network interfaces of the device's ports: of their GIDs up to the first that is
// not in use. It reads sysfs, or uses netlink for iWARP before Linux 6.4.
func (d Device) Interfaces() (names []string) { return d.interfaces(func(error) {}) }

// interfaces is Interfaces, and tells note what it could not read.
func (d Device) interfaces(note func(error)) (names []string) {
	for port := 1; port <= d.ports; port++ {
		dir := d.folder("ports", strconv.Itoa(port), "gid_attrs", "ndevs")
		for i := 0; ; i++ {
			name, err := readAttr(dir, strconv.Itoa(i))
			if err != nil { // past the GIDs in use
				note(err)
				break
			}
			if name != "" && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	if names != nil {
		return names
	}
	index, err := d.Index()
	if err != nil {
		note(err)
		return nil
	}
	request := nldev.Attrs{}.Uint32(abi.RDMA_NLDEV_ATTR_DEV_INDEX, uint32(index))
	note(nldev.Dump(abi.RDMA_NLDEV_CMD_PORT_GET, request, func(a nldev.Attrs) error {
		if name := a.Map()[abi.RDMA_NLDEV_ATTR_NDEV_NAME].String(); name != "" {
			names = append(names, name)
		}
		return nil
	}))
	return names
}
