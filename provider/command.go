package provider

import (
	"encoding/binary"
	"os"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/host"
	"github.com/goverbs/verbs/mmap"
)

// command is a write command of the data path, encoded once and run without allocating. It is run
// by write, which costs a quarter less than the ioctl that wraps it. But the kernel refuses writes
// from threads whose credentials are not those with which the file was opened (ib_safe_file_access
// compares pointers): threads of a process that imported the file, and all threads after calls such
// as syscall.Setuid. After the first refusal the command is run by ioctl.
type command struct {
	file     host.Handle
	blocking bool
	useIoctl atomic.Bool
	msg      []byte // the ioctl's argument, the written command, the response; nil when closed
	written  []byte // the command in msg
	req      []byte // as the kernel reads it; may be changed between runs
	resp     []byte
}

// invocationSize is the offset in msg of the written command.
const invocationSize = int(unsafe.Sizeof(invocation{}))

// newCommand encodes a command with a response of respSize bytes. blocking reports
// whether the kernel does the work in the call and does not only queue it.
func newCommand(dev *Device, blocking bool, cmd uint32, req []byte, respSize int) (*command, error) {
	const headSize = invocationSize + int(unsafe.Sizeof(abi.IbUverbsCmdHdr{}))
	end := headSize + len(req)
	respOffset := (end + 7) &^ 7
	msg, err := mmap.Alloc(respOffset + respSize)
	if err != nil {
		return nil, err
	}
	hdr := abi.IbUverbsCmdHdr{Command: cmd, InWords: uint16((int(unsafe.Sizeof(abi.IbUverbsCmdHdr{})) + len(req)) / 4), OutWords: uint16(respSize / 4)}
	copy(msg[invocationSize:], mmap.Bytes(&hdr))
	c := &command{file: host.HandleOf(dev.FD), blocking: blocking, msg: msg, written: msg[invocationSize:end], req: msg[headSize:end], resp: msg[respOffset:]}
	copy(c.req, req)
	m := invocation{hdr: abi.IbUverbsIoctlHdr{ObjectId: abi.UVERBS_OBJECT_DEVICE, MethodId: abi.UVERBS_METHOD_INVOKE_WRITE, DriverId: dev.Driver}}
	m.add(abi.UVERBS_ATTR_WRITE_CMD, 8, uint64(cmd))
	m.add(abi.UVERBS_ATTR_CORE_IN, len(req), mmap.Addr(c.req))
	if respSize > 0 {
		m.add(abi.UVERBS_ATTR_CORE_OUT, respSize, mmap.Addr(c.resp))
		// The first field of a write's request is the address of the response.
		binary.NativeEndian.PutUint64(c.req, mmap.Addr(c.resp))
	}
	copy(msg, mmap.Bytes(&m))
	return c, nil
}

// invocation is the ioctl that runs a write command.
type invocation struct {
	hdr   abi.IbUverbsIoctlHdr
	attrs [3]abi.IbUverbsAttr
}

func (m *invocation) add(id uint16, size int, data uint64) {
	a := &m.attrs[m.hdr.NumAttrs]
	*a = abi.IbUverbsAttr{AttrId: id, Len: uint16(size), Flags: abi.UVERBS_ATTR_F_MANDATORY}
	*a.Data() = data
	m.hdr.NumAttrs++
	m.hdr.Length = uint16(unsafe.Sizeof(m.hdr) + uintptr(m.hdr.NumAttrs)*unsafe.Sizeof(*a))
}

func (c *command) run() error {
	if !c.useIoctl.Load() {
		switch errno := c.write(); errno {
		case 0:
			return nil
		case syscall.EACCES:
			c.useIoctl.Store(true)
		default:
			return sysError("write", errno)
		}
	}
	return c.runIoctl()
}

func sysError(call string, errno syscall.Errno) error {
	if errno == 0 {
		return nil
	}
	return os.NewSyscallError(call, errno)
}

func (c *command) runIoctl() error {
	if len(c.req) <= 8 { // the ioctl takes such a short request in the attribute itself
		copy(mmap.Bytes((*invocation)(unsafe.Pointer(unsafe.SliceData(c.msg))).attrs[1].Data()), c.req)
	}
	return sysError("ioctl", c.ioctl())
}

// close releases the command, if there is one, and may be called again.
func (c *command) close() {
	if c != nil && c.msg != nil {
		mmap.Free(c.msg)
		c.msg = nil
	}
}
