package rdmadev

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/host"
	"github.com/goverbs/verbs/internal/nldev"
)

// Device describes an RDMA device.
type Device struct {
	Name  string // "mlx5_0"
	Index int    // the kernel's number, which survives renaming; -1 without netlink

	Type        NodeType
	Protocol    Protocol
	NodeGUID    verbs.GUID
	SystemGUID  verbs.GUID // the same for all devices of a system or a card
	Description string     // node_desc; administrators may change it
	Firmware    string     // version
	Board       string     // board_id, which names the product: "MT_0000000223"
	HardwareRev string     // revision
	Model       string     // hca_type: "MT4125"; "" for most drivers

	Driver string // kernel driver: "mlx5_core"; "rxe", "siw" or, in user space, "soft" of software devices; "" if unknown

	// Of the device on the PCI or another bus; software devices have the zero value and -1.
	PCI      PCI
	NUMANode int // -1 if unknown

	VerbsNode string // node in /dev/infiniband, which a container may lack: "uverbs0"; "" if there is none

	AdaptiveModeration bool // of the rate of completion events (rdma-dev(8)); false if netlink is not used

	Ports []Port
	Errs  []error // attributes that could not be read, except those of ports

	src Source
}

// PCI describes the PCI device of an RDMA device.
type PCI struct {
	Addr                       string // "0000:3b:00.0"
	Vendor, Device             uint16 // IDs
	SubsysVendor, SubsysDevice uint16
	PhysFn                     string   // address of the physical function, of a virtual function
	VirtFns                    []string // addresses of the virtual functions, of a physical function
	MaxVirtFns                 int
}

// NodeType is the kind of a device (enum rdma_node_type).
type NodeType uint8

const (
	NodeCA NodeType = 1 + iota // InfiniBand or RoCE
	NodeSwitch
	NodeRouter
	NodeRNIC // iWARP
	NodeUSNIC
	NodeUSNICUDP
	NodeUnspecified // efa, for one
)

// String returns the name of the type as iproute2's rdma prints it.
func (t NodeType) String() string {
	return nameOf([]string{"unknown", "ca", "switch", "router", "rnic", "usnic", "usnic_udp", "unspecified"}, uint64(t))
}

// Protocol is what a device speaks on the wire.
type Protocol string

const (
	InfiniBand Protocol = "ib"
	RoCE       Protocol = "roce"
	IWARP      Protocol = "iw"
	OmniPath   Protocol = "opa"
	USNIC      Protocol = "usnic"
)

// Devices returns the devices in order of their names. Without RDMA there are none, and no error.
func (s Source) Devices() ([]Device, error) {
	dir := s.class("infiniband")
	for try := 1; ; try++ {
		names, err := host.ListAttrs(dir) // first, as it makes the device that VERBS_SOFT requests
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		if err != nil {
			return nil, &verbs.Error{Op: "list", Object: "RDMA devices", Err: err}
		}
		all, err := s.survey()
		if err != nil {
			return nil, &verbs.Error{Op: "list", Object: "RDMA devices", Err: err}
		}
		var devices []Device
		same := !all.answers || len(names) == len(all.netlink)
		for _, name := range names {
			if s.Filter != nil && !s.Filter(name) {
				continue
			}
			d, err := s.device(name, all)
			switch {
			case err == nil:
				devices = append(devices, d)
			case !errors.Is(err, verbs.ErrNoDevice): // else it was removed meanwhile
				return nil, &verbs.Error{Op: "list", Object: "RDMA devices", Err: fmt.Errorf("%s: %w", name, err)}
			}
			same = same && err == nil
		}
		// If sysfs and netlink differ, or a device is no more there, one has changed in between, such
		// as its name: read again.
		if same || try == 3 {
			slices.SortStableFunc(devices, func(a, b Device) int { return byNumber(a.Name, b.Name) })
			return devices, nil
		}
	}
}

// Find returns the device with a name. If there is none, the error matches [verbs.ErrNoDevice].
func (s Source) Find(name string) (Device, error) {
	made := host.Prepare()
	d, err := Device{}, error(verbs.ErrNoDevice)
	valid := (s.Filter == nil || s.Filter(name)) && name != "" && name != "." && name != ".." && !strings.ContainsRune(name, '/')
	for try := 1; valid && errors.Is(err, verbs.ErrNoDevice) && try <= 3; try++ { // again, as in Devices
		var all survey
		if all, err = s.survey(); err == nil {
			d, err = s.device(name, all)
		}
	}
	if errors.Is(err, verbs.ErrNoDevice) {
		err = cmp.Or(made, err)
	}
	if err != nil {
		return Device{}, &verbs.Error{Op: "find", Object: "RDMA device " + strconv.Quote(name), Err: err}
	}
	return d, nil
}

// survey is what is known of all devices before each is read.
type survey struct {
	nodes   map[string]string              // for verbs, by device
	netlink map[string]map[int]nldev.Value // attributes, by device
	answers bool                           // the kernel has answered, so that netlink has all devices
}

// survey reads what is known of all devices. It fails if the process has no descriptors left, as devices would
// seem to change.
func (s Source) survey() (survey, error) {
	nodes, errs := s.nodes()
	netlink, err := s.netlinkDevices()
	return survey{nodes, netlink, err == nil}, scarce(append(errs, err))
}

// device reads a device.
func (s Source) device(name string, all survey) (Device, error) {
	a := attrs{dir: s.class("infiniband", name)}
	if err := a.exists(); err != nil {
		return Device{}, err
	}
	d := Device{
		src:         s,
		Name:        name,
		Index:       -1,
		Type:        NodeType(a.uint("node_type", 10, 8)),
		NodeGUID:    a.guid("node_guid"),
		SystemGUID:  a.guid("sys_image_guid"),
		Description: a.text("node_desc"),
		Firmware:    a.text("fw_ver"),
		Board:       a.text("board_id"),
		HardwareRev: a.text("hw_rev"),
		Model:       a.text("hca_type"),
		NUMANode:    -1,
		VerbsNode:   all.nodes[name],
	}
	interfaces := d.readHardware(&a)
	for _, port := range a.list("ports") {
		num, err := strconv.Atoi(port)
		if err != nil {
			continue
		}
		p := d.readPort(num)
		for _, i := range interfaces {
			if i.port == num && p.Interfaces == nil {
				p.Interfaces = []string{i.name}
			}
		}
		d.Ports = append(d.Ports, p)
	}
	d.Errs = a.errs
	errs := slices.Clone(a.errs)
	for _, p := range d.Ports {
		errs = append(errs, p.Errs...)
	}
	if err := cmp.Or(scarce(errs), a.exists()); err != nil {
		return Device{}, err // or what was read may be a part of it
	}
	attr, ok := all.netlink[name]
	if all.answers && !ok {
		return Device{}, verbs.ErrNoDevice // not whole yet, or no more
	}
	if ok {
		d.Index = int(attr[abi.RDMA_NLDEV_ATTR_DEV_INDEX].Uint())
		d.Protocol = Protocol(attr[abi.RDMA_NLDEV_ATTR_DEV_PROTOCOL].String())
		d.AdaptiveModeration = attr[abi.RDMA_NLDEV_ATTR_DEV_DIM].Uint() != 0
		d.readInterfaces()
		// Netlink has shown the device before it was read, and so after its attributes were made. If
		// it still has the name, they are all its own, and not those of another with that name.
		if now, err := d.do(abi.RDMA_NLDEV_CMD_GET, nil); err != nil || now.Map()[abi.RDMA_NLDEV_ATTR_DEV_NAME].String() != name {
			return Device{}, cmp.Or(scarce([]error{err}), error(verbs.ErrNoDevice))
		}
	}
	if d.Protocol == "" {
		d.Protocol = d.protocol()
	}
	return d, nil
}

// protocol derives the protocol from the attributes in sysfs.
func (d *Device) protocol() Protocol {
	switch {
	case d.Type == NodeRNIC:
		return IWARP
	case d.Type == NodeUSNIC, d.Type == NodeUSNICUDP:
		return USNIC
	case d.Type != NodeCA || len(d.Ports) == 0:
		return ""
	case d.Ports[0].LinkLayer == verbs.LinkEthernet:
		return RoCE
	case d.Driver == "hfi1":
		return OmniPath
	case d.Ports[0].LinkLayer == verbs.LinkInfiniBand:
		return InfiniBand
	}
	return ""
}

// netInterface is a network interface of the hardware, and its port of the device.
type netInterface struct {
	name string
	port int
}

// drivers has the drivers whose devices have no parent in sysfs, by the description that the driver
// gives them, which nobody can change (neither has modify_device).
var drivers = map[string]string{
	"Software iWARP stack":       "siw",   // SIW_NODE_DESC_COMMON
	"Elastic RDMA Adapter stack": "erdma", // ERDMA_NODE_DESC
	"Elastic RDMA(iWARP) stack":  "erdma", // the same, before RoCE
}

// readHardware reads the attributes of the hardware, if there is any, and returns its
// network interfaces.
func (d *Device) readHardware(a *attrs) (interfaces []netInterface) {
	dir, err := filepath.EvalSymlinks(filepath.Join(a.dir, "device"))
	if err != nil {
		switch d.Driver = a.text("driver"); { // which only devices in user space have
		case d.Driver != "":
		case a.text("parent") != "": // which only rxe has
			d.Driver = "rxe"
		default:
			d.Driver = drivers[d.Description]
		}
		return nil
	}
	hw := attrs{dir: dir}
	d.Driver = hw.link("driver")
	if text := hw.text("numa_node"); text != "" {
		if n, err := strconv.Atoi(text); err == nil {
			d.NUMANode = n
		}
	}
	id := func(name string) uint16 { return uint16(hw.uint(name, 0, 16)) }
	d.PCI = PCI{
		Vendor: id("vendor"), Device: id("device"),
		SubsysVendor: id("subsystem_vendor"), SubsysDevice: id("subsystem_device"),
		PhysFn: hw.link("physfn"), MaxVirtFns: int(hw.uint("sriov_totalvfs", 10, 16)),
	}
	if d.PCI.Vendor != 0 {
		d.PCI.Addr = filepath.Base(dir)
	}
	for _, name := range hw.list("") {
		if strings.HasPrefix(name, "virtfn") {
			d.PCI.VirtFns = append(d.PCI.VirtFns, hw.link(name))
		}
	}
	for _, name := range hw.list("net") {
		interfaces = append(interfaces, netInterface{name, int(hw.uint(filepath.Join("net", name, "dev_port"), 10, 16)) + 1})
	}
	a.errs = append(a.errs, hw.errs...)
	return interfaces
}

// nodes returns the device nodes for verbs by device.
func (s Source) nodes() (_ map[string]string, errs []error) {
	a := attrs{dir: s.class("infiniband_verbs")}
	nodes := map[string]string{}
	for _, name := range a.list("") {
		if !strings.HasPrefix(name, "uverbs") {
			continue // abi_version, or a device in user space
		}
		if device := a.text(filepath.Join(name, "ibdev")); device != "" {
			nodes[device] = name
		}
	}
	return nodes, a.errs
}

// netlinkDevices returns netlink's attributes of all devices, by name: of those of this process alone,
// and an error, if the kernel does not answer.
func (s Source) netlinkDevices() (map[string]map[int]nldev.Value, error) {
	if s.Sys != "" {
		return nil, errors.ErrUnsupported
	}
	devices := map[string]map[int]nldev.Value{}
	err := nldev.Dump(abi.RDMA_NLDEV_CMD_GET, nil, func(a nldev.Attrs) error {
		d := slices.Clone(a).Map() // the answer's memory is used again
		devices[d[abi.RDMA_NLDEV_ATTR_DEV_NAME].String()] = d
		return nil
	})
	return devices, err
}
