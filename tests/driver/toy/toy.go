// Package toy is a driver in a module of its own, for a card that is made up but works as modern cards
// do: queues are memory of the process, which the kernel pins, and a doorbell is a store to a mapped
// page. It is a template for drivers of such cards, uses the library's public packages alone, and
// not unsafe. docs/drivers.md explains it. A program that imports it drives toy cards:
//
//	import _ "example.com/driver/toy"
//
//	Driver ─► card (Context) ─┬─► completionQueue     toy.go, cq.go
//	                          └─► queuePair ─┬─► sendQueue     send.go
//	                                         └─► recvQueue     recv.go
//
// It has RC, sends, writes and reads. The tests run it on a fake kernel.
package toy

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/provider"
)

func init() { provider.Register(Driver{}) }

// Driver is the driver.
type Driver struct{}

// Name implements [provider.Driver].
func (Driver) Name() string { return "toy" }

// ID implements [provider.Driver]. A real card has a number in enum rdma_driver_id.
func (Driver) ID() uint32 { return 63 }

// GetContext implements [provider.Driver].
func (Driver) GetContext(dev *provider.Device, get func(provider.UHW) error) (provider.Context, error) {
	if !mmap.OrdersDevice {
		return nil, fmt.Errorf("toy supports amd64 and arm64 only: %w", errors.ErrUnsupported)
	}
	var resp ToyAllocUcontextResp
	if err := get(provider.UHW{Out: mmap.Bytes(&resp)}); err != nil {
		return nil, err
	}
	page, err := mmap.Map(dev.FD, int64(resp.DbMmapOffset), os.Getpagesize())
	if err != nil {
		return nil, err
	}
	c := &card{dev: dev, page: page, maxInline: int(min(resp.MaxInline, TOY_MAX_INLINE)), records: provider.Records{Size: provider.MinRecord}}
	c.qps.Store(&map[uint32]*queuePair{})
	return c, nil
}

// ImportContext implements [provider.Driver].
func (Driver) ImportContext(*provider.Device, func(provider.UHW) error) (provider.Context, error) {
	return nil, fmt.Errorf("toy has no QUERY_CONTEXT: %w", errors.ErrUnsupported)
}

// card is an open device.
type card struct {
	dev       *provider.Device
	page      *mmap.Region // of registers
	maxInline int
	records   provider.Records

	mu  sync.Mutex
	qps atomic.Pointer[map[uint32]*queuePair] // by number; replaced, so that Take needs no lock
}

// Release implements [provider.Object].
func (c *card) Release() {
	c.page.Close()
	c.records.Close()
}

// register returns the register at an offset.
func (c *card) register(offset int) *uint64 { return &mmap.Slice[uint64](c.page.Bytes(), offset, 1)[0] }

// name lets completions find a QP by its number, or with nil forget it.
func (c *card) name(num uint32, p *queuePair) {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := maps.Clone(*c.qps.Load())
	if all[num] = p; p == nil {
		delete(all, num)
	}
	c.qps.Store(&all)
}

// MaxInline implements [provider.InlineLimiter].
func (c *card) MaxInline() int { return c.maxInline }

// AllocPD has no part of this driver.
func (c *card) AllocPD(alloc func(provider.UHW) error) (provider.Object, error) {
	return nil, alloc(provider.UHW{})
}

// RegisterMR has no part of this driver.
func (c *card) RegisterMR(_ *provider.MRInit, register func(provider.UHW) error) (provider.Object, error) {
	return nil, register(provider.UHW{})
}

// CreateAH refuses: there is no UD.
func (c *card) CreateAH(*provider.AHInit, func(provider.UHW) error) (uint32, provider.Object, error) {
	return 0, nil, fmt.Errorf("toy has no address handles: %w", errors.ErrUnsupported)
}

// CreateSRQ refuses.
func (c *card) CreateSRQ(*provider.SRQInit, func(provider.UHW) (provider.SRQInfo, error)) (provider.RecvQueue, error) {
	return nil, fmt.Errorf("toy has no SRQs: %w", errors.ErrUnsupported)
}

// ring is a queue of elements in memory that the card reads or writes.
type ring[T any] struct {
	buf   *mmap.Buffer
	elems []T
	mask  uint32
}

// newRing allocates a ring of n elements, a power of two.
func newRing[T any](n int) (r ring[T], err error) {
	r.mask = uint32(n - 1)
	if r.buf, err = mmap.NewBuffer(n*len(mmap.Bytes(new(T))), mmap.BufferOptions{}); err == nil {
		r.elems = mmap.Slice[T](r.buf.Bytes(), 0, n)
	}
	return r, err
}

// at returns element i.
func (r *ring[T]) at(i uint32) *T { return &r.elems[i&r.mask] }

// pins is the most locked memory of the ring, for the error if the limit is too low.
func (r *ring[T]) pins() int { return provider.Pins(len(r.buf.Bytes())) }

// queuePair is what the queues of a QP share.
type queuePair struct {
	card           *card
	num            uint32
	sends          ring[ToyWqe]
	recvs          ring[ToyRqe]
	record         []byte // doorbell records of both
	send           sendQueue
	recv           recvQueue
	sendCQ, recvCQ *completionQueue
	open           int // queues that have not been released
}

// CreateQP implements [provider.Context].
func (c *card) CreateQP(init *provider.QPInit, create func(provider.UHW) (provider.QPInfo, error)) (_ provider.SendQueue, _ provider.RecvQueue, err error) {
	sendCQ, ok1 := init.SendCQ.(*completionQueue)
	recvCQ, ok2 := init.RecvCQ.(*completionQueue)
	if init.Type != verbs.RC || init.SRQ != nil || !ok1 || !ok2 {
		return nil, nil, fmt.Errorf("toy has only RC, without SRQs: %w", errors.ErrUnsupported)
	}
	want := &init.Cap
	want.MaxSendWR, want.MaxRecvWR = provider.RoundUp(want.MaxSendWR), provider.RoundUp(want.MaxRecvWR)
	if max(want.MaxSendWR, want.MaxRecvWR) > c.dev.Attr.MaxQPWR || max(want.MaxSendSGE, want.MaxRecvSGE) > TOY_MAX_SGE || want.MaxInline > c.maxInline {
		return nil, nil, syscall.EINVAL // uverbs explains it
	}
	p := &queuePair{card: c, sendCQ: sendCQ, recvCQ: recvCQ, open: 2}
	defer func() {
		if err != nil {
			p.free()
		}
	}()
	if p.sends, err = newRing[ToyWqe](want.MaxSendWR); err != nil {
		return nil, nil, err
	}
	if p.recvs, err = newRing[ToyRqe](want.MaxRecvWR); err != nil {
		return nil, nil, err
	}
	if p.record, err = c.records.Get(); err != nil {
		return nil, nil, err
	}
	req := ToyCreateQp{SendAddr: p.sends.buf.Addr(), RecvAddr: p.recvs.buf.Addr(), DbAddr: mmap.Addr(p.record)}
	info, err := create(provider.UHW{In: mmap.Bytes(&req), Pins: p.sends.pins() + p.recvs.pins()})
	if err != nil {
		return nil, nil, err
	}
	p.num = info.QPNum
	p.send.init(p, init, info)
	p.recv.init(p, init, info)
	c.name(p.num, p)
	return &p.send, &p.recv, nil
}

// release frees the QP when both queues have been released.
func (p *queuePair) release() {
	if p.open--; p.open > 0 {
		return
	}
	p.drop()
	p.card.name(p.num, nil)
	p.free()
}

// drop makes the CQs skip what is left of the QP, of which there will be no more.
func (p *queuePair) drop() {
	p.sendCQ.drop(p.num)
	if p.recvCQ != p.sendCQ {
		p.recvCQ.drop(p.num)
	}
}

// free frees the memory of the QP, as far as it has any.
func (p *queuePair) free() {
	p.sends.buf.Close()
	p.recvs.buf.Close()
	p.card.records.Put(p.record)
}
