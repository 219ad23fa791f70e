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
	producer
	dev       *provider.Device
	handle    uint32 // of the QP
	maxSimple uint32 // longest receive with one SGE; 0 if there are none
}

func newRecvQueue(r ring, init *provider.QPInit, info provider.QPInfo, dev *provider.Device) *recvQueue {
	q := &recvQueue{dev: dev, handle: info.Handle}
	q.InitReceives(dev, init, info)
	return q.start(r)
}

func newSRQ(r ring, num uint32, info provider.SRQInfo, dev *provider.Device) *recvQueue {
	q := &recvQueue{dev: dev}
	q.InitShared(dev, num, info.MaxSGE)
	return q.start(r)
}

func (q *recvQueue) start(r ring) *recvQueue {
	q.use(r)
	q.maxSimple = q.MaxOneSGE()
	return q
}

// Post implements [provider.RecvQueue]. Receives with one SGE, which are the most frequent, are
// written without a call.
func (q *recvQueue) Post(wrs []verbs.RecvWR) (n int, err error) {
	q.Lock() // nothing below panics, and a deferred call would take longer
	room, slots, prod := 0, q.Slots, q.prod
	if q.State != verbs.StateReset && q.State != verbs.StateErr && !q.Closed {
		room = q.room(len(wrs))
	}
	for ; n < room; n++ {
		wr := &wrs[n]
		if len(wr.SGL) != 1 {
			break
		}
		sge := &wr.SGL[0]
		if sge.Length-1 >= q.maxSimple {
			break
		}
		wqe := (*abi.RxeRecvWqe)(slots.Slot(prod + uint32(n)))
		setDMA(&wqe.Dma, copySGE(unsafe.Add(unsafe.Pointer(wqe), unsafe.Sizeof(*wqe)), sge), 1)
		wqe.WrId = wr.ID
	}
	if n == len(wrs) && n > 0 {
		q.publish(n)
	} else {
		n, err = q.postRest(wrs, n)
	}
	q.Unlock()
	return n, err
}

// postRest posts the receives, of which the first n have been written.
func (q *recvQueue) postRest(wrs []verbs.RecvWR, n int) (int, error) {
	if q.Closed {
		return 0, q.Err()
	}
	for room := q.room(len(wrs)); n < room && q.State != verbs.StateReset && len(wrs[n].SGL) <= q.MaxSGE; n++ {
		wr, wqe := &wrs[n], (*abi.RxeRecvWqe)(q.Slot(q.prod+uint32(n)))
		length := copySGL(unsafe.Add(unsafe.Pointer(wqe), unsafe.Sizeof(*wqe)), wr.SGL)
		if length > q.MaxMessage {
			break
		}
		setDMA(&wqe.Dma, length, len(wr.SGL))
		wqe.WrId = wr.ID
	}
	q.publish(n)
	if n > 0 && q.State == verbs.StateErr {
		if err := q.flush(); err != nil {
			q.Fail(fmt.Errorf("flush receives of QP %d: %w", q.Num, err))
		}
	}
	if n == len(wrs) {
		return n, nil
	}
	return n, q.Refuse(wrs, n, q.ring.Cap())
}

// flush makes the kernel complete the receives of a failed QP, at which it would look only when a
// message arrives.
func (q *recvQueue) flush() error { return provider.FlushQP(q.dev, q.handle) }

// Flush implements [provider.Flusher].
func (q *recvQueue) Flush() (wcs []verbs.WC) {
	defer q.Unlock()
	if !q.Lose() {
		return nil
	}
	for i := q.LoadConsumer(); i != q.prod; i = q.Next(i) {
		wqe := (*abi.RxeRecvWqe)(q.Slot(i))
		wcs = append(wcs, verbs.WC{ID: wqe.WrId, Status: verbs.WCFlushErr, Opcode: verbs.WCRecv, QPNum: q.Num})
	}
	q.StoreConsumer(q.prod)
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
	q.use(q.ring)
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
	q.region.Close()
}
