package host

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"

	"github.com/goverbs/verbs"
)

// CM is the node of the virtual rdma_cm for the device that the environment requests, and others
// of this machine. Devices on networks of their own have other nodes, which begin with it.
const CM = Scheme + "rdma_cm"

// PKey is the only partition key of virtual devices.
const PKey = 0xffff

// Device describes a virtual RDMA device, as sysfs and netlink describe one of the kernel.
type Device struct {
	Name     string // "soft0"
	GUID     verbs.GUID
	SysGUID  verbs.GUID
	Firmware string
	Addrs    []netip.Addr // of its ports
	// Open opens the device's node.
	Open func() (File, syscall.Errno)
	// Port returns the state of the port, and GIDs its GID table.
	Port func() verbs.PortAttr
	GIDs func() []verbs.GIDEntry
	// Counters returns the statistics of the port by their names in sysfs.
	Counters func() map[string]uint64
	// Resources returns the numbers of objects by their names in rdma-resource(8).
	Resources func() map[string]int
	// Objects returns the objects, and the IDs of the connection manager.
	Objects func() []Object

	// Node and Index are set by Reserve. Indexes are not used again, and are above those of
	// the kernel.
	Node  string
	Index int

	registered bool
}

// Object describes an object on a device, as netlink describes one of the kernel. Fields that its kind
// does not have are 0.
type Object struct {
	Kind    string // its name in rdma-resource(8): "ctx", "pd", "cq", "qp", "mr", "srq", "cm_id"
	Num     uint32 // on the device, unique in its kind
	Context uint32
	PD      uint32
	Users   int // objects that depend on it
	Depth   int // of a CQ
	Length  uint64
	Key     uint32 // of an MR

	QPType    verbs.QPType // of a QP or an ID
	State     verbs.QPState
	Port      int
	RemoteNum uint32
	RecvPSN   uint32
	SendPSN   uint32
	QPs       []uint32 // of an SRQ, or an ID

	Space         uint32 // port space of an ID: RDMA_PS_TCP and so on
	CMState       string // "LISTEN", "CONNECT"
	Local, Remote netip.AddrPort
}

// devices has the devices in the order of their indexes.
var devices struct {
	sync.RWMutex
	last int
	all  []*Device
}

const firstIndex = 1 << 30

// Reserve sets the Node and Index of a device that Register will add. If d has no name, it gets
// the next free "softN". It fails if there is a virtual device with the name.
func Reserve(d *Device) error {
	devices.Lock()
	defer devices.Unlock()
	if d.Name == "" {
		for n := 0; d.Name == "" || find(d.Name) != nil; n++ {
			d.Name = fmt.Sprintf("soft%d", n)
		}
	}
	if find(d.Name) != nil {
		return fmt.Errorf("name %q: %w", d.Name, os.ErrExist)
	}
	d.Node, d.Index = Scheme+"uverbs/"+d.Name, firstIndex+devices.last
	devices.last++
	devices.all = append(devices.all, d)
	return nil
}

// Register adds a device that has been reserved, and its node. The caller must not change d after
// that.
func Register(d *Device) {
	devices.Lock()
	defer devices.Unlock()
	d.registered = true
	Provide(d.Node, d.Open)
}

// find returns the device with a name, or nil. The caller holds the lock.
func find(name string) *Device {
	if i := slices.IndexFunc(devices.all, func(d *Device) bool { return d.Name == name }); i >= 0 {
		return devices.all[i]
	}
	return nil
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

// DeviceAt returns the registered device with a node, or nil.
func DeviceAt(node string) *Device {
	if !IsNode(node) {
		return nil
	}
	devices.RLock()
	defer devices.RUnlock()
	if i := slices.IndexFunc(devices.all, func(d *Device) bool { return d.registered && d.Node == node }); i >= 0 {
		return devices.all[i]
	}
	return nil
}
