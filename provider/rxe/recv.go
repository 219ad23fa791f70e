package rxe

import (
	"fmt"
	"runtime"
	"unsafe"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/provider"
)

// recvQueue is the receive queue of a QP, or an SRQ.
type recvQueue struct {
	provider.Requests
	dev    *provider.Device
	ring   ring
	prod   uint32
	handle uint32 // of the QP
}

func newRecvQueue(r ring, init *provider.QPInit, info provider.QPInfo, dev *provider.Device) *recvQueue {
	q := &recvQueue{dev: dev, ring: r, prod: r.LoadProducer(), handle: info.Handle}
	q.InitReceives(dev, init, info)
	return q
}

func newSRQ(r ring, num uint32, info provider.SRQInfo, dev *provider.Device) *recvQueue {
	q := &recvQueue{dev: dev, ring: r, prod: r.LoadProducer()}
	q.InitShared(dev, num, info.MaxSGE)
	return q
}

// Post implements [provider.RecvQueue].
func (q *recvQueue) Post(wrs []verbs.RecvWR) (int, error) {
	q.Lock() // nothing below panics, and a deferred call would take longer
	slots, prod := q.ring.Slots, q.prod
	free := 0
	if !q.Closed && q.State != verbs.StateReset {
		free = int(slots.Free(prod, q.ring.LoadConsumer()))
	}
	n := 0
	for ; n < len(wrs) && n < free; n++ {
		wr := &wrs[n]
		if len(wr.SGL) > q.MaxSGE {
			break
		}
		wqe := (*abi.RxeRecvWqe)(slots.Slot(prod))
		length := copySGL(unsafe.Add(unsafe.Pointer(wqe), unsafe.Sizeof(*wqe)), wr.SGL)
		if length > q.MaxMessage {
			break
		}
		wqe.WrId = wr.ID
		setDMA(&wqe.Dma, length, len(wr.SGL))
		prod = slots.Next(prod)
	}
	if n > 0 {
		q.prod = prod
		q.ring.StoreProducer(prod)
	}
	var err error
	if n < len(wrs) || q.Closed || q.State == verbs.StateErr {
		err = q.postSlow(wrs, n)
	}
	q.Unlock()
	return n, err
}

// postSlow handles the rare cases after n requests have been posted, and returns the error
// for the others.
func (q *recvQueue) postSlow(wrs []verbs.RecvWR, n int) error {
	if q.Closed {
		return q.Err()
	}
	if n > 0 && q.State == verbs.StateErr {
		if err := q.flush(); err != nil {
			q.Fail(fmt.Errorf("flush receives of QP %d: %w", q.Num, err))
		}
	}
	if n == len(wrs) {
		return nil
	}
	return q.Refuse(wrs, n, q.ring.Cap())
}

// flush makes the kernel complete the receives of a failed QP: it looks at them only when
// a message comes, and none will come.
func (q *recvQueue) flush() error { return provider.FlushQP(q.dev, q.handle) }

// Flush implements [provider.Flusher].
func (q *recvQueue) Flush() (wcs []verbs.WC) {
	defer q.Unlock()
	if !q.Lose() {
		return nil
	}
	for i := q.ring.LoadConsumer(); i != q.prod; i = q.ring.Next(i) {
		wqe := (*abi.RxeRecvWqe)(q.ring.Slot(i))
		wcs = append(wcs, verbs.WC{ID: wqe.WrId, Status: verbs.WCFlushErr, Opcode: verbs.WCRecv, QPNum: q.Num})
	}
	q.ring.StoreConsumer(q.prod)
	return wcs
}

// Cap implements [provider.RecvQueue].
func (q *recvQueue) Cap() int {
	q.Lock()
	defer q.Unlock()
	return q.ring.Cap()
}

// Resize implements [provider.Resizer] for an SRQ. The kernel's driver writes its answer
// to an address in the request, not to the verb's response.
func (q *recvQueue) Resize(size int, resize func(int, provider.UHW) error) error {
	q.Lock()
	defer q.Unlock()
	if q.Closed {
		return q.Err()
	}
	var pin runtime.Pinner
	defer pin.Unpin()
	var mi abi.Mminfo
	cmd := abi.RxeModifySrqCmd{MmapInfoAddr: mmap.Pin(&pin, mmap.Bytes(&mi))}
	if err := resize(size, provider.UHW{In: mmap.Bytes(&cmd)}); err != nil || mi.Size == 0 {
		return err
	}
	elem := unsafe.Sizeof(abi.RxeRecvWqe{}) + uintptr(q.MaxSGE)*unsafe.Sizeof(abi.RxeSge{})
	if err := q.ring.remap(q.dev, &mi, elem); err != nil {
		q.Fail(fmt.Errorf("map the resized queue: %w", err))
		return q.Err()
	}
	q.prod = q.ring.LoadProducer()
	return nil
}

// SetLimit implements [provider.RecvQueue] for an SRQ. The kernel's driver requires the
// structure although it writes no answer.
func (q *recvQueue) SetLimit(_ int, set func(provider.UHW) error) error {
	var cmd abi.RxeModifySrqCmd
	return set(provider.UHW{In: mmap.Bytes(&cmd)})
}

// Release implements [provider.Queue].
func (q *recvQueue) Release() {
	q.Stop(true)
	q.ring.region.Close()
}
