//go:build linux

package mlx5

import (
	"encoding/binary"
	"errors"
	"os"
	"testing"
	"unsafe"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/provider"
	"github.com/goverbs/verbs/providertest"
)

var be = binary.BigEndian

// fake is a device of which the test plays the part.
type fake struct {
	*context
	kernel *providertest.Kernel
	pages  []byte // of registers
}

const fakeRegister = 512 // bytes of a register

// newFake opens a device. Its kernel hands out the registers.
func newFake(t testing.TB, d Driver) *fake {
	t.Helper()
	const pages = 8
	f := &fake{pages: make([]byte, pages*os.Getpagesize())}
	f.kernel = &providertest.Kernel{
		ID: abi.RDMA_DRIVER_MLX5, Registers: f.pages,
		Attr: verbs.DeviceAttr{MaxCQE: 1<<22 - 1},
		Port: verbs.PortAttr{MaxMessage: 1 << 30, ActiveMTU: 5, LinkLayer: verbs.LinkEthernet},
		GetContext: func(u provider.UHW) error {
			providertest.Answer(u, abi.Mlx5IbAllocUcontextResp{
				BfRegSize: fakeRegister, TotBfregs: 2 * pages, CacheLineSize: 64, MaxSqDescSz: 1024, MaxRqDescSz: 512,
				MaxSendWqebb: 1 << 15, MaxRecvWr: 1 << 15, MaxSrqRecvWr: 1 << 15, NumPorts: 1, CqeVersion: 1, NumUarsPerPage: 1,
			})
			return nil
		},
		CreateCQ: func(_ *provider.CQInfo, u provider.UHW) error {
			providertest.Answer(u, abi.Mlx5IbCreateCqResp{Cqn: 0x123})
			return nil
		},
		CreateSRQ: func(_ *provider.SRQInfo, u provider.UHW) error {
			providertest.Answer(u, abi.Mlx5IbCreateSrqResp{Srqn: 7})
			return nil
		},
		CreateQP: func(qp *providertest.QP, u provider.UHW) error {
			qp.QPNum = fakeQPN
			providertest.Answer(u, abi.Mlx5IbCreateQpResp{BfregIndex: 5}) // the second of the second page
			return nil
		},
	}
	c, err := d.GetContext(f.kernel.Device(t), f.kernel.Context)
	if !mmap.OrdersDevice && errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Release)
	f.context = c.(*context)
	return f
}

// fakeCQ is a CQ whose completions the test writes.
type fakeCQ struct {
	*completionQueue
	ring cqes // as the device sees it
	pi   uint32
}

func (f *fake) cq(t testing.TB, depth int) *fakeCQ {
	t.Helper()
	q, err := f.kernel.NewCQ(f.context, &provider.CQInit{Depth: depth})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(q.Release)
	cq := q.(*completionQueue)
	return &fakeCQ{completionQueue: cq, ring: cq.cqes}
}

// put writes a completion, as the device does.
func (c *fakeCQ) put(e [smallCQE]byte, opcode uint32) {
	w := last(be.Uint32(e[cqeLast:])).with(opcode, c.ring.owner(c.pi))
	be.PutUint32(e[cqeLast:], uint32(w))
	p := c.ring.at(c.pi)
	copy(unsafe.Slice((*byte)(p), cqeLast), e[:])
	lastWord(p).Store(binary.NativeEndian.Uint32(e[cqeLast:]))
	c.pi++
}

// completion returns a CQE for the QP, without opcode and owner.
func completion(p *queuePair, counter uint16) (e [smallCQE]byte) {
	be.PutUint32(e[cqeIndex:], p.index)
	be.PutUint16(e[cqeLast:], counter)
	return e
}

// poll returns all completions.
func (c *fakeCQ) poll() (all []verbs.WC) {
	for {
		wcs := make([]verbs.WC, 4)
		n := provider.Poll(c, wcs)
		if n == 0 {
			return all
		}
		all = append(all, wcs[:n]...)
	}
}

const fakeQPN = 0x0a0b0c

// qp makes a QP with 4 SGEs in state RTS.
func (f *fake) qp(t testing.TB, typ verbs.QPType, cq *fakeCQ, cap verbs.QPCap, srq provider.RecvQueue) *queuePair {
	t.Helper()
	s, r, err := f.kernel.NewQP(f.context, &provider.QPInit{
		Type: typ, Cap: cap, SendCQ: cq.completionQueue, RecvCQ: cq.completionQueue, SRQ: srq,
	})
	if err != nil {
		t.Fatal(err)
	}
	sq := s.(*sendQueue)
	sq.State = verbs.StateRTS
	t.Cleanup(s.Release)
	if r != nil {
		r.(*recvQueue).State = verbs.StateRTS
		t.Cleanup(r.Release)
	}
	return sq.qp
}

// ah makes an address handle.
func (f *fake) ah(t testing.TB, a *addressHandle) *addressHandle {
	t.Helper()
	var err error
	if a.num, err = f.ahs.reserve(maxHandles); err != nil {
		t.Fatal(err)
	}
	a.ctx = f.context
	f.ahs.set(a.num, a)
	return a
}

func (f *fake) srq(t testing.TB, most, sges int) *recvQueue {
	t.Helper()
	q, err := f.kernel.NewSRQ(f.context, &provider.SRQInit{MaxWR: most, MaxSGE: sges})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(q.Release)
	return q.(*recvQueue)
}

// blocks returns n blocks of a send queue from block i on, as the device reads them.
func (q *sendQueue) blocks(i, n uint32) (b []byte) {
	for ; n > 0; n-- {
		b = append(b, unsafe.Slice((*byte)(unsafe.Add(q.base, uintptr(i&q.mask)*block)), block)...)
		i++
	}
	return b
}

func initOf(typ verbs.QPType, cap verbs.QPCap) *provider.QPInit {
	return &provider.QPInit{Type: typ, Cap: cap}
}
