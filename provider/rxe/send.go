package rxe

import (
	"encoding/binary"
	"sync"
	"unsafe"

	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/sys"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/provider"
)

// SendQueue is an rxe QP's send queue. It is exported so that uverbs can call
// it without an interface, through which the caller's work requests would
// escape to the heap.
type SendQueue struct {
	mu       sync.Mutex
	ring     ring
	doorbell *provider.Doorbell
	prod     uint32 // ours; the shared word is its copy
	qpn      uint32
	maxSGE   int
	maxData  int // inline bytes
	maxMsg   uint64
	state    provider.QPState
	closed   bool
}

func newSendQueue(r ring, info provider.QPInfo, dev provider.Device) *SendQueue {
	return &SendQueue{
		ring: r, doorbell: provider.NewDoorbell(dev.FD, info.Handle), prod: r.LoadProducer(), qpn: info.QPNum,
		maxSGE: int(info.Cap.MaxSendSGE), maxData: int(info.Cap.MaxInline), maxMsg: uint64(dev.MaxMessage),
	}
}

// Post implements [provider.SendQueue].
func (q *SendQueue) Post(wrs []provider.SendWR) (int, error) {
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
	if q.state < provider.StateRTS {
		err = provider.ErrState
	}
	for ; err == nil && n < len(wrs); n++ {
		if free == 0 {
			err = provider.ErrQueueFull
			break
		}
		wr := &wrs[n]
		if err = q.encode((*abi.RxeSendWqe)(q.ring.Slot(prod)), wr); err != nil {
			break
		}
		prod = q.ring.Next(prod)
		free--
	}
	if n > 0 {
		q.prod = prod
		q.ring.StoreProducer(prod)
		if derr := q.doorbell.Ring(); derr != nil {
			return n, q.fail(wrs, n-1, derr)
		}
	}
	if err != nil && err != provider.ErrQueueFull && len(wrs) > 0 {
		err = q.fail(wrs, n, err)
	}
	return n, err
}

func (q *SendQueue) fail(wrs []provider.SendWR, i int, err error) error {
	return &provider.PostError{Op: "post send", QPNum: q.qpn, Index: i, ID: wrs[i].ID, Err: err}
}

// encode writes wr into a free slot. The fields it leaves alone are the
// kernel's scratch space, which the kernel sets before it reads them.
func (q *SendQueue) encode(wqe *abi.RxeSendWqe, wr *provider.SendWR) error {
	switch wr.Opcode {
	case provider.OpSend:
	case provider.OpSendImm:
		binary.BigEndian.PutUint32(mmap.Bytes(wqe.Wr.Ex.ImmData()), wr.Imm)
	case provider.OpRDMAWriteImm:
		binary.BigEndian.PutUint32(mmap.Bytes(wqe.Wr.Ex.ImmData()), wr.Imm)
		fallthrough
	case provider.OpRDMAWrite, provider.OpRDMARead:
		rdma := wqe.Wr.Wr.Rdma()
		rdma.RemoteAddr = wr.RemoteAddr
		rdma.Rkey = wr.RKey
	default:
		return provider.ErrOpcode
	}

	// The payload, or its SGEs, lies right behind the WQE.
	payload := unsafe.Add(unsafe.Pointer(wqe), unsafe.Sizeof(*wqe))
	flags := wr.Flags &^ provider.SendInline
	var length uint64
	numSGE := 0
	if len(wr.Inline) > 0 || len(wr.InlineList) > 0 {
		if len(wr.SGL) > 0 || wr.Opcode == provider.OpRDMARead {
			return provider.ErrInlineSGL
		}
		dst := unsafe.Slice((*byte)(payload), q.maxData)
		n := len(wr.Inline)
		if n > len(dst) {
			return provider.ErrInlineTooLong
		}
		copy(dst, wr.Inline)
		for _, b := range wr.InlineList {
			if len(b) > len(dst)-n {
				return provider.ErrInlineTooLong
			}
			n += copy(dst[n:], b)
		}
		flags |= provider.SendInline
		length = uint64(n)
	} else {
		numSGE = len(wr.SGL)
		if numSGE > q.maxSGE {
			return provider.ErrTooManySGEs
		}
		length = copySGL(payload, wr.SGL)
		if length > q.maxMsg {
			return provider.ErrMessageTooLong
		}
	}

	wqe.Wr.WrId = wr.ID
	wqe.Wr.Opcode = uint32(wr.Opcode)
	wqe.Wr.SendFlags = uint32(flags)
	wqe.Status = 0
	wqe.State = 0 // posted
	wqe.Iova = wr.RemoteAddr
	wqe.HasRdAtomic = 0
	setDMA(&wqe.Dma, length, numSGE)
	return nil
}

// SetState implements [provider.SendQueue].
func (q *SendQueue) SetState(s provider.QPState) {
	q.mu.Lock()
	q.state = s
	q.mu.Unlock()
}

// Stop implements [provider.Queue].
func (q *SendQueue) Stop(stop bool) {
	q.mu.Lock()
	q.closed = stop
	q.mu.Unlock()
}

// Close implements [provider.Queue].
func (q *SendQueue) Close() error {
	q.Stop(true)
	q.doorbell.Close()
	return q.ring.region.Close()
}
