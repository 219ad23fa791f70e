package deaf

import (
	"encoding/binary"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/provider"
	"github.com/goverbs/verbs/providertest"
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
	// CQs are in the order in which they were made.
	CQs []*ErdmaCQ
	// Units is the size of the QP's send queue.
	Units int

	qpn uint32
}

// ErdmaCQ is a completion queue as the adapter sees it.
type ErdmaCQ struct {
	dev  *Erdma
	ring []byte
	made uint32
}

// OpenErdma makes a device with a name, and opens it.
func OpenErdma(name string) (*Erdma, *uverbs.Context, error) {
	d := new(Erdma)
	ctx, err := open(name, &providertest.Kernel{
		ID:   abi.RDMA_DRIVER_ERDMA,
		Attr: verbs.DeviceAttr{MaxQPWR: 1 << 13, MaxSGE: 1, MaxCQE: 1 << 20},
		Port: verbs.PortAttr{State: verbs.PortActive, MaxMTU: 5, ActiveMTU: 3, MaxMessage: -1, LinkLayer: verbs.LinkEthernet},
		Mmap: page,
		GetContext: func(u provider.UHW) error {
			providertest.Answer(u, abi.ErdmaUrespAllocCtx{})
			return nil
		},
		CreateCQ: func(cq *provider.CQInfo, u provider.UHW) error {
			req := providertest.Request[abi.ErdmaUreqCreateCq](u)
			cq.Depth = provider.RoundUp(cq.Depth)
			d.CQs = append(d.CQs, &ErdmaCQ{dev: d, ring: providertest.Memory(req.QbufVa, cq.Depth*32)})
			providertest.Answer(u, abi.ErdmaUrespCreateCq{CqId: cq.Handle, NumCqe: uint32(cq.Depth)})
			return nil
		},
		CreateQP: func(qp *providertest.QP, u provider.UHW) error {
			d.qpn, d.Units = qp.QPNum, 4*qp.Cap.MaxSendWR // both are powers of two, as the driver asks
			providertest.Answer(u, abi.ErdmaUrespCreateQp{
				QpId: d.qpn, NumSqe: uint32(d.Units), NumRqe: uint32(qp.Cap.MaxRecvWR), RqOffset: uint32(d.Units*32+4095) &^ 4095,
			})
			return nil
		},
	})
	return d, ctx, err
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
