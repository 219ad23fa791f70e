package uverbs

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"syscall"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/host"
	"github.com/goverbs/verbs/internal/nldev"
)

// Index returns the kernel's number of the device, which survives renaming and is never used again
// (ibv_get_device_index(3)).
func (d Device) Index() (int, error) {
	name := filepath.Base(d.folder())
	for try := 1; ; try++ {
		index, err := 0, error(verbs.ErrNoDevice)
		derr := nldev.Dump(abi.RDMA_NLDEV_CMD_GET, nil, func(a nldev.Attrs) error { // sysfs does not have it
			if device := a.Map(); device[abi.RDMA_NLDEV_ATTR_DEV_NAME].String() == name {
				index, err = int(device[abi.RDMA_NLDEV_ATTR_DEV_INDEX].Uint()), nil
			}
			return nil
		})
		was := name
		if name = filepath.Base(d.folder()); name != was && try < 3 {
			continue // renamed meanwhile
		}
		if err != nil && derr != nil {
			err = derr
		}
		if err != nil {
			return 0, &verbs.Error{Op: "find", Object: "index", Device: d.Name, Err: err}
		}
		return index, nil
	}
}

// FindIndex returns the device with an index, see [Device.Index]. It reads no other device's
// attributes. If there is none, the error matches [verbs.ErrNoDevice].
func FindIndex(index int) (d Device, err error) {
	name := ""
	for range 4 {
		a, gone := nldev.Do(abi.RDMA_NLDEV_CMD_GET, nldev.Attrs{}.Uint32(abi.RDMA_NLDEV_ATTR_DEV_INDEX, uint32(index)))
		if err = cmp.Or(gone, err); gone != nil {
			break
		}
		was := name
		if name = a.Map()[abi.RDMA_NLDEV_ATTR_DEV_NAME].String(); name == was {
			break // else it was renamed meanwhile
		}
		d, err = named(name, index >= host.FirstIndex)
	}
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, fs.ErrNotExist) { // nldev_get_doit, or removed meanwhile
		err = verbs.ErrNoDevice
	}
	if err != nil {
		return Device{}, &verbs.Error{Op: "find", Object: fmt.Sprintf("device %d", index), Err: err}
	}
	return d, nil
}

// named returns the device of the kernel, or of this process, with a name.
func named(name string, ofProcess bool) (Device, error) {
	if ofProcess {
		return readDevice(filepath.Join(sysClass, "infiniband_verbs", host.Scheme+name))
	}
	dirs, err := deviceDirs()
	if err != nil {
		return Device{}, err
	}
	for _, dir := range dirs {
		if s, err := readAttr(dir, "ibdev"); err == nil && s == name {
			return readDevice(dir)
		}
	}
	return Device{}, verbs.ErrNoDevice
}
