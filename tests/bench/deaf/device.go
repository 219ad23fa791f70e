package deaf

import (
	"encoding/binary"
	"sync"
	"syscall"
	"unsafe"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/host"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/uverbs"
)

// Opcodes of CQEs, MLX5_CQE_* of include/linux/mlx5/device.h.
const (
	Request = 0 // MLX5_CQE_REQ
	Receive = 2 // MLX5_CQE_RESP_SEND
)

// Opcodes of the requests that CQEs name, MLX5_OPCODE_* of the same file.
const (
	Write = 0x08
	Send  = 0x0a
)

const cqeSize = 64

// Device is a device with CQs and at most one QP.
type Device struct {
	host.Unsupported

	// CQs are in the order in which they were made.
	CQs []*CQ
	// Blocks is the size of the QP's send queue.
	Blocks int

	mu      sync.Mutex
	handles uint32
	qpn     uint32
	index   uint32 // the QP's user index
}

// CQ is a completion queue as the adapter sees it.
type CQ struct {
	dev  *Device
	ring []byte
	made uint32
}

// Open makes a device with a name, and opens it. It is not among [uverbs.Devices].
func Open(name string) (*Device, *uverbs.Context, error) {
	d := new(Device)
	attrs := map[string]string{"ibdev": name, "ports/1/state": "4: ACTIVE"}
	v := &host.Device{Name: name, Attrs: attrs, Open: func() (host.File, syscall.Errno) { return d, 0 }}
	if err := host.Reserve(v); err != nil {
		return nil, nil, err
	}
	host.Register(v)
	defer host.Unregister(v) // the open file stays
	ctx, err := uverbs.Open(name)
	return d, ctx, err
}

// Close implements [host.File].
func (d *Device) Close() {}

// Mmap implements [host.File]. It returns a page of registers.
func (d *Device) Mmap(_ int64, length int) ([]byte, syscall.Errno) {
	b, err := mmap.NewBuffer(length, mmap.BufferOptions{})
	if err != nil {
		return nil, syscall.ENOMEM
	}
	return b.Bytes(), 0
}

// Complete writes the completions of n successive requests of the opcode wqe, in CQEs of the opcode
// cqe. counter is the first request's.
func (c *CQ) Complete(n int, cqe, wqe uint8, counter uint16, length uint32) {
	be, last := binary.BigEndian, uint32(len(c.ring)/cqeSize)
	for ; n > 0; n-- {
		e := c.ring[c.made%last*cqeSize:][:cqeSize]
		be.PutUint32(e[32:], c.dev.index)
		be.PutUint32(e[44:], length)
		be.PutUint32(e[56:], uint32(wqe)<<24|c.dev.qpn)
		w := uint32(counter)<<16 | uint32(cqe)<<4
		if c.made&last != 0 {
			w |= 1
		}
		be.PutUint32(e[60:], w)
		counter++
		c.made++
	}
}

// message is an ioctl's argument.
type message struct {
	hdr   *abi.IbUverbsIoctlHdr
	attrs []abi.IbUverbsAttr
}

func (m message) attr(id uint16) *abi.IbUverbsAttr {
	for i := range m.attrs {
		if m.attrs[i].AttrId == id {
			return &m.attrs[i]
		}
	}
	return new(abi.IbUverbsAttr) // without a length
}

// at returns n bytes of this process's memory.
func at(addr uint64, n int) []byte {
	p := uintptr(addr)
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&p))), n)
}

// memory returns the memory that an attribute names.
func (m message) memory(id uint16) []byte {
	a := m.attr(id)
	if a.Len <= 8 && id == abi.UVERBS_ATTR_UHW_IN {
		return mmap.Bytes(a.Data())[:a.Len]
	}
	return at(*a.Data(), int(a.Len))
}

// answer writes an output attribute.
func answer[T any](m message, id uint16, v T) { copy(m.memory(id), mmap.Bytes(&v)) }

// Ioctl implements [host.File].
func (d *Device) Ioctl(_ uint32, msg []byte) syscall.Errno {
	d.mu.Lock()
	defer d.mu.Unlock()
	m := message{hdr: &mmap.Slice[abi.IbUverbsIoctlHdr](msg, 0, 1)[0]}
	m.attrs = mmap.Slice[abi.IbUverbsAttr](msg, int(unsafe.Sizeof(*m.hdr)), int(m.hdr.NumAttrs))
	if m.hdr.DriverId != abi.RDMA_DRIVER_MLX5 {
		return syscall.EINVAL
	}
	type id struct{ object, method uint16 }
	switch (id{m.hdr.ObjectId, m.hdr.MethodId}) {
	case id{abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_GET_CONTEXT}:
		answer(m, abi.UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS, uint32(1))
		answer(m, abi.UVERBS_ATTR_UHW_OUT, abi.Mlx5IbAllocUcontextResp{
			QpTabSize: 1 << 18, BfRegSize: 512, CacheLineSize: 64, MaxSqDescSz: 1024,
			MaxRqDescSz: 512, MaxSendWqebb: 1 << 15, MaxRecvWr: 1 << 15, MaxSrqRecvWr: 1 << 15,
			NumPorts: 1, ResponseLength: uint32(unsafe.Sizeof(abi.Mlx5IbAllocUcontextResp{})), CqeVersion: 1,
			LogUarSize: 12, NumUarsPerPage: 1,
		})
	case id{abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_QUERY_PORT}:
		answer(m, abi.UVERBS_ATTR_QUERY_PORT_RESP, abi.IbUverbsQueryPortRespEx{LegacyResp: abi.IbUverbsQueryPortResp{
			State: uint8(verbs.PortActive), MaxMtu: 5, ActiveMtu: 3, MaxMsgSz: 1 << 30, LinkLayer: uint8(verbs.LinkInfiniBand),
		}})
	case id{abi.UVERBS_OBJECT_ASYNC_EVENT, abi.UVERBS_METHOD_ASYNC_EVENT_ALLOC}:
		fd, errno := host.Install(new(events), "events")
		*m.attr(abi.UVERBS_ATTR_ASYNC_EVENT_ALLOC_FD_HANDLE).Data() = uint64(fd)
		return errno
	case id{abi.MLX5_IB_OBJECT_UAR, abi.MLX5_IB_METHOD_UAR_OBJ_ALLOC}:
		*m.attr(abi.MLX5_IB_ATTR_UAR_OBJ_ALLOC_HANDLE).Data() = d.handle()
		answer(m, abi.MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_LENGTH, uint32(4096))
		answer(m, abi.MLX5_IB_ATTR_UAR_OBJ_ALLOC_PAGE_ID, d.handles)
	case id{abi.UVERBS_OBJECT_CQ, abi.UVERBS_METHOD_CQ_CREATE}:
		req := mmap.Slice[abi.Mlx5IbCreateCq](m.memory(abi.UVERBS_ATTR_UHW_IN), 0, 1)[0]
		depth := uint32(*m.attr(abi.UVERBS_ATTR_CREATE_CQ_CQE).Data())
		d.CQs = append(d.CQs, &CQ{dev: d, ring: at(req.BufAddr, int(depth+1)*cqeSize)})
		*m.attr(abi.UVERBS_ATTR_CREATE_CQ_HANDLE).Data() = d.handle()
		answer(m, abi.UVERBS_ATTR_CREATE_CQ_RESP_CQE, depth)
		answer(m, abi.UVERBS_ATTR_UHW_OUT, abi.Mlx5IbCreateCqResp{Cqn: d.handles})
	case id{abi.UVERBS_OBJECT_QP, abi.UVERBS_METHOD_QP_CREATE}:
		req := mmap.Slice[abi.Mlx5IbCreateQp](m.memory(abi.UVERBS_ATTR_UHW_IN), 0, 1)[0]
		*m.attr(abi.UVERBS_ATTR_CREATE_QP_HANDLE).Data() = d.handle()
		d.qpn, d.index, d.Blocks = d.handles, req.Uidx, int(req.SqWqeCount)
		copy(m.memory(abi.UVERBS_ATTR_CREATE_QP_RESP_CAP), m.memory(abi.UVERBS_ATTR_CREATE_QP_CAP))
		answer(m, abi.UVERBS_ATTR_CREATE_QP_RESP_QP_NUM, d.qpn)
	case id{abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_INVOKE_WRITE}:
		switch *m.attr(abi.UVERBS_ATTR_WRITE_CMD).Data() {
		case abi.IB_USER_VERBS_EX_CMD_QUERY_DEVICE | abi.IB_USER_VERBS_CMD_FLAG_EXTENDED:
			answer(m, abi.UVERBS_ATTR_CORE_OUT, abi.IbUverbsExQueryDeviceResp{
				Base: abi.IbUverbsQueryDeviceResp{MaxQpWr: 1 << 15, MaxSge: 30, MaxCqe: 1<<22 - 1, PhysPortCnt: 1},
			})
		case abi.IB_USER_VERBS_CMD_ALLOC_PD:
			answer(m, abi.UVERBS_ATTR_CORE_OUT, abi.IbUverbsAllocPdResp{PdHandle: uint32(d.handle())})
		case abi.IB_USER_VERBS_CMD_MODIFY_QP:
		default:
			return syscall.EOPNOTSUPP
		}
	case id{abi.UVERBS_OBJECT_QP, abi.UVERBS_METHOD_QP_DESTROY}, id{abi.UVERBS_OBJECT_CQ, abi.UVERBS_METHOD_CQ_DESTROY},
		id{abi.UVERBS_OBJECT_PD, abi.UVERBS_METHOD_PD_DESTROY}, id{abi.MLX5_IB_OBJECT_UAR, abi.MLX5_IB_METHOD_UAR_OBJ_DESTROY}:
	default:
		return syscall.EPROTONOSUPPORT
	}
	return 0
}

// handle returns a new handle.
func (d *Device) handle() uint64 {
	d.handles++
	return uint64(d.handles)
}

// events is a file without events.
type events struct {
	host.Unsupported
	host.Readiness
}

func (*events) Read([]byte) (int, syscall.Errno)  { return 0, syscall.EAGAIN }
func (e *events) Watch(f func(host.State)) func() { return e.Readiness.Watch(f) }
func (*events) Close()                            {}
