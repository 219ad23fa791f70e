package ucma

import (
	"encoding/binary"
	"slices"
	"syscall"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/attr"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/soft/internal/uapi"
)

// maxOption is the most bytes of an option (KMALLOC_MAX_SIZE).
const maxOption = 4 << 20

func (c *context) setOption(in *abi.RdmaUcmSetOption, _ int) syscall.Errno {
	if in.Optlen > maxOption {
		return syscall.EINVAL
	}
	value := make([]byte, in.Optlen)
	if errno := uapi.Access(in.Optval, len(value), func(mem []byte) { copy(value, mem) }); errno != 0 {
		return errno
	}
	switch {
	case in.Level == abi.RDMA_OPTION_ID:
		return c.id.setOption(in.Optname, value)
	case in.Level == abi.RDMA_OPTION_IB && in.Optname == abi.RDMA_OPTION_IB_PATH:
		return c.id.setPath(value)
	}
	return syscall.ENOSYS
}

// setOption sets an option of the ID (ucma_set_option_id).
func (i *id) setOption(name uint32, value []byte) syscall.Errno {
	size := 1
	switch name {
	case abi.RDMA_OPTION_ID_REUSEADDR, abi.RDMA_OPTION_ID_AFONLY:
		size = 4
	case abi.RDMA_OPTION_ID_TOS, abi.RDMA_OPTION_ID_ACK_TIMEOUT:
	default:
		return syscall.ENOSYS
	}
	if len(value) != size {
		return syscall.EINVAL
	}
	on := size == 4 && binary.NativeEndian.Uint32(value) != 0
	switch name {
	case abi.RDMA_OPTION_ID_TOS:
		i.tos = option[uint8]{value[0], true}
	case abi.RDMA_OPTION_ID_ACK_TIMEOUT:
		if i.typ != verbs.RC {
			return syscall.EINVAL
		}
		i.ackTimeout = option[uint8]{value[0], true}
	case abi.RDMA_OPTION_ID_REUSEADDR:
		if (!on || i.state == listening) && i.state != idle {
			return syscall.EINVAL
		}
		i.reuse = on
	case abi.RDMA_OPTION_ID_AFONLY:
		if i.state != idle && i.state != bound {
			return syscall.EINVAL
		}
		i.afOnly = option[bool]{on, true}
	}
	return 0
}

// pathSize is the size of abi.IbPathRecData.
const pathSize = 72

// setPath sets the path instead of resolving one. routeResolved follows (ucma_set_ib_path).
func (i *id) setPath(value []byte) syscall.Errno {
	if len(value)%pathSize != 0 {
		return syscall.EINVAL
	}
	for record := range slices.Chunk(value, pathSize) {
		data := decode[abi.IbPathRecData](record)
		if data.Flags != abi.IB_PATH_GMP|abi.IB_PATH_PRIMARY|abi.IB_PATH_BIDIRECTIONAL {
			continue
		}
		switch {
		case i.device == nil || i.state != addrKnown:
			return syscall.EINVAL
		case !i.hasRoute():
			return syscall.ENODEV
		}
		i.path = attr.UnpackPath(mmap.Bytes(&data.PathRec))
		i.state = routeKnown
		i.handler(i, &event{typ: routeResolved})
		return 0
	}
	return syscall.EINVAL
}
