//go:build linux

package erdma

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

var le, be = binary.LittleEndian, binary.BigEndian

// fake is a device of which the test plays the part.
type fake struct {
	*context
	kernel *providertest.Kernel
	pages  []byte // of registers: of sends, of receives, of CQs
	num    uint32 // of the next CQ or QP
}

// newFake opens a device whose send registers are of a kind.
func newFake(t testing.TB, iwarp bool, kind, offset uint32) *fake {
	t.Helper()
	page := os.Getpagesize()
	f := &fake{pages: make([]byte, 3*page)}
	f.kernel = &providertest.Kernel{
		ID: abi.RDMA_DRIVER_ERDMA, IWARP: iwarp, Registers: f.pages,
		Attr: verbs.DeviceAttr{MaxCQE: 1 << 20},
		Port: verbs.PortAttr{MaxMessage: -1, ActiveMTU: 3, LinkLayer: verbs.LinkEthernet},
		GetContext: func(u provider.UHW) error {
			providertest.Answer(u, abi.ErdmaUrespAllocCtx{SdbType: kind, SdbOffset: offset, Rdb: uint64(page), Cdb: uint64(2 * page)})
			return nil
		},
		CreateCQ: func(cq *provider.CQInfo, u provider.UHW) error {
			providertest.Answer(u, abi.ErdmaUrespCreateCq{CqId: f.num, NumCqe: uint32(cq.Depth)})
			return nil
		},
		CreateQP: func(qp *providertest.QP, u provider.UHW) error {
			qp.QPNum = f.num
			units := provider.RoundUp(qp.Cap.MaxSendWR * maxUnits)
			providertest.Answer(u, abi.ErdmaUrespCreateQp{
				QpId: f.num, NumSqe: uint32(units), NumRqe: uint32(provider.RoundUp(qp.Cap.MaxRecvWR)), RqOffset: uint32((units*unit + 4095) &^ 4095),
			})
			return nil
		},
	}
	c, err := Driver{}.GetContext(f.kernel.Device(t), f.kernel.Context)
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

// register returns a register of a page: 0 for sends, 1 for receives, 2 for CQs.
func (f *fake) register(page, offset int) uint64 {
	return le.Uint64(f.pages[page*os.Getpagesize()+offset:])
}

// fakeCQ is a CQ whose completions the test writes.
type fakeCQ struct {
	*completionQueue
	pi uint32
}

func (f *fake) cq(t testing.TB, init provider.CQInit, num uint32) *fakeCQ {
	t.Helper()
	f.num = num
	q, err := f.kernel.NewCQ(f.context, &init)
	if err != nil {
		t.Fatal(err)
	}
	return &fakeCQ{completionQueue: q.(*completionQueue)}
}

// cqe is what a completion says.
type cqe struct {
	recv             bool
	opcode, syndrome uint8
	index, num       uint32
	imm, length      uint32
}

// bytes returns a CQE without owner.
func (c cqe) bytes() (e [cqeSize]byte) {
	h := uint32(c.opcode)<<cqeOpcode | uint32(c.syndrome)
	if c.recv {
		h |= 1 << cqeQueue
	}
	be.PutUint32(e[:], h)
	be.PutUint32(e[cqeIndex:], c.index)
	be.PutUint32(e[cqeQPN:], c.num)
	le.PutUint32(e[cqeImm:], c.imm)
	be.PutUint32(e[cqeLength:], c.length)
	return e
}

// put writes a completion, as the device does.
func (c *fakeCQ) put(what cqe) {
	e := what.bytes()
	c.write(c.at(c.pi), e)
	c.pi++
}

// write writes a CQE to a place of the ring for round and place pi.
func (c *fakeCQ) write(p unsafe.Pointer, e [cqeSize]byte) {
	e[0] = e[0]&0x7f | byte(c.owner(c.pi)<<7)
	copy(unsafe.Slice((*byte)(p), cqeSize)[4:], e[4:])
	header(p).Store(binary.NativeEndian.Uint32(e[:]))
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

const fakeQPN = 0x0a0b0

// newQP makes a QP.
func (f *fake) newQP(init *provider.QPInit, num uint32) (*queuePair, error) {
	f.num = num
	s, _, err := f.kernel.NewQP(f.context, init)
	if err != nil {
		return nil, err
	}
	return s.(*sendQueue).qp, nil
}

// qp makes an RC QP with one CQ, in RTS.
func (f *fake) qp(t testing.TB, cq *fakeCQ, cap verbs.QPCap) *queuePair {
	t.Helper()
	p, err := f.newQP(&provider.QPInit{Type: verbs.RC, Cap: cap, SendCQ: cq.completionQueue, RecvCQ: cq.completionQueue}, fakeQPN)
	if err != nil {
		t.Fatal(err)
	}
	p.settle(verbs.StateRTS)
	t.Cleanup(func() { p.send.Release(); p.recv.Release() })
	return p
}

// settle moves the QP to a state.
func (p *queuePair) settle(s verbs.QPState) { providertest.SetState(p.send, p.recv, s) }

// memory returns the memory of both queues, as the device sees it.
func (p *queuePair) memory() []byte { return p.buf.Bytes() }
