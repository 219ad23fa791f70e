package sys

import (
	"fmt"
	"syscall"
	"unsafe"

	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/host"
	"github.com/goverbs/verbs/mmap"
)

// File is an open /dev/infiniband/uverbsN. It does not track whether it is
// closed: its owner must not close it during a call.
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
	id, flags, len uint16
	kind           kind
	data           uint64 // if kind is value
	p              *byte  // to memory, otherwise
}

// mandatory returns an attribute that the kernel must know.
func mandatory(id uint16, length int, k kind) Attr {
	return Attr{id: id, flags: abi.UVERBS_ATTR_F_MANDATORY, len: uint16(length), kind: k}
}

type kind uint8

const (
	absent   kind = iota
	value         // in the attribute itself
	in            // memory that the kernel reads
	out           // memory that the kernel writes
	returned      // a uint32 for the value that the kernel puts into the attribute
	tooLong       // memory of more than MaxAttr bytes
)

// MaxAttr is the most bytes that an attribute can pass: its length has 16 bits. Ioctl
// fails with E2BIG if there are more.
const MaxAttr = 1<<16 - 1

// memory returns the caller's memory that is copied with the message, or nil.
func (a *Attr) memory() []byte {
	if a.kind != in && a.kind != out {
		return nil
	}
	return unsafe.Slice(a.p, a.len)
}

// In passes *v. Values of up to 8 bytes are in the attribute itself.
func In[T any](id uint16, v *T) Attr { return InBytes(id, mmap.Bytes(v)) }

// InBytes passes b. The attribute is left out if b is empty.
func InBytes(id uint16, b []byte) Attr {
	switch {
	case len(b) == 0:
		return Attr{}
	case len(b) > 8:
		return memoryAttr(id, b, in)
	}
	a := mandatory(id, len(b), value)
	copy(mmap.Bytes(&a.data), b)
	return a
}

// Out lets the kernel fill *v.
func Out[T any](id uint16, v *T) Attr { return OutBytes(id, mmap.Bytes(v)) }

// OutBytes lets the kernel fill b. The attribute is left out if b is empty.
func OutBytes(id uint16, b []byte) Attr {
	if len(b) == 0 {
		return Attr{}
	}
	return memoryAttr(id, b, out)
}

func memoryAttr(id uint16, b []byte, k kind) Attr {
	if len(b) > MaxAttr {
		return mandatory(id, 0, tooLong)
	}
	a := mandatory(id, len(b), k)
	a.p = unsafe.SliceData(b)
	return a
}

// Const passes a constant or a set of flags.
func Const(id uint16, v uint64) Attr {
	a := mandatory(id, 8, value)
	a.data = v
	return a
}

// Handle names an existing object by its handle.
func Handle(id uint16, handle uint32) Attr {
	a := mandatory(id, 0, value)
	a.data = uint64(handle)
	return a
}

// FD names an existing object by its file descriptor.
func FD(id uint16, fd int) Attr { return Handle(id, uint32(fd)) }

// New receives the handle, or file descriptor, of a new object.
func New(id uint16, handle *uint32) Attr {
	a := mandatory(id, 0, returned)
	a.p = unsafe.SliceData(mmap.Bytes(handle))
	return a
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

// Ioctl runs c. It copies the message and the memory of its attributes to a buffer
// for the kernel, and the results back.
func (f File) Ioctl(c Call) error {
	n, size := 0, headerSize
	for i := range c.Attrs {
		a := &c.Attrs[i]
		switch a.kind {
		case absent:
			continue
		case tooLong:
			return fmt.Errorf("attribute %#x of more than %d bytes: %w", a.id, MaxAttr, syscall.E2BIG)
		}
		n++
		size += attrSize + aligned(a.memory())
	}
	mem, err := mmap.Alloc(size)
	if err != nil {
		return err
	}
	defer mmap.Free(mem)
	mmap.Slice[abi.IbUverbsIoctlHdr](mem, 0, 1)[0] = abi.IbUverbsIoctlHdr{
		Length:   uint16(headerSize + n*attrSize),
		ObjectId: c.Object,
		MethodId: c.Method,
		NumAttrs: uint16(n),
		DriverId: f.Driver,
	}
	attrs := mmap.Slice[abi.IbUverbsAttr](mem, headerSize, n)
	off, k := headerSize+n*attrSize, 0
	for i := range c.Attrs {
		a := &c.Attrs[i]
		if a.kind == absent {
			continue
		}
		attr := &attrs[k]
		k++
		attr.AttrId, attr.Len, attr.Flags, attr.AttrData = a.id, a.len, a.flags, abi.IbUverbsAttrAttrData{}
		*attr.Data() = a.data
		if b := a.memory(); b != nil {
			*attr.Data() = mmap.Addr(mem) + uint64(off)
			copy(mem[off:], b)
			off += aligned(b)
		}
	}
	if err := ioctl(f.FD, mem[:headerSize+n*attrSize]); err != nil {
		return err
	}
	off, k = headerSize+n*attrSize, 0
	for i := range c.Attrs {
		a := &c.Attrs[i]
		switch a.kind {
		case absent:
			continue
		case out:
			copy(a.memory(), mem[off:])
		case returned:
			handle := uint32(*attrs[k].Data())
			copy(unsafe.Slice(a.p, 4), mmap.Bytes(&handle))
		}
		off += aligned(a.memory())
		k++
	}
	return nil
}

// aligned returns the size of b in the buffer.
func aligned(b []byte) int { return (len(b) + 7) &^ 7 }

func ioctl(fd int, msg []byte) error {
	for {
		switch errno := host.Ioctl(fd, abi.RDMA_VERBS_IOCTL, msg); errno {
		case 0:
			return nil
		case syscall.EINTR:
			continue
		default:
			return errno
		}
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
