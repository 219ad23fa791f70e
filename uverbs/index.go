package uverbs

import (
	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/nldev"
)

// Index returns the kernel's number of the device, which stays when the device is renamed and is
// never used again (ibv_get_device_index(3)).
func (d Device) Index() (int, error) {
	index, err := 0, error(verbs.ErrNoDevice)
	derr := nldev.Dump(abi.RDMA_NLDEV_CMD_GET, nil, func(a nldev.Attrs) error { // sysfs does not have it
		if device := a.Map(); device[abi.RDMA_NLDEV_ATTR_DEV_NAME].String() == d.Name {
			index, err = int(device[abi.RDMA_NLDEV_ATTR_DEV_INDEX].Uint()), nil
		}
		return nil
	})
	if err != nil && derr != nil {
		err = derr
	}
	if err != nil {
		return 0, &verbs.Error{Op: "find", Object: "index", Device: d.Name, Err: err}
	}
	return index, nil
}
