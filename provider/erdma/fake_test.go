//go:build linux

package erdma

import (
	"encoding/binary"
	"errors"
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/provider"
)

var le, be = binary.LittleEndian, binary.BigEndian

// fake is a device of which the test plays the part: its registers are pages of a file.
type fake struct {
	*context
	pages []byte // of registers: of sends, of receives, of CQs
}

// newFake opens a device whose send registers are of a kind.
func newFake(t testing.TB, iwarp bool, kind, offset uint32) *fake {
	t.Helper()
	fd, err := unix.MemfdCreate("registers", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	page := os.Getpagesize()
	if err := unix.Ftruncate(fd, int64(3*page)); err != nil {
		t.Fatal(err)
	}
	all, err := mmap.Map(fd, 0, 3*page)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { all.Close() })
	dev := &provider.Device{FD: fd, Driver: abi.RDMA_DRIVER_ERDMA, IWARP: iwarp}
	dev.Attr.MaxCQE = 1 << 20
	dev.Port = verbs.PortAttr{MaxMessage: -1, ActiveMTU: 3, LinkLayer: verbs.LinkEthernet}
	c, err := Driver{}.GetContext(dev, func(u provider.UHW) error {
		copy(u.Out, mmap.Bytes(&abi.ErdmaUrespAllocCtx{SdbType: kind, SdbOffset: offset, Rdb: uint64(page), Cdb: uint64(2 * page)}))
		return nil
	})
	if !mmap.OrdersDevice && errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Release)
	return &fake{c.(*context), all.Bytes()}
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
	q, err := f.CreateCQ(&init, func(u provider.UHW) (provider.CQInfo, error) {
		copy(u.Out, mmap.Bytes(&abi.ErdmaUrespCreateCq{CqId: num, NumCqe: uint32(init.Depth)}))
		return provider.CQInfo{Handle: 1, Depth: init.Depth}, nil
	})
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

// newQP makes a QP, and is the kernel of that.
func (f *fake) newQP(init *provider.QPInit, num uint32) (*queuePair, error) {
	s, _, err := f.CreateQP(init, func(u provider.UHW) (provider.QPInfo, error) {
		units := provider.RoundUp(init.Cap.MaxSendWR * maxUnits)
		copy(u.Out, mmap.Bytes(&abi.ErdmaUrespCreateQp{
			QpId: num, NumSqe: uint32(units), NumRqe: uint32(provider.RoundUp(init.Cap.MaxRecvWR)), RqOffset: uint32((units*unit + 4095) &^ 4095),
		}))
		return provider.QPInfo{Handle: 2, QPNum: num, Cap: init.Cap}, nil
	})
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

// settle does what uverbs does around a change of the state.
func (p *queuePair) settle(s verbs.QPState) {
	p.recv.Suspend()
	p.send.Suspend()
	p.send.Settle(s, true)
	p.recv.Settle(s, true)
}

// memory returns the memory of both queues, as the device sees it.
func (p *queuePair) memory() []byte { return p.buf.Bytes() }
