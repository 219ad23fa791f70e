package host

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"

	"github.com/goverbs/verbs"
)

// Device is an RDMA device of this process.
type Device struct {
	Name  string // "soft0"
	Addrs []netip.Addr
	// Attrs are its attributes by their paths below its folder of sysfs: "node_guid",
	// "ports/1/gids/0". Counters returns those of ports/1/hw_counters.
	Attrs    map[string]string
	Counters func() map[string]uint64
	// Open opens the device's node.
	Open func() (File, syscall.Errno)
	// Objects returns the entries of a table of objects that netlink has (RDMA_NLDEV_ATTR_RES_QP
	// and so on).
	Objects func(table int) [][]byte

	// Node and Index are set by Reserve. Indexes are not used again, and are above those of
	// the kernel.
	Node  string
	Index int

	registered bool
}

// devices has the devices in the order of their indexes.
var devices struct {
	sync.RWMutex
	last int
	all  []*Device
}

// FirstIndex is the lowest index of a device of this process.
const FirstIndex = 1 << 30

// Reserve sets the Node and Index of a device that Register will add. If d has no name, it gets
// the next free "softN". It fails if a device of this process has the name.
func Reserve(d *Device) error {
	devices.Lock()
	defer devices.Unlock()
	taken := func() bool {
		return slices.ContainsFunc(devices.all, func(other *Device) bool { return other.Name == d.Name })
	}
	if d.Name == "" {
		for n := 0; d.Name == "" || taken(); n++ {
			d.Name = fmt.Sprintf("soft%d", n)
		}
	}
	if taken() {
		return fmt.Errorf("name %q: %w", d.Name, os.ErrExist)
	}
	d.Node, d.Index = Scheme+d.Name, FirstIndex+devices.last
	devices.last++
	devices.all = append(devices.all, d)
	return nil
}

// Register adds a reserved device, which the caller must not change any more, and its node.
func Register(d *Device) {
	devices.Lock()
	defer devices.Unlock()
	d.registered = true
	Provide(d.Node, d.Open)
}

// Unregister removes a device and its node, or undoes Reserve. Open files are not closed.
func Unregister(d *Device) {
	devices.Lock()
	defer devices.Unlock()
	devices.all = slices.DeleteFunc(devices.all, func(x *Device) bool { return x == d })
	Provide(d.Node, nil)
}

// Devices returns the registered devices in the order of their indexes.
func Devices() []*Device {
	devices.RLock()
	defer devices.RUnlock()
	return slices.DeleteFunc(slices.Clone(devices.all), func(d *Device) bool { return !d.registered })
}

// lookupDevice returns the registered device for which is returns true, or nil.
func lookupDevice(is func(*Device) bool) *Device {
	devices.RLock()
	defer devices.RUnlock()
	if i := slices.IndexFunc(devices.all, func(d *Device) bool { return d.registered && is(d) }); i >= 0 {
		return devices.all[i]
	}
	return nil
}

// Addrs returns the addresses of the device with a node, or none if only the connection manager
// knows them.
func Addrs(node string) []netip.Addr {
	if d := lookupDevice(func(d *Device) bool { return d.Node == node }); d != nil {
		return slices.Clone(d.Addrs)
	}
	return nil
}

// Objects returns the entries of a table of objects on the device with an index. It fails with
// [verbs.ErrNoDevice] if the device has been removed, and with [errors.ErrUnsupported] if it is none of
// this process: then netlink has the table.
func Objects(index, table int) (entries [][]byte, err error) {
	if index < FirstIndex {
		return nil, errors.ErrUnsupported
	}
	d := lookupDevice(func(d *Device) bool { return d.Index == index })
	if d == nil {
		return nil, verbs.ErrNoDevice
	}
	return d.Objects(table), nil
}
