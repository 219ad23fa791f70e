// Package rxe drives the queues of SoftRoCE, the kernel's rdma_rxe: RoCE v2
// over Ethernet devices.
//
//	Post ──► WQE in the mapped ring ──► producer index (release) ──► doorbell
//	                                                                    │
//	Poll ◄── consumer index (release) ◄── CQE in the mapped ring ◄── rdma_rxe
//
// Each queue is a struct rxe_queue_buf (uAPI rdma_user_rxe.h): a header with the slot
// size and the two index words, then the slots. The kernel consumes receive requests when
// messages arrive, so a receive queue has no doorbell. Only in the error
// state of the QP does a system call make the kernel flush them.
package rxe

import (
	"fmt"
	"unsafe"

	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/provider"
)

// Driver is the [provider.Driver] for rxe.
type Driver struct{}

var _ provider.Driver = Driver{}

func (Driver) Name() string { return "rxe" }
func (Driver) ID() uint32   { return abi.RDMA_DRIVER_RXE }

// GetContext implements [provider.Driver].
func (Driver) GetContext(dev *provider.Device, get func(provider.UHW) error) (provider.Context, error) {
	return context{dev}, get(provider.UHW{})
}

// ImportContext implements [provider.Driver].
func (Driver) ImportContext(dev *provider.Device, _ func(provider.UHW) error) (provider.Context, error) {
	return context{dev}, nil
}

// context is an open device.
type context struct{ dev *provider.Device }

// Release does nothing.
func (context) Release() {}

// ring is a mapped rxe queue.
type ring struct {
	mmap.Ring
	region *mmap.Region
}

// mapRing maps the queue that the driver's response describes.
func mapRing(dev *provider.Device, mi *abi.Mminfo, elem uintptr) (ring, error) {
	region, err := mmap.Map(dev.FD, int64(mi.Offset), int(mi.Size))
	if err != nil {
		return ring{}, err
	}
	var hdr abi.RxeQueueBuf // the slots follow it
	const size = int(unsafe.Sizeof(hdr))
	if len(region.Bytes()) < size {
		region.Close()
		return ring{}, fmt.Errorf("rxe: queue of %d bytes has no room for its header", mi.Size)
	}
	shared := (*abi.RxeQueueBuf)(unsafe.Pointer(unsafe.SliceData(region.Bytes())))
	r, err := mmap.NewRing(region, mmap.Layout{
		Producer: int(unsafe.Offsetof(hdr.ProducerIndex)),
		Consumer: int(unsafe.Offsetof(hdr.ConsumerIndex)),
		Data:     size,
		Log2Slot: shared.Log2ElemSize,
		Mask:     shared.IndexMask,
	})
	if err == nil && uintptr(r.SlotSize()) < elem {
		err = fmt.Errorf("rxe: queue slots of %d bytes are smaller than an element of %d", r.SlotSize(), elem)
	}
	if err != nil {
		region.Close()
		return ring{}, err
	}
	return ring{r, region}, nil
}

// remap replaces r by the queue to which the kernel moved its entries.
func (r *ring) remap(dev *provider.Device, mi *abi.Mminfo, elem uintptr) error {
	next, err := mapRing(dev, mi, elem)
	if err != nil {
		return err
	}
	r.region.Close()
	*r = next
	return nil
}

// producer is a ring of requests, which the kernel consumes.
type producer struct {
	ring
	prod uint32 // ours; the shared word is its copy
	free int    // slots that are known to be free
}

// use makes r the ring.
func (p *producer) use(r ring) { p.ring, p.prod, p.free = r, r.LoadProducer(), 0 }

// room returns how many of n requests fit. It reads the kernel's index, which another processor may
// have written, only if n are not known to.
func (p *producer) room(n int) int {
	if n > p.free {
		p.free = int(p.Free(p.prod, p.LoadConsumer()))
		n = min(n, p.free)
	}
	return n
}

// publish makes the next n requests visible to the kernel.
func (p *producer) publish(n int) {
	p.prod = p.After(p.prod, uint32(n))
	p.free -= n
	p.StoreProducer(p.prod)
}

// MaxInline implements [provider.InlineLimiter]: inline data take the place of the SGEs
// (RXE_MAX_INLINE_DATA).
func (c context) MaxInline() int { return c.dev.Attr.MaxSGE * int(unsafe.Sizeof(abi.RxeSge{})) }

// AllocPD adds no driver's part.
func (context) AllocPD(alloc func(provider.UHW) error) (provider.Object, error) {
	return nil, alloc(provider.UHW{})
}

// CreateCQ makes a CQ and maps its queue.
func (c context) CreateCQ(init *provider.CQInit, create func(provider.UHW) (provider.CQInfo, error)) (provider.CompletionQueue, error) {
	var resp abi.RxeCreateCqResp
	info, err := create(provider.UHW{Out: mmap.Bytes(&resp)})
	if err != nil {
		return nil, err
	}
	r, err := mapRing(c.dev, &resp.Mi, unsafe.Sizeof(abi.IbUverbsWc{}))
	if err != nil {
		return nil, err
	}
	return newCompletionQueue(r, provider.NewNotify(c.dev, info.Handle), c.dev, init.SingleThreaded), nil
}

// CreateQP makes a QP and maps its queues.
func (c context) CreateQP(init *provider.QPInit, create func(provider.UHW) (provider.QPInfo, error)) (provider.SendQueue, provider.RecvQueue, error) {
	var resp abi.RxeCreateQpResp
	info, err := create(provider.UHW{Out: mmap.Bytes(&resp)})
	if err != nil {
		return nil, nil, err
	}
	payload := max(uintptr(info.Cap.MaxSendSGE)*unsafe.Sizeof(abi.RxeSge{}), uintptr(info.Cap.MaxInline))
	sr, err := mapRing(c.dev, &resp.SqMi, unsafe.Sizeof(abi.RxeSendWqe{})+payload)
	if err != nil {
		return nil, nil, err
	}
	sq, err := newSendQueue(sr, init, info, c.dev)
	if err != nil {
		return nil, nil, err
	}
	if init.SRQ != nil {
		return sq, nil, nil
	}
	payload = uintptr(info.Cap.MaxRecvSGE) * unsafe.Sizeof(abi.RxeSge{})
	rr, err := mapRing(c.dev, &resp.RqMi, unsafe.Sizeof(abi.RxeRecvWqe{})+payload)
	if err != nil {
		sq.Release()
		return nil, nil, err
	}
	return sq, newRecvQueue(rr, init, info, c.dev), nil
}

// CreateSRQ makes an SRQ and maps its queue.
func (c context) CreateSRQ(_ *provider.SRQInit, create func(provider.UHW) (provider.SRQInfo, error)) (provider.RecvQueue, error) {
	var resp abi.RxeCreateSrqResp
	info, err := create(provider.UHW{Out: mmap.Bytes(&resp)})
	if err != nil {
		return nil, err
	}
	r, err := mapRing(c.dev, &resp.Mi, unsafe.Sizeof(abi.RxeRecvWqe{})+uintptr(info.MaxSGE)*unsafe.Sizeof(abi.RxeSge{}))
	if err != nil {
		return nil, err
	}
	return newSRQ(r, resp.SrqNum, info, c.dev), nil
}

// CreateAH makes an address handle, which requests name by its number.
func (context) CreateAH(_ *provider.AHInit, create func(provider.UHW) error) (uint32, provider.Object, error) {
	var resp abi.RxeCreateAhResp
	err := create(provider.UHW{Out: mmap.Bytes(&resp)})
	return resp.AhNum, nil, err
}

// RegisterMR adds no driver's part.
func (context) RegisterMR(_ *provider.MRInit, register func(provider.UHW) error) (provider.Object, error) {
	return nil, register(provider.UHW{})
}
