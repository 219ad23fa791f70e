package cm

import (
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
)

// node is rdma_cm's device.
const node = "/dev/infiniband/rdma_cm"

// write sends a command on fd.
func write(fd int, cmd uint32, req []byte, respLen int) error {
	hdr := abi.RdmaUcmCmdHdr{Cmd: cmd, In: uint16(len(req)), Out: uint16(respLen)}
	msg := append(append(make([]byte, 0, 1024), mmap.Bytes(&hdr)...), req...)
	for {
		if _, err := unix.Write(fd, msg); err != unix.EINTR {
			return public(err)
		}
	}
}

// enotsupp is the kernel's own EOPNOTSUPP, which no program should see but
// those that join an IPv6 group on RoCE do.
const enotsupp = unix.Errno(524)

func public(err error) error {
	if err == enotsupp {
		return unix.EOPNOTSUPP
	}
	return err
}

// command runs a command that answers nothing.
func command[Req any](c *Channel, cmd uint32, req Req) error {
	return c.file.Control(func(fd int) error { return write(fd, cmd, mmap.Bytes(&req), 0) })
}

// query runs a command that answers a Resp; response is the field of req that
// says where to.
func query[Resp, Req any](c *Channel, cmd uint32, req *Req, response *uint64) (*Resp, error) {
	var pin runtime.Pinner
	defer pin.Unpin()
	resp := new(Resp)
	*response = mmap.Pin(&pin, mmap.Bytes(resp))
	err := c.file.Control(func(fd int) error {
		return write(fd, cmd, mmap.Bytes(req), len(mmap.Bytes(resp)))
	})
	return resp, err
}
