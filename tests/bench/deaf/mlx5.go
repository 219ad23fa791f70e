package deaf

import (
	"encoding/binary"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/provider"
	"github.com/goverbs/verbs/providertest"
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

// Device is a device of mlx5 with CQs and at most one QP.
type Device struct {
	// CQs are in the order in which they were made.
	CQs []*CQ
	// Blocks is the size of the QP's send queue.
	Blocks int

	qpn   uint32
	index uint32 // the QP's user index
}

// CQ is a completion queue as the adapter sees it.
type CQ struct {
	dev  *Device
	ring []byte
	made uint32
}

// Open makes a device with a name, and opens it.
func Open(name string) (*Device, *uverbs.Context, error) {
	d := new(Device)
	uars := uint32(0)
	ctx, err := open(name, &providertest.Kernel{
		ID:   abi.RDMA_DRIVER_MLX5,
		Attr: verbs.DeviceAttr{MaxQPWR: 1 << 15, MaxSGE: 30, MaxCQE: 1<<22 - 1},
		Port: verbs.PortAttr{State: verbs.PortActive, MaxMTU: 5, ActiveMTU: 3, MaxMessage: 1 << 30, LinkLayer: verbs.LinkInfiniBand},
		Mmap: page,
		GetContext: func(u provider.UHW) error {
			providertest.Answer(u, abi.Mlx5IbAllocUcontextResp{
				QpTabSize: 1 << 18, BfRegSize: 512, CacheLineSize: 64, MaxSqDescSz: 1024,
				MaxRqDescSz: 512, MaxSendWqebb: 1 << 15, MaxRecvWr: 1 << 15, MaxSrqRecvWr: 1 << 15,
				NumPorts: 1, ResponseLength: uint32(len(u.Out)), CqeVersion: 1,
				LogUarSize: 12, NumUarsPerPage: 1,
			})
			return nil
		},
		Ioctl: func(c *providertest.Call) error {
			if c.Method == abi.MLX5_IB_METHOD_UAR_OBJ_ALLOC {
				uars++
				c.SetValue(abi.MLX5_IB_ATTR_UAR_OBJ_ALLOC_HANDLE, uint64(uars))
				copy(c.Out(abi.MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_LENGTH), mmap.Bytes(new(uint32(4096))))
				copy(c.Out(abi.MLX5_IB_ATTR_UAR_OBJ_ALLOC_PAGE_ID), mmap.Bytes(&uars))
			}
			return nil
		},
		CreateCQ: func(cq *provider.CQInfo, u provider.UHW) error {
			req := providertest.Request[abi.Mlx5IbCreateCq](u)
			d.CQs = append(d.CQs, &CQ{dev: d, ring: providertest.Memory(req.BufAddr, (cq.Depth+1)*cqeSize)})
			providertest.Answer(u, abi.Mlx5IbCreateCqResp{Cqn: cq.Handle})
			return nil
		},
		CreateQP: func(qp *providertest.QP, u provider.UHW) error {
			req := providertest.Request[abi.Mlx5IbCreateQp](u)
			d.qpn, d.index, d.Blocks = qp.QPNum, req.Uidx, int(req.SqWqeCount)
			return nil
		},
	})
	return d, ctx, err
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
