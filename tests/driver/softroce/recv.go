package softroce

import (
	"runtime"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/provider"
)

// recvQueue is the receive queue of a QP, or an SRQ.
type recvQueue struct {
	provider.Requests
	ring
	dev    *provider.Device
	handle uint32
}

// Post implements [provider.RecvQueue]. There is no doorbell: the kernel looks for receives
// when messages arrive.
func (q *recvQueue) Post(wrs []verbs.RecvWR) (n int, err error) {
	q.Lock()
	defer q.Unlock()
	if q.Closed {
		return 0, q.Err()
	}
	for ; n < len(wrs); n++ {
		wr := &wrs[n]
		if q.State == verbs.StateReset || q.full(q.index) || len(wr.SGL) > q.MaxSGE {
			err = q.Refuse(wrs, n, int(q.mask))
			break
		}
		slot := q.slot(q.index)
		length := putSGL(slot, recvSize, wr.SGL)
		mmap.Slice[abi.RxeRecvWqe](slot, 0, 1)[0] = abi.RxeRecvWqe{
			WrId: wr.ID,
			Dma:  abi.RxeDmaInfo{Length: uint32(length), Resid: uint32(length), NumSge: uint32(len(wr.SGL))},
		}
		q.index = q.advance(q.index)
	}
	q.publish()
	if n > 0 && q.State == verbs.StateErr { // no message will arrive that makes the kernel look
		if ferr := provider.FlushQP(q.dev, q.handle); ferr != nil {
			q.Fail(ferr)
		}
	}
	return n, err
}

// Resize implements [provider.Resizer]. rxe writes its response to an address in the command.
func (q *recvQueue) Resize(size int, resize func(int, provider.UHW) error) error {
	q.Lock()
	defer q.Unlock()
	if q.Closed {
		return q.Err()
	}
	var pin runtime.Pinner
	defer pin.Unpin()
	mi := new(abi.Mminfo)
	cmd := abi.RxeModifySrqCmd{MmapInfoAddr: mmap.Pin(&pin, mmap.Bytes(mi))}
	if err := resize(size, provider.UHW{In: mmap.Bytes(&cmd)}); err != nil {
		return err
	}
	if err := q.replace(q.dev, mi, recvSize+q.MaxSGE*sgeSize); err != nil {
		q.Fail(err)
		return q.Err()
	}
	return nil
}

// SetLimit implements [provider.RecvQueue].
func (q *recvQueue) SetLimit(_ int, set func(provider.UHW) error) error {
	return set(provider.UHW{In: mmap.Bytes(new(abi.RxeModifySrqCmd))})
}

// Cap implements [provider.RecvQueue].
func (q *recvQueue) Cap() int {
	q.Lock()
	defer q.Unlock()
	return int(q.mask)
}

// Release implements [provider.Queue].
func (q *recvQueue) Release() {
	q.Stop(true)
	live.Add(-1)
	q.region.Close()
}
