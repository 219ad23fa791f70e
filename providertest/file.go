package providertest

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"unsafe"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/attr"
	"github.com/goverbs/verbs/internal/host"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/provider"
)

// file is the open device file of a Kernel.
type file struct {
	host.Unsupported
	k *Kernel
}

func (k *Kernel) open() (host.File, syscall.Errno) { return &file{k: k}, 0 }

// Close implements [host.File].
func (f *file) Close() {}

// Mmap implements [host.File].
func (f *file) Mmap(offset int64, length int) ([]byte, syscall.Errno) {
	k := f.k
	if end := offset + int64(length); offset >= 0 && end <= int64(len(k.Registers)) {
		return k.Registers[offset:end:end], 0
	}
	if k.Mmap == nil {
		return nil, syscall.EINVAL
	}
	b, err := k.Mmap(offset, length)
	return b, errnoOf(err)
}

// Call is a method on an object that only one driver has, as mlx5's UAR.
type Call struct {
	Object, Method uint16
	attrs          []abi.IbUverbsAttr
}

func (c *Call) attr(id uint16) *abi.IbUverbsAttr {
	if i := slices.IndexFunc(c.attrs, func(a abi.IbUverbsAttr) bool { return a.AttrId == id }); i >= 0 {
		return &c.attrs[i]
	}
	return nil
}

// Value returns the value of an attribute: a constant, or a handle. It panics if the call does not have the
// attribute.
func (c *Call) Value(id uint16) uint64 { return *c.must(id).Data() }

// SetValue answers with a value, such as a new handle. It panics if the call does not have the attribute.
func (c *Call) SetValue(id uint16, v uint64) { *c.must(id).Data() = v }

func (c *Call) must(id uint16) *abi.IbUverbsAttr {
	a := c.attr(id)
	if a == nil {
		panic(fmt.Sprintf("method %#x of object %#x has no attribute %#x", c.Method, c.Object, id))
	}
	return a
}

// Bytes returns the memory of an attribute that the driver's side reads. It has none if the call does
// not have the attribute.
func (c *Call) Bytes(id uint16) []byte {
	a := c.attr(id)
	switch {
	case a == nil || a.Len == 0:
		return nil
	case a.Len <= 8:
		return mmap.Bytes(a.Data())[:a.Len]
	}
	return Memory(*a.Data(), int(a.Len))
}

// Out returns the memory of an attribute that the driver's side fills. It has none if the call does not
// have the attribute.
func (c *Call) Out(id uint16) []byte {
	a := c.attr(id)
	if a == nil || a.Len == 0 {
		return nil
	}
	return Memory(*a.Data(), int(a.Len))
}

func put[T any](c *Call, id uint16, v T) { copy(c.Out(id), mmap.Bytes(&v)) }

func (c *Call) uhw() provider.UHW {
	return provider.UHW{In: c.Bytes(abi.UVERBS_ATTR_UHW_IN), Out: c.Out(abi.UVERBS_ATTR_UHW_OUT)}
}

// cap returns the sizes in an attribute.
func (c *Call) cap(id uint16) verbs.QPCap {
	want := mmap.Slice[abi.IbUverbsQpCap](c.Bytes(id), 0, 1)[0]
	return verbs.QPCap{
		MaxSendWR: int(want.MaxSendWr), MaxRecvWR: int(want.MaxRecvWr), MaxSendSGE: int(want.MaxSendSge),
		MaxRecvSGE: int(want.MaxRecvSge), MaxInline: int(want.MaxInlineData),
	}
}

// Ioctl implements [host.File] (ib_uverbs_ioctl).
func (f *file) Ioctl(request uint32, msg []byte) syscall.Errno {
	if request != abi.RDMA_VERBS_IOCTL {
		return syscall.ENOTTY
	}
	hdr := &mmap.Slice[abi.IbUverbsIoctlHdr](msg, 0, 1)[0]
	if hdr.DriverId != f.k.ID {
		return syscall.EINVAL
	}
	return f.k.ioctl(&Call{hdr.ObjectId, hdr.MethodId, mmap.Slice[abi.IbUverbsAttr](msg, int(unsafe.Sizeof(*hdr)), int(hdr.NumAttrs))})
}

// destroyers are the attributes that name what a method destroys, by object.
var destroyers = map[uint16]struct{ method, handle uint16 }{
	abi.UVERBS_OBJECT_PD:  {abi.UVERBS_METHOD_PD_DESTROY, abi.UVERBS_ATTR_DESTROY_PD_HANDLE},
	abi.UVERBS_OBJECT_MR:  {abi.UVERBS_METHOD_MR_DESTROY, abi.UVERBS_ATTR_DESTROY_MR_HANDLE},
	abi.UVERBS_OBJECT_AH:  {abi.UVERBS_METHOD_AH_DESTROY, abi.UVERBS_ATTR_DESTROY_AH_HANDLE},
	abi.UVERBS_OBJECT_CQ:  {abi.UVERBS_METHOD_CQ_DESTROY, abi.UVERBS_ATTR_DESTROY_CQ_HANDLE},
	abi.UVERBS_OBJECT_SRQ: {abi.UVERBS_METHOD_SRQ_DESTROY, abi.UVERBS_ATTR_DESTROY_SRQ_HANDLE},
	abi.UVERBS_OBJECT_QP:  {abi.UVERBS_METHOD_QP_DESTROY, abi.UVERBS_ATTR_DESTROY_QP_HANDLE},
}

func (k *Kernel) ioctl(c *Call) syscall.Errno {
	if d, ok := destroyers[c.Object]; ok && c.Method == d.method {
		return k.destroy(c.Object, uint32(c.Value(d.handle)))
	}
	type id struct{ object, method uint16 }
	switch (id{c.Object, c.Method}) {
	case id{abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_GET_CONTEXT}:
		put(c, abi.UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS, uint32(1))
		return errnoOf(k.Context(c.uhw()))
	case id{abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_QUERY_PORT}:
		put(c, abi.UVERBS_ATTR_QUERY_PORT_RESP, attr.Port(k.Port))
		return 0
	case id{abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_INVOKE_WRITE}:
		return k.invoke(uint32(c.Value(abi.UVERBS_ATTR_WRITE_CMD)), c.Bytes(abi.UVERBS_ATTR_CORE_IN), c.Out(abi.UVERBS_ATTR_CORE_OUT), c.uhw())
	case id{abi.UVERBS_OBJECT_ASYNC_EVENT, abi.UVERBS_METHOD_ASYNC_EVENT_ALLOC}:
		fd, errno := host.Install(new(channelFile), "events")
		c.SetValue(abi.UVERBS_ATTR_ASYNC_EVENT_ALLOC_FD_HANDLE, uint64(fd))
		return errno
	case id{abi.UVERBS_OBJECT_CQ, abi.UVERBS_METHOD_CQ_CREATE}:
		info := provider.CQInfo{Depth: int(value[uint32](c, abi.UVERBS_ATTR_CREATE_CQ_CQE))}
		o := object{user: value[uint64](c, abi.UVERBS_ATTR_CREATE_CQ_USER_HANDLE)}
		if a := c.attr(abi.UVERBS_ATTR_CREATE_CQ_COMP_CHANNEL); a != nil {
			o.channel, _ = host.Get(int(*a.Data())).(*channelFile)
		}
		err := k.createCQ(o, &info, c.uhw())
		c.SetValue(abi.UVERBS_ATTR_CREATE_CQ_HANDLE, uint64(info.Handle))
		put(c, abi.UVERBS_ATTR_CREATE_CQ_RESP_CQE, uint32(info.Depth))
		return errnoOf(err)
	case id{abi.UVERBS_OBJECT_SRQ, abi.UVERBS_METHOD_SRQ_CREATE}:
		info := provider.SRQInfo{
			MaxWR: int(value[uint32](c, abi.UVERBS_ATTR_CREATE_SRQ_MAX_WR)), MaxSGE: int(value[uint32](c, abi.UVERBS_ATTR_CREATE_SRQ_MAX_SGE)),
		}
		err := k.createSRQ(&info, c.uhw())
		c.SetValue(abi.UVERBS_ATTR_CREATE_SRQ_HANDLE, uint64(info.Handle))
		put(c, abi.UVERBS_ATTR_CREATE_SRQ_RESP_MAX_WR, uint32(info.MaxWR))
		put(c, abi.UVERBS_ATTR_CREATE_SRQ_RESP_MAX_SGE, uint32(info.MaxSGE))
		return errnoOf(err)
	case id{abi.UVERBS_OBJECT_QP, abi.UVERBS_METHOD_QP_CREATE}:
		qp := QP{
			provider.QPInfo{Cap: c.cap(abi.UVERBS_ATTR_CREATE_QP_CAP)},
			uint32(c.Value(abi.UVERBS_ATTR_CREATE_QP_SEND_CQ_HANDLE)), uint32(c.Value(abi.UVERBS_ATTR_CREATE_QP_RECV_CQ_HANDLE)),
		}
		err := k.createQP(&qp, c.uhw())
		c.SetValue(abi.UVERBS_ATTR_CREATE_QP_HANDLE, uint64(qp.Handle))
		got := qp.Cap
		put(c, abi.UVERBS_ATTR_CREATE_QP_RESP_CAP, abi.IbUverbsQpCap{
			MaxSendWr: uint32(got.MaxSendWR), MaxRecvWr: uint32(got.MaxRecvWR), MaxSendSge: uint32(got.MaxSendSGE),
			MaxRecvSge: uint32(got.MaxRecvSGE), MaxInlineData: uint32(got.MaxInline),
		})
		put(c, abi.UVERBS_ATTR_CREATE_QP_RESP_QP_NUM, qp.QPNum)
		return errnoOf(err)
	}
	if k.Ioctl == nil || c.Object>>abi.UVERBS_ID_NS_SHIFT == 0 {
		return syscall.EPROTONOSUPPORT
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return errnoOf(k.Ioctl(c))
}

// value returns what an attribute has in itself.
func value[T uint32 | uint64](c *Call, id uint16) (v T) {
	copy(mmap.Bytes(&v), mmap.Bytes(c.must(id).Data()))
	return v
}

// Write implements [host.File]: commands of the data path, as those of provider.Doorbell, come so.
func (f *file) Write(b []byte) (int, syscall.Errno) {
	const head = int(unsafe.Sizeof(abi.IbUverbsCmdHdr{}))
	if len(b) < head {
		return 0, syscall.EINVAL
	}
	var resp []byte
	if words := int(binary.NativeEndian.Uint16(b[6:])); words > 0 { // the request begins with the address
		resp = Memory(binary.NativeEndian.Uint64(b[head:]), 4*words)
	}
	if errno := f.k.invoke(binary.NativeEndian.Uint32(b), b[head:], resp, provider.UHW{}); errno != 0 {
		return 0, errno
	}
	return len(b), 0
}

// decode decodes the core's part of a write command.
func decode[T any](b []byte) (v T) {
	copy(mmap.Bytes(&v), b)
	return v
}

// invoke runs a write command.
func (k *Kernel) invoke(cmd uint32, req, resp []byte, u provider.UHW) syscall.Errno {
	var handle uint32
	var err error
	switch cmd {
	case abi.IB_USER_VERBS_EX_CMD_QUERY_DEVICE | abi.IB_USER_VERBS_CMD_FLAG_EXTENDED:
		a := k.Attr
		a.Ports = max(a.Ports, 1)
		r := attr.Device(a)
		r.ResponseLength = uint32(copy(resp, mmap.Bytes(&r)))
		copy(resp, mmap.Bytes(&r))
	case abi.IB_USER_VERBS_CMD_ALLOC_PD:
		handle, err = k.create(abi.UVERBS_OBJECT_PD, u, k.AllocPD)
		copy(resp, mmap.Bytes(&abi.IbUverbsAllocPdResp{PdHandle: handle}))
	case abi.IB_USER_VERBS_CMD_REG_MR:
		handle, err = k.create(abi.UVERBS_OBJECT_MR, u, k.RegisterMR)
		copy(resp, mmap.Bytes(&abi.IbUverbsRegMrResp{MrHandle: handle, Lkey: handle, Rkey: handle}))
	case abi.IB_USER_VERBS_CMD_CREATE_AH:
		handle, err = k.create(abi.UVERBS_OBJECT_AH, u, k.CreateAH)
		copy(resp, mmap.Bytes(&abi.IbUverbsCreateAhResp{AhHandle: handle}))
	case abi.IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL:
		fd, errno := host.Install(new(channelFile), "events")
		copy(resp, mmap.Bytes(&abi.IbUverbsCreateCompChannelResp{Fd: uint32(fd)}))
		return errno
	case abi.IB_USER_VERBS_CMD_RESIZE_CQ:
		r := decode[abi.IbUverbsResizeCq](req)
		err = k.change(abi.UVERBS_OBJECT_CQ, r.CqHandle, func() error {
			if k.ResizeCQ == nil {
				return syscall.EOPNOTSUPP
			}
			return k.ResizeCQ(r.CqHandle, int(r.Cqe), u)
		})
		copy(resp, mmap.Bytes(&abi.IbUverbsResizeCqResp{Cqe: r.Cqe}))
	case abi.IB_USER_VERBS_CMD_MODIFY_QP:
		r := decode[abi.IbUverbsModifyQp](req)
		err = k.change(abi.UVERBS_OBJECT_QP, r.QpHandle, func() error {
			if k.ModifyQP == nil {
				return nil
			}
			return k.ModifyQP(r.QpHandle, verbs.QPState(r.QpState), u)
		})
	case abi.IB_USER_VERBS_CMD_POST_SEND, abi.IB_USER_VERBS_CMD_REQ_NOTIFY_CQ: // doorbells that nobody hears
	default:
		return syscall.EOPNOTSUPP
	}
	return errnoOf(err)
}

// change runs an answer about an object that there is.
func (k *Kernel) change(kind uint16, handle uint32, answer func() error) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if o := k.objects[handle]; o == nil || o.kind != kind {
		return syscall.EINVAL
	}
	return answer()
}

// channelFile is a completion channel, or a file of asynchronous events, which has none.
type channelFile struct {
	host.Unsupported
	readiness host.Readiness

	mu     sync.Mutex
	events []uint64
}

func (f *channelFile) add(user uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.events = append(f.events, user)
	f.readiness.Event()
}

// Read implements [host.File].
func (f *channelFile) Read(b []byte) (int, syscall.Errno) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.events) == 0 {
		return 0, syscall.EAGAIN
	}
	n := copy(b, mmap.Bytes(&abi.IbUverbsCompEventDesc{CqHandle: f.events[0]}))
	if f.events = f.events[1:]; len(f.events) == 0 {
		f.readiness.Set(host.Idle)
	}
	return n, 0
}

// Watch implements [host.File].
func (f *channelFile) Watch(changed func(host.State)) (stop func()) {
	return f.readiness.Watch(changed)
}

// Close implements [host.File].
func (f *channelFile) Close() {}
