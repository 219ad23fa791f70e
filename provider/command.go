package provider

import (
	"encoding/binary"
	"os"
	"runtime"
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
	msg   unsafe.Pointer // pinned: what is written, or the ioctl's argument
	size  uintptr
	req   []byte // as the kernel reads it: its owner may change it between runs
	pin   runtime.Pinner
}

// newCommand encodes a command; resp, if there is one, stays in use. long
// says that the kernel does the work in the call, and does not only queue it.
func newCommand(dev Device, long bool, cmd uint32, req, resp []byte) *command {
	c := &command{fd: uintptr(dev.FD), long: long, ioctl: dev.Imported}
	if len(resp) > 0 { // where it goes is the first thing in a request
		binary.NativeEndian.PutUint64(req, mmap.Pin(&c.pin, resp))
	}
	if !dev.Imported {
		hdr := abi.IbUverbsCmdHdr{Command: cmd, OutWords: uint16(len(resp) / 4)}
		c.size = unsafe.Sizeof(hdr) + uintptr(len(req))
		hdr.InWords = uint16(c.size / 4)
		msg := append(mmap.Bytes(&hdr), req...)
		c.pin.Pin(unsafe.SliceData(msg))
		c.msg = unsafe.Pointer(unsafe.SliceData(msg))
		c.req = msg[unsafe.Sizeof(hdr):]
		return c
	}
	type message struct {
		hdr   abi.IbUverbsIoctlHdr
		attrs [3]abi.IbUverbsAttr
	}
	m := &message{hdr: abi.IbUverbsIoctlHdr{
		ObjectId: abi.UVERBS_OBJECT_DEVICE, MethodId: abi.UVERBS_METHOD_INVOKE_WRITE, DriverId: dev.Driver,
	}}
	n := 0
	add := func(id uint16, size int, data uint64) {
		m.attrs[n] = abi.IbUverbsAttr{AttrId: id, Len: uint16(size), Flags: abi.UVERBS_ATTR_F_MANDATORY}
		*m.attrs[n].Data() = data
		n++
	}
	add(abi.UVERBS_ATTR_WRITE_CMD, 8, uint64(cmd))
	add(abi.UVERBS_ATTR_CORE_IN, len(req), mmap.Pin(&c.pin, req))
	if len(resp) > 0 {
		add(abi.UVERBS_ATTR_CORE_OUT, len(resp), mmap.Pin(&c.pin, resp))
	}
	m.hdr.NumAttrs = uint16(n)
	m.hdr.Length = uint16(unsafe.Sizeof(m.hdr) + uintptr(n)*unsafe.Sizeof(m.attrs[0]))
	c.pin.Pin(m)
	c.msg = unsafe.Pointer(m)
	c.req = req
	return c
}

func (c *command) run() error {
	if muted(c) {
		return nil
	}
	trap, a2, a3 := uintptr(unix.SYS_WRITE), uintptr(c.msg), c.size
	if c.ioctl {
		trap, a2, a3 = unix.SYS_IOCTL, abi.RDMA_VERBS_IOCTL, uintptr(c.msg)
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

func (c *command) close() { c.pin.Unpin() }
