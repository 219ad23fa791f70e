package uverbs

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/host"
)

// Device is an RDMA device that can be opened, of the kernel or of package soft. Package rdmadev
// describes its hardware and its ports.
type Device struct {
	Name    string // "rxe0"
	Node    string // "/dev/infiniband/uverbs0"; "virtual:..." in user space
	GUID    verbs.GUID
	NodeErr error // why Node cannot be used; matches [verbs.ErrNoNode] if there is none

	iwarp bool
	ports int
	verbs string // "uverbs0", its name in the class of nodes
}

// folder returns the device's folder in sysfs. If the device has been renamed, as udev does at
// boot, the node leads to the new name, unless another device has the node now.
func (d Device) folder(elem ...string) string {
	name := d.Name
	dir := filepath.Join(sysClass, "infiniband_verbs", d.verbs)
	if now, err := readAttr(dir, "ibdev"); err == nil && now != name && d.verbs != "" && filepath.Base(now) == now {
		if guid, err := readAttr(filepath.Join(sysClass, "infiniband", now), "node_guid"); err == nil {
			if guid, err := verbs.ParseGUID(guid); err == nil && guid == d.GUID {
				name = now
			}
		}
	}
	return filepath.Join(append([]string{sysClass, "infiniband", name}, elem...)...)
}

// IWARP reports whether the device speaks iWARP, as siw does, and not InfiniBand or RoCE.
func (d Device) IWARP() bool { return d.iwarp }

// Folders in which the kernel shows devices. Tests replace them.
var (
	sysClass = "/sys/class"
	devDir   = "/dev/infiniband"
)

// Devices lists the RDMA devices of this network namespace in the order of their uverbs nodes, and
// then the devices that package soft has made in this process. Without RDMA the list is empty.
func Devices() ([]Device, error) {
	dirs, err := deviceDirs()
	if err != nil {
		return nil, err
	}
	var devs []Device
	for _, dir := range dirs {
		d, err := readDevice(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed meanwhile, or in another namespace
		}
		if err != nil {
			return nil, &verbs.Error{Op: "list", Object: "device in " + dir, Err: err}
		}
		devs = append(devs, d)
	}
	return devs, nil
}

// deviceDirs returns the folders of devices in class/infiniband_verbs.
func deviceDirs() ([]string, error) {
	class := filepath.Join(sysClass, "infiniband_verbs")
	names, err := host.ListAttrs(class)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, &verbs.Error{Op: "list", Object: "devices in " + class, Err: err}
	}
	slices.SortFunc(names, func(a, b string) int { // uverbs10 after uverbs9, devices in user space last
		return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
	})
	names = slices.DeleteFunc(names, func(name string) bool { return name == "abi_version" })
	for i, name := range names {
		names[i] = filepath.Join(class, name)
	}
	return names, nil
}

// readDevice reads a device, and reads it again if it was renamed meanwhile, as udev does at the start of a machine.
func readDevice(dir string) (Device, error) {
	for range 3 {
		name, err := readAttr(dir, "ibdev")
		if err != nil {
			return Device{}, err
		}
		d, err := readNamed(dir, name)
		now, gone := readAttr(dir, "ibdev")
		if gone != nil {
			return Device{}, gone
		}
		if now == name && !errors.Is(err, fs.ErrNotExist) { // else it may have been renamed, and renamed back
			return d, err
		}
	}
	return Device{}, fs.ErrNotExist // or of another network namespace
}

func readNamed(dir, name string) (_ Device, err error) {
	if name == "" || name == "." || name == ".." || strings.Contains(name, "/") {
		return Device{}, fmt.Errorf("its ibdev attribute names %q, which does not exist", name)
	}
	class := filepath.Join(sysClass, "infiniband", name)
	if _, err := host.ListAttrs(class); err != nil {
		return Device{}, err
	}
	d := Device{Name: name, verbs: filepath.Base(dir)}
	// All devices have these attributes: one that is missing has been renamed meanwhile, or is gone.
	// Running out of descriptors is an error, as Find would not find the device by its GUID.
	note := func(e error) {
		if host.TooManyFiles(e) || errors.Is(e, fs.ErrNotExist) {
			err = e
		}
	}
	attr := func(name string) string {
		text, e := readAttr(class, name)
		note(e)
		return text
	}
	ports, e := host.ListAttrs(filepath.Join(class, "ports"))
	note(e)
	d.ports = len(ports)
	d.iwarp = strings.HasSuffix(attr("node_type"), "RNIC") // "4: RNIC"
	d.GUID, _ = verbs.ParseGUID(attr("node_guid"))
	if err != nil {
		return Device{}, err
	}
	switch d.Node, err = host.NodeOf(devDir, filepath.Base(dir)); {
	case errors.Is(err, fs.ErrNotExist):
		d.NodeErr = fmt.Errorf("%w: %s", verbs.ErrNoNode, d.Node)
	case err != nil:
		d.NodeErr = err
	}
	return d, nil
}

func readAttr(dir, name string) (string, error) { return host.ReadAttr(filepath.Join(dir, name)) }
