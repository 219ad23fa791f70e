package host

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// Folders of sysfs in which devices of this process are beside those of the kernel.
const (
	classDevices = "/sys/class/infiniband/"
	classNodes   = "/sys/class/infiniband_verbs/"
)

const counters = "ports/1/hw_counters"

// attrOf returns the device of this process whose attribute, or folder, a path of sysfs is, or nil.
func attrOf(path string) (d *Device, attr string) {
	path = filepath.ToSlash(filepath.Clean(path))
	if rest, ok := strings.CutPrefix(path, classDevices); ok {
		name, attr, _ := strings.Cut(rest, "/")
		return lookupDevice(func(d *Device) bool { return d.Name == name }), attr
	}
	if rest, ok := strings.CutPrefix(path, classNodes); ok {
		node, attr, _ := strings.Cut(rest, "/")
		return lookupDevice(func(d *Device) bool { return d.Node == node }), attr
	}
	return nil, ""
}

// ReadAttr returns an attribute, which is a file of sysfs, without the white space around it.
func ReadAttr(path string) (string, error) {
	d, attr := attrOf(path)
	if d == nil {
		b, err := os.ReadFile(path)
		return strings.TrimSpace(string(b)), vanished(err)
	}
	if name, ok := strings.CutPrefix(attr, counters+"/"); ok {
		if v, ok := d.Counters()[name]; ok {
			return strconv.FormatUint(v, 10), nil
		}
	}
	if text, ok := d.Attrs[attr]; ok {
		return text, nil
	}
	return "", &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
}

// vanished makes the error of a file that was removed after it had been opened match [fs.ErrNotExist], as if it
// had been removed before: the kernel has ENODEV for it (kernfs_get_active).
func vanished(err error) error {
	if errors.Is(err, syscall.ENODEV) {
		return fmt.Errorf("%w: %w", fs.ErrNotExist, err)
	}
	return err
}

// TooManyFiles reports whether an error is that of a process, or a system, that can open no file: what it could not
// read may be there.
func TooManyFiles(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

// ListAttrs returns the names in a folder of sysfs.
func ListAttrs(path string) (names []string, err error) {
	d, attr := attrOf(path)
	if d == nil {
		return listClass(path)
	}
	if attr == counters {
		return slices.Sorted(maps.Keys(d.Counters())), nil
	}
	for name := range d.Attrs {
		if rest, ok := strings.CutPrefix(name, strings.TrimPrefix(attr+"/", "/")); ok {
			base, _, _ := strings.Cut(rest, "/")
			names = append(names, base)
		}
	}
	if names == nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// listClass lists a folder of the kernel, with the devices of this process if it is for devices or
// nodes.
func listClass(path string) (names []string, err error) {
	entries, err := os.ReadDir(path)
	err = vanished(err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	class := filepath.ToSlash(path) + "/"
	if class != classDevices && class != classNodes {
		return names, err
	}
	if err := Prepare(); err != nil {
		return nil, err
	}
	for _, d := range Devices() {
		if class == classDevices {
			names = append(names, d.Name)
		} else {
			names = append(names, d.Node)
		}
	}
	if names != nil && errors.Is(err, fs.ErrNotExist) { // of a kernel without RDMA
		err = nil
	}
	return names, err
}

// NodeOf returns the node of a device by the name of its folder in class/infiniband_verbs, and why
// it cannot be used. The kernel's nodes are in dir.
func NodeOf(dir, name string) (node string, err error) {
	if isNode(name) {
		return name, nil
	}
	node = filepath.Join(dir, name)
	_, err = os.Stat(node)
	return node, err
}
