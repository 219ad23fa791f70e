package uverbs

import (
	"encoding/binary"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
)

// Index returns the kernel's number of the device, which stays the same when the device
// is renamed and is not used again for another (ibv_get_device_index(3)).
func (d Device) Index() (int, error) {
	indices, err := deviceIndices()
	if err != nil {
		return 0, &verbs.Error{Op: "find", Object: "index", Device: d.Name, Err: err}
	}
	i, ok := indices[d.Name]
	if !ok {
		return 0, &verbs.Error{Op: "find", Object: "index", Device: d.Name, Err: verbs.ErrNoDevice}
	}
	return i, nil
}

// deviceIndices queries the indices over netlink, which alone has them.
func deviceIndices() (map[string]int, error) {
	indices := map[string]int{}
	return indices, netlinkDump(abi.RDMA_NLDEV_CMD_GET, nil, collectIndices(indices))
}

// collectIndices returns a function for netlinkDump that adds the index of a device.
func collectIndices(indices map[string]int) func(attrs map[uint16][]byte) {
	return func(attrs map[uint16][]byte) {
		name, index := attrs[abi.RDMA_NLDEV_ATTR_DEV_NAME], attrs[abi.RDMA_NLDEV_ATTR_DEV_INDEX]
		if len(name) > 0 && len(index) == 4 {
			indices[unix.ByteSliceToString(name)] = int(binary.NativeEndian.Uint32(index))
		}
	}
}

// netlinkDump sends a command of RDMA's netlink family, with attributes, and calls each
// with the attributes of each part of the answer.
func netlinkDump(cmd uint16, attrs []byte, each func(attrs map[uint16][]byte)) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_RDMA)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	req := unix.NlMsghdr{
		Len:   uint32(unix.SizeofNlMsghdr + len(attrs)),
		Type:  abi.RDMA_NL_NLDEV<<10 | cmd, // RDMA_NL_GET_TYPE
		Flags: unix.NLM_F_REQUEST | unix.NLM_F_DUMP,
	}
	if err := unix.Sendto(fd, append(mmap.Bytes(&req), attrs...), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	buf := make([]byte, 1<<15) // more than the kernel puts into one answer
	for {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		if done, err := parseDumpReply(buf[:n], each); done || err != nil {
			return err
		}
	}
}

// parseDumpReply calls each with the parts of one datagram, and reports whether it is the
// last.
func parseDumpReply(b []byte, each func(attrs map[uint16][]byte)) (done bool, err error) {
	messages, err := syscall.ParseNetlinkMessage(b)
	if err != nil {
		return false, err
	}
	for _, m := range messages {
		switch m.Header.Type {
		case unix.NLMSG_DONE:
			return true, nil
		case unix.NLMSG_ERROR:
			if len(m.Data) < 4 {
				return false, unix.EBADMSG
			}
			return false, unix.Errno(-int32(binary.NativeEndian.Uint32(m.Data)))
		}
		each(parseNetlinkAttrs(m.Data))
	}
	return false, nil
}

// parseNetlinkAttrs splits a message into its attributes.
func parseNetlinkAttrs(b []byte) map[uint16][]byte {
	attrs := map[uint16][]byte{}
	for len(b) >= unix.SizeofNlAttr {
		size, typ := int(binary.NativeEndian.Uint16(b)), binary.NativeEndian.Uint16(b[2:])
		if size < unix.SizeofNlAttr || size > len(b) {
			break
		}
		attrs[typ&^unix.NLA_F_NESTED] = b[unix.SizeofNlAttr:size]
		b = b[min((size+3)&^3, len(b)):] // they start at multiples of 4
	}
	return attrs
}
