package deaf

import (
	"encoding/binary"
	"math/bits"
	"sync"
	"syscall"
	"unsafe"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/host"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/uverbs"
)

// Opcodes of completions, enum erdma_opcode of the kernel's erdma_hw.h.
const (
	ErdmaWrite = 0
	ErdmaSend  = 2
	ErdmaRecv  = 4
)

// Erdma is an erdma device in RoCE mode, with CQs and at most one QP.
type Erdma struct {
	host.Unsupported

	// CQs are in the order in which they were made.
	CQs []*ErdmaCQ
	// Units is the size of the QP's send queue.
	Units int

	mu      sync.Mutex
	handles uint32
	qpn     uint32
}

// ErdmaCQ is a completion queue as the adapter sees it.
type ErdmaCQ struct {
	dev  *Erdma
	ring []byte
	made uint32
}

// OpenErdma makes a device with a name, and opens it. It is not among [uverbs.Devices].
func OpenErdma(name string) (*Erdma, *uverbs.Context, error) {
	d := new(Erdma)
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
func (d *Erdma) Close() {}

// Mmap implements [host.File]. It returns a page of registers.
func (d *Erdma) Mmap(off int64, length int) ([]byte, syscall.Errno) {
	return (*Device)(nil).Mmap(off, length)
}

// Complete writes the completions of n successive requests, each of as many units. index is the first
// unit of the first request, or the first receive's number.
func (c *ErdmaCQ) Complete(n int, recv bool, opcode uint8, index uint16, units int, length uint32) {
	be, last := binary.BigEndian, uint32(len(c.ring)/32)
	h := uint32(opcode) << 16
	if recv {
		h |= 1 << 8
	}
	for ; n > 0; n-- {
		e := c.ring[c.made%last*32:][:32]
		be.PutUint32(e[4:], uint32(index))
		be.PutUint32(e[8:], c.dev.qpn)
		be.PutUint32(e[16:], length)
		owner := uint32(1 << 31)
		if c.made&last != 0 {
			owner = 0
		}
		be.PutUint32(e, owner|h)
		index += uint16(units)
		c.made++
	}
}

// Ioctl implements [host.File].
func (d *Erdma) Ioctl(_ uint32, msg []byte) syscall.Errno {
	d.mu.Lock()
	defer d.mu.Unlock()
	m := message{hdr: &mmap.Slice[abi.IbUverbsIoctlHdr](msg, 0, 1)[0]}
	m.attrs = mmap.Slice[abi.IbUverbsAttr](msg, int(unsafe.Sizeof(*m.hdr)), int(m.hdr.NumAttrs))
	if m.hdr.DriverId != abi.RDMA_DRIVER_ERDMA {
		return syscall.EINVAL
	}
	type id struct{ object, method uint16 }
	switch (id{m.hdr.ObjectId, m.hdr.MethodId}) {
	case id{abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_GET_CONTEXT}:
		answer(m, abi.UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS, uint32(1))
		answer(m, abi.UVERBS_ATTR_UHW_OUT, abi.ErdmaUrespAllocCtx{})
	case id{abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_QUERY_PORT}:
		answer(m, abi.UVERBS_ATTR_QUERY_PORT_RESP, abi.IbUverbsQueryPortRespEx{LegacyResp: abi.IbUverbsQueryPortResp{
			State: uint8(verbs.PortActive), MaxMtu: 5, ActiveMtu: 3, MaxMsgSz: 1<<32 - 1, LinkLayer: uint8(verbs.LinkEthernet),
		}})
	case id{abi.UVERBS_OBJECT_ASYNC_EVENT, abi.UVERBS_METHOD_ASYNC_EVENT_ALLOC}:
		fd, errno := host.Install(new(events), "events")
		*m.attr(abi.UVERBS_ATTR_ASYNC_EVENT_ALLOC_FD_HANDLE).Data() = uint64(fd)
		return errno
	case id{abi.UVERBS_OBJECT_CQ, abi.UVERBS_METHOD_CQ_CREATE}:
		req := mmap.Slice[abi.ErdmaUreqCreateCq](m.memory(abi.UVERBS_ATTR_UHW_IN), 0, 1)[0]
		depth := uint32(1) << bits.Len32(uint32(*m.attr(abi.UVERBS_ATTR_CREATE_CQ_CQE).Data())-1)
		d.CQs = append(d.CQs, &ErdmaCQ{dev: d, ring: at(req.QbufVa, int(depth)*32)})
		*m.attr(abi.UVERBS_ATTR_CREATE_CQ_HANDLE).Data() = d.handle()
		answer(m, abi.UVERBS_ATTR_CREATE_CQ_RESP_CQE, depth)
		answer(m, abi.UVERBS_ATTR_UHW_OUT, abi.ErdmaUrespCreateCq{CqId: d.handles, NumCqe: depth})
	case id{abi.UVERBS_OBJECT_QP, abi.UVERBS_METHOD_QP_CREATE}:
		limits := mmap.Slice[abi.IbUverbsQpCap](m.memory(abi.UVERBS_ATTR_CREATE_QP_CAP), 0, 1)[0]
		*m.attr(abi.UVERBS_ATTR_CREATE_QP_HANDLE).Data() = d.handle()
		d.qpn, d.Units = d.handles, int(4*limits.MaxSendWr) // both are powers of two, as the driver asks
		answer(m, abi.UVERBS_ATTR_CREATE_QP_RESP_CAP, limits)
		answer(m, abi.UVERBS_ATTR_CREATE_QP_RESP_QP_NUM, d.qpn)
		answer(m, abi.UVERBS_ATTR_UHW_OUT, abi.ErdmaUrespCreateQp{QpId: d.qpn, NumSqe: uint32(d.Units), NumRqe: limits.MaxRecvWr, RqOffset: uint32(d.Units*32+4095) &^ 4095})
	case id{abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_INVOKE_WRITE}:
		switch *m.attr(abi.UVERBS_ATTR_WRITE_CMD).Data() {
		case abi.IB_USER_VERBS_EX_CMD_QUERY_DEVICE | abi.IB_USER_VERBS_CMD_FLAG_EXTENDED:
			answer(m, abi.UVERBS_ATTR_CORE_OUT, abi.IbUverbsExQueryDeviceResp{
				Base: abi.IbUverbsQueryDeviceResp{MaxQpWr: 1 << 13, MaxSge: 1, MaxCqe: 1 << 20, PhysPortCnt: 1},
			})
		case abi.IB_USER_VERBS_CMD_ALLOC_PD:
			answer(m, abi.UVERBS_ATTR_CORE_OUT, abi.IbUverbsAllocPdResp{PdHandle: uint32(d.handle())})
		case abi.IB_USER_VERBS_CMD_MODIFY_QP:
		default:
			return syscall.EOPNOTSUPP
		}
	case id{abi.UVERBS_OBJECT_QP, abi.UVERBS_METHOD_QP_DESTROY}, id{abi.UVERBS_OBJECT_CQ, abi.UVERBS_METHOD_CQ_DESTROY},
		id{abi.UVERBS_OBJECT_PD, abi.UVERBS_METHOD_PD_DESTROY}:
	default:
		return syscall.EPROTONOSUPPORT
	}
	return 0
}

// handle returns a new handle.
func (d *Erdma) handle() uint64 {
	d.handles++
	return uint64(d.handles)
}
