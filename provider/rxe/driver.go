// Package rxe drives the queues of SoftRoCE, the kernel's rdma_rxe: RoCE v2
// over any Ethernet device.
//
//	Post ──► WQE in the mapped ring ──► producer index (release) ──► doorbell
//	                                                                    │
//	Poll ◄── consumer index (release) ◄── CQE in the mapped ring ◄── rdma_rxe
//
// Each queue is a struct rxe_queue_buf (uAPI rdma_user_rxe.h): a header with
// the slot size and the two index words, then the slots. The kernel consumes
// receive requests when messages arrive, so a receive queue has no doorbell; only
// when the QP is in the error state does the kernel have to be told, so that it
// flushes them.
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

// ring is a mapped rxe queue.
type ring struct {
	mmap.Ring
	region *mmap.Region
}

// mapRing maps the queue that the driver's response describes.
func mapRing(dev provider.Device, mi *abi.Mminfo, elem uintptr) (ring, error) {
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

// replace maps a queue that the kernel put in the place of r, with r's entries.
func (r *ring) replace(dev provider.Device, mi *abi.Mminfo, elem uintptr) error {
	fresh, err := mapRing(dev, mi, elem)
	if err != nil {
		return err
	}
	r.region.Close()
	*r = fresh
	return nil
}

// GetContext has nothing to add.
func (Driver) GetContext(get func(provider.UHW) error) error { return get(provider.UHW{}) }

// CreateCQ makes a CQ and maps its queue.
func (Driver) CreateCQ(dev provider.Device, _ func(), create func(provider.UHW) (uint32, error)) (provider.CompletionQueue, error) {
	var resp abi.RxeCreateCqResp
	handle, err := create(provider.UHW{Out: mmap.Bytes(&resp)})
	if err != nil {
		return nil, err
	}
	r, err := mapRing(dev, &resp.Mi, unsafe.Sizeof(abi.IbUverbsWc{}))
	if err != nil {
		return nil, err
	}
	return newCompletionQueue(r, provider.NewNotify(dev, handle), dev), nil
}

// CreateQP makes a QP and maps its queues.
func (Driver) CreateQP(dev provider.Device, init provider.QPInit, create func(provider.UHW) (provider.QPInfo, error)) (provider.SendQueue, provider.RecvQueue, error) {
	var resp abi.RxeCreateQpResp
	info, err := create(provider.UHW{Out: mmap.Bytes(&resp)})
	if err != nil {
		return nil, nil, err
	}
	payload := max(uintptr(info.Cap.MaxSendSGE)*unsafe.Sizeof(abi.RxeSge{}), uintptr(info.Cap.MaxInline))
	sr, err := mapRing(dev, &resp.SqMi, unsafe.Sizeof(abi.RxeSendWqe{})+payload)
	if err != nil {
		return nil, nil, err
	}
	sq, err := newSendQueue(sr, init.Type, info, dev)
	if err != nil {
		return nil, nil, err
	}
	if init.SharedRecv {
		return sq, nil, nil
	}
	payload = uintptr(info.Cap.MaxRecvSGE) * unsafe.Sizeof(abi.RxeSge{})
	rr, err := mapRing(dev, &resp.RqMi, unsafe.Sizeof(abi.RxeRecvWqe{})+payload)
	if err != nil {
		sq.Release().Close()
		return nil, nil, err
	}
	return sq, newRecvQueue(rr, info, dev), nil
}

// CreateSRQ makes an SRQ and maps its queue.
func (Driver) CreateSRQ(dev provider.Device, create func(provider.UHW) (provider.SRQInfo, error)) (provider.RecvQueue, error) {
	var resp abi.RxeCreateSrqResp
	info, err := create(provider.UHW{Out: mmap.Bytes(&resp)})
	if err != nil {
		return nil, err
	}
	info.Num = resp.SrqNum
	r, err := mapRing(dev, &resp.Mi, unsafe.Sizeof(abi.RxeRecvWqe{})+uintptr(info.MaxSGE)*unsafe.Sizeof(abi.RxeSge{}))
	if err != nil {
		return nil, err
	}
	return newSRQ(r, info, dev), nil
}

// CreateAH makes an address handle, which requests name by its number.
func (Driver) CreateAH(create func(provider.UHW) error) (uint32, error) {
	var resp abi.RxeCreateAhResp
	err := create(provider.UHW{Out: mmap.Bytes(&resp)})
	return resp.AhNum, err
}

// RegisterMR has nothing to add.
func (Driver) RegisterMR(_ *abi.IbUverbsRegMr, register func(provider.UHW) error) error {
	return register(provider.UHW{})
}
