package kernel

import (
	"encoding/binary"
	"syscall"

	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/soft/internal/uapi"
)

// writeMethod is a write command: of the write interface, or wrapped in the ioctl INVOKE_WRITE.
type writeMethod struct {
	request, response int                         // sizes
	run               func(command) syscall.Errno // by value, so that a doorbell allocates nothing
}

type command struct {
	file      *file
	request   []byte
	response  user
	driverIn  []byte
	driverOut user
}

func sizeOf[T any]() int {
	var v T
	return len(mmap.Bytes(&v))
}

// commands has the write commands (uverbs_def_write_intf of uverbs_cmd.c), by number.
var commands = map[uint32]writeMethod{
	abi.IB_USER_VERBS_CMD_ALLOC_PD:            write[abi.IbUverbsAllocPd, abi.IbUverbsAllocPdResp](allocPD),
	abi.IB_USER_VERBS_CMD_REG_MR:              write[abi.IbUverbsRegMr, abi.IbUverbsRegMrResp](regMR),
	abi.IB_USER_VERBS_CMD_REREG_MR:            write[abi.IbUverbsReregMr, abi.IbUverbsReregMrResp](reregMR),
	abi.IB_USER_VERBS_CMD_ALLOC_MW:            write[abi.IbUverbsAllocMw, abi.IbUverbsAllocMwResp](allocMW),
	abi.IB_USER_VERBS_CMD_CREATE_AH:           write[abi.IbUverbsCreateAh, abi.IbUverbsCreateAhResp](createAH),
	abi.IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL: write[abi.IbUverbsCreateCompChannel, abi.IbUverbsCreateCompChannelResp](createCompChannel),
	abi.IB_USER_VERBS_CMD_RESIZE_CQ:           write[abi.IbUverbsResizeCq, abi.IbUverbsResizeCqResp](resizeCQ),
	abi.IB_USER_VERBS_CMD_REQ_NOTIFY_CQ:       write[abi.IbUverbsReqNotifyCq, struct{}](reqNotifyCQ),
	abi.IB_USER_VERBS_CMD_MODIFY_QP:           write[abi.IbUverbsModifyQp, struct{}](modifyQP),
	abi.IB_USER_VERBS_CMD_QUERY_QP:            write[abi.IbUverbsQueryQp, abi.IbUverbsQueryQpResp](queryQP),
	abi.IB_USER_VERBS_CMD_POST_SEND:           {sizeOf[abi.IbUverbsPostSend](), sizeOf[abi.IbUverbsPostSendResp](), postSend},
	abi.IB_USER_VERBS_CMD_ATTACH_MCAST:        write[abi.IbUverbsAttachMcast, struct{}](attachMulticast),
	abi.IB_USER_VERBS_CMD_DETACH_MCAST:        write[abi.IbUverbsAttachMcast, struct{}](detachMulticast),
	abi.IB_USER_VERBS_CMD_MODIFY_SRQ:          write[abi.IbUverbsModifySrq, struct{}](modifySRQ),
	abi.IB_USER_VERBS_CMD_QUERY_SRQ:           write[abi.IbUverbsQuerySrq, abi.IbUverbsQuerySrqResp](querySRQ),

	// The kernel does not check the sizes of an extended command (uapi_create_write).
	extended | abi.IB_USER_VERBS_EX_CMD_QUERY_DEVICE: {run: request(queryDevice)},
}

// write is a command with a request and, unless Resp has no fields, a response.
func write[Req, Resp any](run func(command, Req) syscall.Errno) writeMethod {
	return writeMethod{sizeOf[Req](), sizeOf[Resp](), request(run)}
}

// request decodes the request. A longer one must have zeros at the end (uverbs_request).
func request[Req any](run func(command, Req) syscall.Errno) func(command) syscall.Errno {
	return func(c command) syscall.Errno {
		var req Req
		n := copy(mmap.Bytes(&req), c.request)
		for _, x := range c.request[n:] {
			if x != 0 {
				return syscall.EOPNOTSUPP
			}
		}
		return run(c, req)
	}
}

const (
	extended    = abi.IB_USER_VERBS_CMD_FLAG_EXTENDED
	commandMask = 0xff // IB_USER_VERBS_CMD_COMMAND_MASK
)

// commandOf returns a command (uapi_get_method). Those that rxe does not support, and those that
// do not exist, fail with EOPNOTSUPP.
func commandOf(number uint32) (writeMethod, syscall.Errno) {
	if number&^(extended|commandMask) != 0 {
		return writeMethod{}, syscall.EINVAL
	}
	m, ok := commands[number]
	if !ok {
		return writeMethod{}, syscall.EOPNOTSUPP
	}
	return m, 0
}

const writeHeaderSize = 8

// Write implements [host.File] (ib_uverbs_write). Drivers use it for doorbells and the like. All
// other commands come by the ioctl INVOKE_WRITE, so it takes neither extended ones nor a driver's
// part. Sizes are in words of 4 bytes.
func (f *file) Write(b []byte) (int, syscall.Errno) {
	if len(b) < writeHeaderSize {
		return 0, syscall.EINVAL
	}
	number := binary.NativeEndian.Uint32(b)
	in, out := int(binary.NativeEndian.Uint16(b[4:])), int(binary.NativeEndian.Uint16(b[6:]))
	m, errno := commandOf(number)
	if errno != 0 {
		return 0, errno
	}
	switch {
	case number&extended != 0:
		return 0, syscall.EOPNOTSUPP
	case in*4 != len(b):
		return 0, syscall.EINVAL
	case len(b) < writeHeaderSize+m.request || out*4 < m.response:
		return 0, syscall.ENOSPC
	}
	c := command{file: f, request: b[writeHeaderSize:]}
	if m.response > 0 { // the request begins with the address of the response
		c.response = user{binary.NativeEndian.Uint64(c.request), out * 4}
	}
	if errno = m.run(c); errno != 0 {
		return 0, errno
	}
	return len(b), 0
}

// user is memory of the process that a command names by its address.
type user struct {
	addr uint64
	size int
}

// read copies memory to dst, of at most u.size bytes.
func (u user) read(dst []byte) syscall.Errno {
	return uapi.Access(u.addr, len(dst), func(mem []byte) { copy(dst, mem) })
}

// write copies src to memory, as much as there is room for, and clears the rest of it.
func (u user) write(src []byte) syscall.Errno {
	return uapi.Access(u.addr, u.size, func(mem []byte) { clear(mem[copy(mem, src):]) })
}

func invokeWrite(c *call) syscall.Errno {
	m, errno := commandOf(uint32(c.constant(abi.UVERBS_ATTR_WRITE_CMD)))
	if errno != 0 {
		return errno
	}
	w := command{file: c.file, response: c.out(abi.UVERBS_ATTR_CORE_OUT), driverOut: c.out(abi.UVERBS_ATTR_UHW_OUT)}
	if w.request, errno = c.in(abi.UVERBS_ATTR_CORE_IN); errno != 0 {
		return errno
	}
	if w.driverIn, errno = c.in(abi.UVERBS_ATTR_UHW_IN); errno != 0 {
		return errno
	}
	if len(w.request) < m.request || w.response.size < m.response {
		return syscall.ENOSPC
	}
	if errno = m.run(w); errno != 0 {
		return errno
	}
	if out := c.attr(abi.UVERBS_ATTR_CORE_OUT); out != nil {
		out.setValid()
	}
	return 0
}

func respond[T any](c command, v *T) syscall.Errno { return c.response.write(mmap.Bytes(v)) }
