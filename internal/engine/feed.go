package engine

import (
	"net/netip"
	"unsafe"

	"github.com/goverbs/verbs/abi"
)

// A device model keeps its guest's queues in formats of their own. Its rings here are not shared:
// when one is empty, the engine calls the function Refill of its queue, which translates some of
// the guest's requests. So they are read in their order, when they are needed and under the lock of
// the queue, as hardware does, and the ring may be much smaller than the guest's queue.
//
// An interface that returns one request at a time would have needed a second form of each check in
// load, and memory for inline data and IDs, which the ring is.

const (
	feedSGE    = 64 // of requests from RefillSend: a WQE of mlx5 has at most 63 units of 16 bytes
	feedInline = feedSGE * sgeSize
)

// NextSend returns the request that Publish adds to a send queue: its head, which keeps the values
// of an earlier one, and room for SGEs or inline data. It returns nil if the ring is full. Only
// RefillSend may call it.
func (r *Ring) NextSend() (w *abi.RxeSendWqe, sges []abi.RxeSge, inline []byte) {
	p := r.producer()
	if r.next(p) == r.index {
		return nil, nil, nil
	}
	inline = r.elem(p)[sendWQESize:]
	return r.sendWQE(p), sgesOf(inline), inline
}

// NextRecv is NextSend for a receive queue. Only RefillRecv and Refill may call it.
func (r *Ring) NextRecv() (w *abi.RxeRecvWqe, sges []abi.RxeSge) {
	p := r.producer()
	if r.next(p) == r.index {
		return nil, nil
	}
	return r.recvWQE(p), sgesOf(r.elem(p)[recvWQESize:])
}

// Publish adds the request that NextSend or NextRecv has returned.
func (r *Ring) Publish() { r.prod.Store(r.next(r.producer())) }

func sgesOf(b []byte) []abi.RxeSge {
	return unsafe.Slice((*abi.RxeSge)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/sgeSize)
}

// empty reports whether a ring has no request, after asking refill for some.
func (r *Ring) empty(refill func(*Ring)) bool {
	if r.used() == 0 && refill != nil {
		refill(r)
	}
	return r.used() == 0
}

// Completion is what a CQ with Deliver gets instead of an element of its ring.
type Completion struct {
	abi.IbUverbsWc
	Owner     any // of the QP
	Recv      bool
	Solicited bool       // or failed
	Src       netip.Addr // of a received message
}

// post adds a completion of the QP to a CQ. It reports false if there was no room.
func (qp *QP) post(cq *CQ, wc *abi.IbUverbsWc, solicited, recv bool) bool {
	if cq.deliver == nil {
		return cq.post(wc, solicited)
	}
	c := Completion{IbUverbsWc: *wc, Owner: qp.init.Owner, Recv: recv, Solicited: solicited}
	if recv {
		c.Src = qp.responder.src
	}
	return cq.deliver(c)
}
