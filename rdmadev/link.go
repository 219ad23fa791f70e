package rdmadev

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/nldev"
)

// AddLink creates a software device on a network interface. Its type is "rxe" or "siw"; the
// kernel loads the module.
func AddLink(name, typ, netInterface string) error {
	if err := checkNames(name, typ, netInterface); err != nil {
		return &verbs.Error{Op: "add", Object: "device", Err: err}
	}
	attrs := nldev.Attrs{}.String(abi.RDMA_NLDEV_ATTR_DEV_NAME, name).
		String(abi.RDMA_NLDEV_ATTR_LINK_TYPE, typ).
		String(abi.RDMA_NLDEV_ATTR_NDEV_NAME, netInterface)
	if _, err := nldev.Do(abi.RDMA_NLDEV_CMD_NEWLINK, attrs); err != nil {
		e := &verbs.Error{Op: "add", Object: typ + " device " + name, Err: err}
		switch {
		case errors.Is(err, syscall.EINVAL):
			e.Hint = "the kernel may lack the module, or the interface is loopback or in use"
		case errors.Is(err, syscall.ENODEV):
			e.Hint = "no such network interface: " + netInterface
		}
		return e
	}
	return nil
}

// maxName is the length of the longest name of a device (IB_DEVICE_NAME_MAX, with its zero). Those of
// link types and network interfaces are shorter.
const maxName = 63

// checkNames refuses names that no device has. The length of an attribute has 16 bits: a name that is
// longer than that would end in others.
func checkNames(names ...string) error {
	for _, name := range names {
		if len(name) > maxName {
			return fmt.Errorf("name of %d bytes, at most %d: %w", len(name), maxName, verbs.ErrRange)
		}
	}
	return nil
}

// Delete removes a software device. Programs that have it open get errors, and Delete waits
// until they have closed it.
func (d Device) Delete() error { return d.change("delete", "", abi.RDMA_NLDEV_CMD_DELLINK, nil) }

// Rename changes the device's name. Index stays.
func (d Device) Rename(name string) error {
	if err := checkNames(name); err != nil {
		return d.error("rename", "", err)
	}
	return d.change("rename", "to "+name, abi.RDMA_NLDEV_CMD_SET, nldev.Attrs{}.String(abi.RDMA_NLDEV_ATTR_DEV_NAME, name))
}

// MoveTo moves the device to the network namespace of a file such as /run/netns/NAME or
// /proc/PID/ns/net. The system must not share devices between namespaces, see [System].
func (d Device) MoveTo(netns *os.File) error {
	err := d.change("move", "to "+netns.Name(), abi.RDMA_NLDEV_CMD_SET, nldev.Attrs{}.Uint32(abi.RDMA_NLDEV_NET_NS_FD, uint32(netns.Fd())))
	runtime.KeepAlive(netns) // or its cleanup may close the descriptor before the kernel looks it up
	return err
}

// SetAdaptiveModeration makes the kernel adapt the rate of completion events of its own CQs
// to the load, or not. It applies to CQs that are created later, and not to those of
// programs. Drivers that cannot moderate events ignore it.
func (d Device) SetAdaptiveModeration(on bool) error {
	return d.change("set adaptive moderation", "", abi.RDMA_NLDEV_CMD_SET, nldev.Attrs{}.Uint8(abi.RDMA_NLDEV_ATTR_DEV_DIM, oneIf(on)))
}

// change sends a command that has no answer.
func (d Device) change(op, object string, cmd int, attrs nldev.Attrs) error {
	if _, err := d.do(cmd, attrs); err != nil {
		return d.error(op, object, err)
	}
	return nil
}

// System has the settings of all devices (rdma-system(8)).
type System struct {
	SharedDevices  bool // every network namespace sees all devices ("netns shared"), not only its own ("exclusive")
	PrivilegedQKey bool // processes without CAP_NET_RAW may use privileged Q_Keys; since Linux 6.8
	Monitor        bool // the kernel reports changes, see [Source.Watch]; since Linux 6.12
	CopyOnFork     bool // registered memory survives fork, so that a child's writes do not touch the parent's
}

// ReadSystem returns the settings of the system.
func ReadSystem() (System, error) {
	answer, err := nldev.Do(abi.RDMA_NLDEV_CMD_SYS_GET, nil)
	if err != nil {
		return System{}, &verbs.Error{Op: "read", Object: "RDMA system settings", Err: err}
	}
	m := entry(answer.Map())
	is := func(attr int) bool { return m.int(attr) != 0 }
	return System{
		SharedDevices: is(abi.RDMA_NLDEV_SYS_ATTR_NETNS_MODE), PrivilegedQKey: is(abi.RDMA_NLDEV_SYS_ATTR_PRIVILEGED_QKEY_MODE),
		Monitor: is(abi.RDMA_NLDEV_SYS_ATTR_MONITOR_MODE), CopyOnFork: is(abi.RDMA_NLDEV_SYS_ATTR_COPY_ON_FORK),
	}, nil
}

// SetSharedDevices sets [System].SharedDevices. It fails while there are network namespaces
// besides the first.
func SetSharedDevices(on bool) error {
	return setSystem("shared devices", abi.RDMA_NLDEV_SYS_ATTR_NETNS_MODE, on)
}

// SetPrivilegedQKey sets [System].PrivilegedQKey.
func SetPrivilegedQKey(on bool) error {
	return setSystem("privileged Q_Keys", abi.RDMA_NLDEV_SYS_ATTR_PRIVILEGED_QKEY_MODE, on)
}

func setSystem(what string, attr int, on bool) error {
	if _, err := nldev.Do(abi.RDMA_NLDEV_CMD_SYS_SET, nldev.Attrs{}.Uint8(attr, oneIf(on))); err != nil {
		return &verbs.Error{Op: "set", Object: what, Err: err}
	}
	return nil
}

func oneIf(on bool) uint8 {
	if on {
		return 1
	}
	return 0
}

// AddSubdevice creates a device for subnet management (SMI) below the device, as XDR
// adapters have. Since Linux 6.11.
func (d Device) AddSubdevice(name string) error {
	if err := checkNames(name); err != nil {
		return d.error("add subdevice", "", err)
	}
	attrs := nldev.Attrs{}.String(abi.RDMA_NLDEV_ATTR_DEV_NAME, name).Uint8(abi.RDMA_NLDEV_ATTR_DEV_TYPE, abi.RDMA_DEVICE_TYPE_SMI)
	return d.change("add subdevice", name, abi.RDMA_NLDEV_CMD_NEWDEV, attrs)
}

// DeleteSubdevice removes a device that AddSubdevice created.
func (d Device) DeleteSubdevice() error {
	return d.change("delete", "subdevice", abi.RDMA_NLDEV_CMD_DELDEV, nil)
}
