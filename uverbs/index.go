package uverbs

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"syscall"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/host"
	"github.com/goverbs/verbs/internal/nldev"
)

// Index returns the kernel's number of the device, which survives renaming and is never used again
// (ibv_get_device_index(3)).
func (d Device) Index() (int, error) {
	names := map[int]string{}
	err := nldev.Dump(abi.RDMA_NLDEV_CMD_GET, nil, func(a nldev.Attrs) error { // sysfs does not have it
		device := a.Map()
		names[int(device[abi.RDMA_NLDEV_ATTR_DEV_INDEX].Uint())] = device[abi.RDMA_NLDEV_ATTR_DEV_NAME].String()
		return nil
	})
	for index, name := range names {
		node, gone := nodeOf(index)
		if host.TooManyFiles(gone) {
			err = gone
		}
		if gone == nil && node == d.verbs || d.verbs == "" && name == d.Name {
			return index, nil
		}
	}
	return 0, &verbs.Error{Op: "find", Object: "index", Device: d.Name, Err: cmp.Or(err, verbs.ErrNoDevice)}
}

// FindIndex returns the device with an index, see [Device.Index]. It reads no other device's
// attributes. If there is none, the error matches [verbs.ErrNoDevice].
func FindIndex(index int) (d Device, err error) {
	for range 20 {
		var node string
		if node, err = nodeOf(index); err != nil {
			break
		}
		d, err = readDevice(filepath.Join(sysClass, "infiniband_verbs", node))
		if !errors.Is(err, fs.ErrNotExist) {
			break
		}
		time.Sleep(time.Millisecond) // it is being renamed, or goes
	}
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, fs.ErrNotExist) { // ib_device_get_by_index, or removed meanwhile
		err = verbs.ErrNoDevice
	}
	if err != nil {
		return Device{}, &verbs.Error{Op: "find", Object: fmt.Sprintf("device %d", index), Err: err}
	}
	return d, nil
}

// nodeOf returns the name of a device in the class of nodes, which stays when the device is renamed.
func nodeOf(index int) (string, error) {
	request := nldev.Attrs{}.Uint32(abi.RDMA_NLDEV_ATTR_DEV_INDEX, uint32(index))
	if index >= host.FirstIndex { // a device of this process
		a, err := nldev.Do(abi.RDMA_NLDEV_CMD_GET, request)
		return host.Scheme + a.Map()[abi.RDMA_NLDEV_ATTR_DEV_NAME].String(), err
	}
	a, err := nldev.Do(abi.RDMA_NLDEV_CMD_GET_CHARDEV, request.String(abi.RDMA_NLDEV_ATTR_CHARDEV_TYPE, "uverbs"))
	return a.Map()[abi.RDMA_NLDEV_ATTR_CHARDEV_NAME].String(), err
}
