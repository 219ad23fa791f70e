package sys

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
)

// File is an open /dev/infiniband/uverbsN. It does not know when it is
// closed: its owner sees to it that no call is under way then.
type File struct {
	FD     int
	Driver uint32 // enum rdma_driver_id, which every ioctl must name
}

// Call is one ioctl method on one kind of object, with its attributes
// (Documentation/infiniband/user_verbs.rst; uAPI rdma_user_ioctl_cmds.h).
type Call struct {
	Object uint16
	Method uint16
	Attrs  []Attr
}

// Attr is one attribute of a [Call]. A zero Attr is left out.
type Attr struct {
	set   bool
	id    uint16
	flags uint16
	len   uint16
	data  uint64 // the value itself, unless buf or ret is set
	buf   []byte // what the kernel reads
	out   bool   // or writes
	ret   *uint32
}

// In passes *v. Values of up to 8 bytes travel in the attribute itself.
func In[T any](id uint16, v *T) Attr { return InBytes(id, mmap.Bytes(v)) }

// InBytes passes b; no attribute if b is empty.
func InBytes(id uint16, b []byte) Attr {
	if len(b) == 0 {
		return Attr{}
	}
	a := Attr{set: true, id: id, flags: abi.UVERBS_ATTR_F_MANDATORY, len: uint16(len(b))}
	if len(b) <= 8 {
		copy(mmap.Bytes(&a.data), b)
	} else {
		a.buf = b
	}
	return a
}

// Out lets the kernel fill *v.
func Out[T any](id uint16, v *T) Attr { return OutBytes(id, mmap.Bytes(v)) }

// OutBytes lets the kernel fill b; no attribute if b is empty.
func OutBytes(id uint16, b []byte) Attr {
	if len(b) == 0 {
		return Attr{}
	}
	return Attr{set: true, id: id, flags: abi.UVERBS_ATTR_F_MANDATORY, len: uint16(len(b)), buf: b, out: true}
}

// Const passes a constant or a set of flags.
func Const(id uint16, v uint64) Attr {
	return Attr{set: true, id: id, flags: abi.UVERBS_ATTR_F_MANDATORY, len: 8, data: v}
}

// Handle names an existing object; FD names one that is a file.
func Handle(id uint16, handle uint32) Attr {
	return Attr{set: true, id: id, flags: abi.UVERBS_ATTR_F_MANDATORY, data: uint64(handle)}
}

// FD names an existing object by its file descriptor.
func FD(id uint16, fd int) Attr { return Handle(id, uint32(fd)) }

// New receives the handle, or file descriptor, of a new object.
func New(id uint16, handle *uint32) Attr {
	return Attr{set: true, id: id, flags: abi.UVERBS_ATTR_F_MANDATORY, ret: handle}
}

// If leaves the attribute out unless cond holds.
func (a Attr) If(cond bool) Attr {
	if !cond {
		return Attr{}
	}
	return a
}

// Optional lets kernels that do not know the attribute ignore it.
func (a Attr) Optional() Attr {
	a.flags &^= abi.UVERBS_ATTR_F_MANDATORY
	return a
}

const (
	headerSize = int(unsafe.Sizeof(abi.IbUverbsIoctlHdr{}))
	attrSize   = int(unsafe.Sizeof(abi.IbUverbsAttr{}))
)

// Ioctl runs c. The message, and behind it what its attributes point to, are
// copied to where the kernel reads and writes them, and back.
func (f File) Ioctl(c Call) error {
	n, size := 0, headerSize
	for i := range c.Attrs {
		if a := &c.Attrs[i]; a.set {
			n++
			size += attrSize + aligned(a.buf)
		}
	}
	scratch, err := mmap.Scratch(size)
	if err != nil {
		return err
	}
	defer mmap.FreeScratch(scratch)
	mem := scratch.Bytes()
	copy(mem, mmap.Bytes(&abi.IbUverbsIoctlHdr{
		Length:   uint16(headerSize + n*attrSize),
		ObjectId: c.Object,
		MethodId: c.Method,
		NumAttrs: uint16(n),
		DriverId: f.Driver,
	}))
	at, off := headerSize, headerSize+n*attrSize
	for i := range c.Attrs {
		a := &c.Attrs[i]
		if !a.set {
			continue
		}
		attr := abi.IbUverbsAttr{AttrId: a.id, Len: a.len, Flags: a.flags}
		*attr.Data() = a.data
		if a.buf != nil {
			*attr.Data() = scratch.Addr() + uint64(off)
			copy(mem[off:], a.buf)
			off += aligned(a.buf)
		}
		copy(mem[at:], mmap.Bytes(&attr))
		at += attrSize
	}
	if err := ioctl(f.FD, abi.RDMA_VERBS_IOCTL, scratch.Addr()); err != nil {
		return err
	}
	at, off = headerSize, headerSize+n*attrSize
	for i := range c.Attrs {
		a := &c.Attrs[i]
		if !a.set {
			continue
		}
		if a.out {
			copy(a.buf, mem[off:])
		}
		if a.ret != nil {
			var attr abi.IbUverbsAttr
			copy(mmap.Bytes(&attr), mem[at:])
			*a.ret = uint32(*attr.Data())
		}
		off += aligned(a.buf)
		at += attrSize
	}
	return nil
}

// aligned is the room that b takes.
func aligned(b []byte) int { return (len(b) + 7) &^ 7 }

func ioctl(fd int, req uint, arg uint64) error {
	for {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(req), uintptr(arg))
		switch errno {
		case 0:
			return nil
		case unix.EINTR:
			continue
		}
		return errno
	}
}

// Invoke runs a write command (IB_USER_VERBS_CMD_*, or IB_USER_VERBS_EX_CMD_*
// with the extended flag) with its request and response structures and the
// driver's parts. The response field inside a request stays unset.
func (f File) Invoke(cmd uint32, req, resp, driverIn, driverOut []byte) error {
	return f.Ioctl(Call{abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_INVOKE_WRITE, []Attr{
		Const(abi.UVERBS_ATTR_WRITE_CMD, uint64(cmd)),
		InBytes(abi.UVERBS_ATTR_CORE_IN, req),
		OutBytes(abi.UVERBS_ATTR_CORE_OUT, resp),
		InBytes(abi.UVERBS_ATTR_UHW_IN, driverIn),
		OutBytes(abi.UVERBS_ATTR_UHW_OUT, driverOut),
	}})
}
