package rxe

import (
	"sync"
	"unsafe"

	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/sys"
	"github.com/goverbs/verbs/provider"
)

// RecvQueue is an rxe QP's receive queue; see [SendQueue] for why it is
// exported.
type RecvQueue struct {
	mu     sync.Mutex
	ring   ring
	prod   uint32
	qpn    uint32
	maxSGE int
	maxMsg uint64
	state  provider.QPState
	closed bool
}

func newRecvQueue(r ring, info provider.QPInfo, dev provider.Device) *RecvQueue {
	return &RecvQueue{ring: r, prod: r.LoadProducer(), qpn: info.QPNum, maxSGE: int(info.Cap.MaxRecvSGE), maxMsg: uint64(dev.MaxMessage)}
}

// Post implements [provider.RecvQueue].
func (q *RecvQueue) Post(wrs []provider.RecvWR) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return 0, sys.ErrClosed
	}
	var (
		n    int
		err  error
		prod = q.prod
		free = q.ring.Free(prod, q.ring.LoadConsumer())
	)
	if q.state == provider.StateReset {
		err = provider.ErrState
	}
	for ; err == nil && n < len(wrs); n++ {
		if free == 0 {
			err = provider.ErrQueueFull
			break
		}
		if err = q.encode((*abi.RxeRecvWqe)(q.ring.Slot(prod)), &wrs[n]); err != nil {
			break
		}
		prod = q.ring.Next(prod)
		free--
	}
	if n > 0 {
		q.prod = prod
		q.ring.StoreProducer(prod)
	}
	if err != nil && err != provider.ErrQueueFull && len(wrs) > 0 {
		err = &provider.PostError{Op: "post recv", QPNum: q.qpn, Index: n, ID: wrs[n].ID, Err: err}
	}
	return n, err
}

func (q *RecvQueue) encode(wqe *abi.RxeRecvWqe, wr *provider.RecvWR) error {
	if len(wr.SGL) > q.maxSGE {
		return provider.ErrTooManySGEs
	}
	length := copySGL(unsafe.Add(unsafe.Pointer(wqe), unsafe.Sizeof(*wqe)), wr.SGL)
	if length > q.maxMsg {
		return provider.ErrMessageTooLong
	}
	wqe.WrId = wr.ID
	setDMA(&wqe.Dma, length, len(wr.SGL))
	return nil
}

// SetState implements [provider.RecvQueue].
func (q *RecvQueue) SetState(s provider.QPState) {
	q.mu.Lock()
	q.state = s
	q.mu.Unlock()
}

// Stop implements [provider.Queue].
func (q *RecvQueue) Stop(stop bool) {
	q.mu.Lock()
	q.closed = stop
	q.mu.Unlock()
}

// Close implements [provider.Queue].
func (q *RecvQueue) Close() error {
	q.Stop(true)
	return q.ring.region.Close()
}
