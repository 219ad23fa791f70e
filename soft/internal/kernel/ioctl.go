package kernel

import (
	"encoding/binary"
	"maps"
	"syscall"

	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
)

type method struct {
	specs []spec
	run   func(*call) syscall.Errno
}

type methodID struct{ object, method uint16 }

// spec describes an attribute of a method, as the kernel's UVERBS_ATTR_* macros do.
type spec struct {
	id       uint16
	kind     attrKind
	size     int // of bytesIn and bytesOut; 0 is any size
	optional bool
}

type attrKind int

const (
	bytesIn   attrKind = iota
	bytesOut           // at least size bytes are given for constants and structures
	constIn            // 8 bytes
	handleIn           // of an object, or a descriptor
	handleOut          // of a new object
)

// methods contains the methods that a device has (uverbs_std_types_*.c). Methods of objects that
// rxe does not support do not exist.
var methods = merged(deviceMethods, destroyMethods, mrMethods, cqMethods, qpMethods, srqMethods)

func merged(all ...map[methodID]method) map[methodID]method {
	m := map[methodID]method{}
	for _, x := range all {
		maps.Copy(m, x)
	}
	return m
}

// specsUHW are the attributes of the driver's part.
var specsUHW = []spec{
	{id: abi.UVERBS_ATTR_UHW_IN, kind: bytesIn, optional: true},
	{id: abi.UVERBS_ATTR_UHW_OUT, kind: bytesOut, optional: true},
}

func withUHW(specs ...spec) []spec { return append(specs, specsUHW...) }

// attrBytes is an attribute in the message: struct ib_uverbs_attr.
type attrBytes []byte

const (
	headerSize = 24
	attrSize   = 16
)

func (a attrBytes) id() uint16       { return binary.NativeEndian.Uint16(a) }
func (a attrBytes) size() int        { return int(binary.NativeEndian.Uint16(a[2:])) }
func (a attrBytes) flags() uint16    { return binary.NativeEndian.Uint16(a[4:]) }
func (a attrBytes) reserved() uint16 { return binary.NativeEndian.Uint16(a[6:]) }
func (a attrBytes) data() uint64     { return binary.NativeEndian.Uint64(a[8:]) }
func (a attrBytes) setData(v uint64) { binary.NativeEndian.PutUint64(a[8:], v) }
func (a attrBytes) setValid() {
	binary.NativeEndian.PutUint16(a[4:], a.flags()|abi.UVERBS_ATTR_F_VALID_OUTPUT)
}

type call struct {
	file  *file
	attrs []attrBytes // those that the method knows
}

// Ioctl implements [host.File] (ib_uverbs_ioctl).
func (f *file) Ioctl(request uint32, msg []byte) syscall.Errno {
	if request != abi.RDMA_VERBS_IOCTL {
		return syscall.ENOTTY
	}
	if len(msg) < headerSize {
		return syscall.EFAULT
	}
	var hdr abi.IbUverbsIoctlHdr
	copy(mmap.Bytes(&hdr), msg)
	size := headerSize + attrSize*int(hdr.NumAttrs)
	switch {
	case int(hdr.Length) != size || size > 4096:
		return syscall.EINVAL
	case len(msg) < size:
		return syscall.EFAULT
	case hdr.Reserved1 != 0 || hdr.Reserved2 != 0:
		return syscall.EPROTONOSUPPORT
	case hdr.DriverId != abi.RDMA_DRIVER_RXE:
		return syscall.EINVAL
	}
	m, ok := methods[methodID{hdr.ObjectId, hdr.MethodId}]
	if !ok {
		return syscall.EPROTONOSUPPORT
	}
	c := &call{file: f}
	if errno := c.parse(&m, msg[headerSize:size]); errno != 0 {
		return errno
	}
	errno := m.run(c)
	if out := c.attr(abi.UVERBS_ATTR_UHW_OUT); out != nil && errno == 0 {
		out.setValid()
	}
	return errno
}

// parse checks the attributes (uverbs_set_attr, uverbs_process_attr).
func (c *call) parse(m *method, msg []byte) syscall.Errno {
	for ; len(msg) > 0; msg = msg[attrSize:] {
		a := attrBytes(msg[:attrSize])
		s := m.spec(a.id())
		if s == nil {
			if a.flags()&abi.UVERBS_ATTR_F_MANDATORY != 0 {
				return syscall.EPROTONOSUPPORT
			}
			continue
		}
		if c.attr(s.id) != nil || a.reserved() != 0 {
			return syscall.EINVAL
		}
		if errno := s.check(a); errno != 0 {
			return errno
		}
		c.attrs = append(c.attrs, a)
	}
	for i := range m.specs {
		if s := &m.specs[i]; !s.optional && c.attr(s.id) == nil {
			return syscall.EINVAL
		}
	}
	return 0
}

func (m *method) spec(id uint16) *spec {
	for i := range m.specs {
		if m.specs[i].id == id {
			return &m.specs[i]
		}
	}
	return nil
}

// check checks the size of an attribute.
func (s *spec) check(a attrBytes) syscall.Errno {
	ok := true
	switch s.kind {
	case bytesIn:
		ok = s.size == 0 || a.size() == s.size
	case bytesOut:
		ok = a.size() >= s.size
	case constIn:
		ok = a.size() == 8
	default:
		ok = a.size() == 0
	}
	if !ok {
		return syscall.EINVAL
	}
	return 0
}

// attr returns an attribute, or nil if the call does not have it.
func (c *call) attr(id uint16) attrBytes {
	for _, a := range c.attrs {
		if a.id() == id {
			return a
		}
	}
	return nil
}

func (c *call) constant(id uint16) uint64 {
	if a := c.attr(id); a != nil {
		return a.data()
	}
	return 0
}

// handle returns a handle or descriptor that the call has.
func (c *call) handle(id uint16) uint32 { return uint32(c.attr(id).data()) }

// ref returns the object that an attribute names.
func (c *call) ref(kind, id uint16) ref { return ref{kind, c.handle(id)} }

func (c *call) setHandle(id uint16, handle uint32) { c.attr(id).setData(uint64(handle)) }

// in returns the bytes of an attribute, or none if the call does not have it.
func (c *call) in(id uint16) ([]byte, syscall.Errno) {
	a := c.attr(id)
	switch {
	case a == nil:
		return nil, 0
	case a.size() <= 8:
		return a[8:][:a.size()], 0
	}
	b := make([]byte, a.size())
	return b, user{a.data(), a.size()}.read(b)
}

// number returns a number that the call has.
func number[T uint32 | uint64](c *call, id uint16) (v T) {
	copy(mmap.Bytes(&v), c.attr(id)[8:])
	return v
}

// out returns the memory of an attribute for results, which is empty if the call does not have it.
func (c *call) out(id uint16) user {
	a := c.attr(id)
	if a == nil {
		return user{}
	}
	return user{a.data(), a.size()}
}

// put returns a result, if the call has the attribute.
func (c *call) put(id uint16, b []byte) syscall.Errno {
	a := c.attr(id)
	if a == nil {
		return 0
	}
	errno := c.out(id).write(b)
	if errno == 0 {
		a.setValid()
	}
	return errno
}
