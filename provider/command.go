package provider

import (
	"encoding/binary"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
)

// command is a write command of the data path, encoded once and run without
// allocating. Such commands go by write, the shorter way; but the kernel takes
// that only from the process that opened the file (ib_safe_file_access), so
// who got it from another wraps them in an ioctl.
type command struct {
	fd    uintptr
	long  bool
	ioctl bool
	msg   *mmap.Cell // what is written, or the ioctl's argument; nil when closed
	size  uintptr
	req   []byte // as the kernel reads it: its owner may change it between runs
	resp  []byte
}

// newCommand encodes a command with an answer of respSize bytes. long says that
// the kernel does the work in the call, and does not only queue it.
func newCommand(dev Device, long bool, cmd uint32, req []byte, respSize int) (*command, error) {
	msg, err := mmap.NewCell()
	if err != nil {
		return nil, err
	}
	c := &command{fd: uintptr(dev.FD), long: long, ioctl: dev.Imported, msg: msg}
	head := int(unsafe.Sizeof(abi.IbUverbsCmdHdr{}))
	if c.ioctl {
		head = int(unsafe.Sizeof(invocation{}))
	}
	size := head + len(req)
	c.size = uintptr(size)
	answer := (size + 7) &^ 7
	c.req, c.resp = msg[head:size], msg[answer:][:respSize]
	copy(c.req, req)
	if c.ioctl {
		var m invocation
		m.hdr = abi.IbUverbsIoctlHdr{ObjectId: abi.UVERBS_OBJECT_DEVICE, MethodId: abi.UVERBS_METHOD_INVOKE_WRITE, DriverId: dev.Driver}
		m.add(abi.UVERBS_ATTR_WRITE_CMD, 8, uint64(cmd))
		m.add(abi.UVERBS_ATTR_CORE_IN, len(req), msg.Addr()+uint64(head))
		if respSize > 0 {
			m.add(abi.UVERBS_ATTR_CORE_OUT, respSize, msg.Addr()+uint64(answer))
		}
		copy(msg[:], mmap.Bytes(&m))
		return c, nil
	}
	copy(msg[:], mmap.Bytes(&abi.IbUverbsCmdHdr{Command: cmd, InWords: uint16(size / 4), OutWords: uint16(respSize / 4)}))
	if respSize > 0 { // where it goes is the first thing in a request
		binary.NativeEndian.PutUint64(c.req, msg.Addr()+uint64(answer))
	}
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
	if muted(c) {
		return nil
	}
	trap, a2, a3 := uintptr(unix.SYS_WRITE), uintptr(unsafe.Pointer(c.msg)), c.size
	if c.ioctl {
		trap, a2, a3 = unix.SYS_IOCTL, abi.RDMA_VERBS_IOCTL, uintptr(unsafe.Pointer(c.msg))
	}
	for {
		// A command that only queues work is not worth telling the scheduler
		// of: RawSyscall costs less (BenchmarkDoorbell in package uverbs). One
		// in which the kernel does the work is: it costs little then
		// (BenchmarkWrite shows no difference on siw), and spares others the
		// wait, the garbage collector among them.
		var errno unix.Errno
		if c.long {
			_, _, errno = unix.Syscall(trap, c.fd, a2, a3)
		} else {
			_, _, errno = unix.RawSyscall(trap, c.fd, a2, a3)
		}
		switch errno {
		case 0:
			return nil
		case unix.EINTR:
			continue
		}
		return os.NewSyscallError("write", errno)
	}
}

// close releases the command, if there is one, and may be called again.
func (c *command) close() {
	if c != nil && c.msg != nil {
		mmap.FreeCell(c.msg)
		c.msg = nil
	}
}
