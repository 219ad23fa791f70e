package uverbs

import (
	"cmp"
	"fmt"
	"strings"
	"syscall"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/sys"
	"github.com/goverbs/verbs/provider"
)

// kernelDrivers contains the names of enum rdma_driver_id, for errors.
var kernelDrivers = map[uint32]string{
	abi.RDMA_DRIVER_MLX5: "mlx5", abi.RDMA_DRIVER_MLX4: "mlx4", abi.RDMA_DRIVER_CXGB3: "cxgb3",
	abi.RDMA_DRIVER_CXGB4: "cxgb4", abi.RDMA_DRIVER_MTHCA: "mthca", abi.RDMA_DRIVER_BNXT_RE: "bnxt_re",
	abi.RDMA_DRIVER_OCRDMA: "ocrdma", abi.RDMA_DRIVER_NES: "nes", abi.RDMA_DRIVER_IRDMA: "irdma",
	abi.RDMA_DRIVER_VMW_PVRDMA: "vmw_pvrdma", abi.RDMA_DRIVER_QEDR: "qedr", abi.RDMA_DRIVER_HNS: "hns",
	abi.RDMA_DRIVER_USNIC: "usnic", abi.RDMA_DRIVER_RXE: "rxe", abi.RDMA_DRIVER_HFI1: "hfi1",
	abi.RDMA_DRIVER_QIB: "qib", abi.RDMA_DRIVER_EFA: "efa", abi.RDMA_DRIVER_SIW: "siw",
	abi.RDMA_DRIVER_ERDMA: "erdma", abi.RDMA_DRIVER_MANA: "mana", abi.RDMA_DRIVER_IONIC: "ionic",
}

// maxDriver exceeds every rdma_driver_id, with room for new ones.
const maxDriver = 64

// findDriver returns the driver for an open device file.
func findDriver(fd int) (provider.Driver, error) {
	all := drivers()
	names := make([]string, len(all))
	for i, d := range all {
		if hasDriverID(fd, d.ID()) {
			return d, nil
		}
		names[i] = d.Name()
	}
	which := "unknown"
	for id := range uint32(maxDriver) {
		if hasDriverID(fd, id) {
			which = fmt.Sprintf("%d (%s)", id, kernelDrivers[id])
			break
		}
	}
	have := "no drivers"
	if len(names) > 0 {
		have = "drivers for " + strings.Join(names, ", ")
	}
	return nil, fmt.Errorf("%w: its rdma_driver_id is %s, there are %s", verbs.ErrNoDriver, which, have)
}

// hasDriverID reports whether an open device file belongs to the kernel driver with an ID.
// Every ioctl names the driver that it is for. The kernel refuses an ioctl for another
// driver with EINVAL before it checks anything else, and a method that does not exist
// with EPROTONOSUPPORT (ib_uverbs_cmd_verbs).
func hasDriverID(fd int, id uint32) bool {
	const noMethod = 0xfff
	return sys.File{FD: fd, Driver: id}.Ioctl(sys.Call{Object: abi.UVERBS_OBJECT_DEVICE, Method: noMethod}) != syscall.EINVAL
}

// getContext makes the kernel's context of the file and queries the attributes that drivers need.
func (c *contextCore) getContext(uhw provider.UHW) error {
	err := c.file.Ioctl(sys.Call{Object: abi.UVERBS_OBJECT_DEVICE, Method: abi.UVERBS_METHOD_GET_CONTEXT, Attrs: []sys.Attr{
		sys.Out(abi.UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS, &c.vectors),
		sys.Out(abi.UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT, &c.dev.CoreSupport),
		sys.InBytes(abi.UVERBS_ATTR_UHW_IN, uhw.In),
		sys.OutBytes(abi.UVERBS_ATTR_UHW_OUT, uhw.Out),
	}})
	if err != nil {
		return err
	}
	return c.queryAttrs()
}

// queryContext queries what getContext returns, for a file that already has a context.
func (c *contextCore) queryContext(uhw provider.UHW) error {
	return c.file.Ioctl(sys.Call{Object: abi.UVERBS_OBJECT_DEVICE, Method: abi.UVERBS_METHOD_QUERY_CONTEXT, Attrs: []sys.Attr{
		sys.Out(abi.UVERBS_ATTR_QUERY_CONTEXT_NUM_COMP_VECTORS, &c.vectors),
		sys.Out(abi.UVERBS_ATTR_QUERY_CONTEXT_CORE_SUPPORT, &c.dev.CoreSupport),
		sys.OutBytes(cmp.Or(uhw.OutAttr, abi.UVERBS_ATTR_UHW_OUT), uhw.Out),
	}})
}

// queryAttrs queries the attributes of the device and of port 1 for the driver.
func (c *contextCore) queryAttrs() error {
	attr, err := c.queryDevice()
	if err != nil {
		return fmt.Errorf("query device: %w", err)
	}
	port, err := c.queryPort(1)
	if err != nil {
		return fmt.Errorf("query port: %w", err)
	}
	c.dev.Attr, c.dev.Port = *attr, *port
	return nil
}

// invokeFunc returns a function that runs a verb of the write interface once, with the
// driver's part, and sets created if it succeeds.
func (c *contextCore) invokeFunc(cmd uint32, req, resp []byte, created *bool) func(provider.UHW) error {
	return func(uhw provider.UHW) error {
		err := c.file.Invoke(cmd, req, resp, uhw.In, uhw.Out)
		*created = err == nil
		return err
	}
}

// withRelease returns a function that destroys an object and then releases the driver's part of it.
func withRelease(destroy func() error, part provider.Object) func() error {
	if part == nil {
		return destroy
	}
	return func() error {
		if err := destroy(); err != nil {
			return err
		}
		part.Release()
		return nil
	}
}
