package nldev

import (
	"errors"
	"syscall"

	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/host"
)

// Do sends a command with attributes and returns the attributes of the answer, which is empty for a
// command that only changes something. Devices of this process support none but the one that
// describes them.
func Do(cmd int, attrs Attrs) (answer Attrs, err error) {
	if !ofProcess(attrs) {
		return do(cmd, attrs)
	}
	if cmd != abi.RDMA_NLDEV_CMD_GET {
		return nil, errors.ErrUnsupported
	}
	index := attrs.Map()[abi.RDMA_NLDEV_ATTR_DEV_INDEX].Uint()
	for _, d := range host.Devices() {
		if uint64(d.Index) == index {
			return describe(d), nil
		}
	}
	return nil, syscall.EINVAL // as nldev_get_doit
}

// describe describes a device of this process, as RDMA_NLDEV_CMD_GET does.
func describe(d *host.Device) Attrs {
	a := Attrs{}.Uint32(abi.RDMA_NLDEV_ATTR_DEV_INDEX, uint32(d.Index)).String(abi.RDMA_NLDEV_ATTR_DEV_NAME, d.Name)
	return a.String(abi.RDMA_NLDEV_ATTR_DEV_PROTOCOL, "roce")
}

// Dump sends a command with attributes and calls each with the attributes of each part of the
// answer, until it returns an error. They are valid during the call. The list of devices has those
// of this process first, also if it fails.
func Dump(cmd int, attrs Attrs, each func(Attrs) error) error {
	switch {
	case ofProcess(attrs):
		return errors.ErrUnsupported
	case cmd == abi.RDMA_NLDEV_CMD_GET:
		for _, d := range host.Devices() {
			if err := each(describe(d)); err != nil {
				return err
			}
		}
	}
	return dump(cmd, attrs, each)
}

// ofProcess reports whether a command is about a device of this process.
func ofProcess(attrs Attrs) bool {
	return attrs.Map()[abi.RDMA_NLDEV_ATTR_DEV_INDEX].Uint() >= host.FirstIndex
}
