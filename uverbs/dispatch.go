package uverbs

import (
	"slices"
	"sync"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/provider"
	"github.com/goverbs/verbs/provider/mlx5"
	"github.com/goverbs/verbs/provider/rxe"
	"github.com/goverbs/verbs/provider/siw"
)

// builtin contains the drivers of this package. A registered driver for the same device
// driver replaces the built-in one.
var builtin = []provider.Driver{rxe.Driver{}, siw.Driver{}, mlx5.Driver{}}

func drivers() []provider.Driver {
	all := provider.Drivers()
	for _, b := range builtin {
		if !slices.ContainsFunc(all, func(d provider.Driver) bool { return d.ID() == b.ID() }) {
			all = append(all, b)
		}
	}
	return all
}

// Arguments of interface methods escape to the heap, and posting and polling must not
// allocate. So queues of the built-in drivers are called by their concrete types. Those
// of other drivers are called through the interface, with copies of the arguments: the
// arguments themselves would then escape with every driver.

// sendQueue is a send queue. If its driver is built in, one of the pointers is set.
type sendQueue struct {
	provider.SendQueue
	rxe  *rxe.SendQueue
	siw  *siw.SendQueue
	mlx5 *mlx5.SendQueue
}

func newSendQueue(q provider.SendQueue) sendQueue {
	s := sendQueue{SendQueue: q}
	s.rxe, _ = q.(*rxe.SendQueue)
	s.siw, _ = q.(*siw.SendQueue)
	s.mlx5, _ = q.(*mlx5.SendQueue)
	return s
}

// recvQueue is the receive queue of a QP, or an SRQ.
type recvQueue struct {
	provider.RecvQueue // nil for a QP with an SRQ
	rxe                *rxe.RecvQueue
	siw                *siw.RecvQueue
	mlx5               *mlx5.RecvQueue
}

func newRecvQueue(q provider.RecvQueue) recvQueue {
	r := recvQueue{RecvQueue: q}
	r.rxe, _ = q.(*rxe.RecvQueue)
	r.siw, _ = q.(*siw.RecvQueue)
	r.mlx5, _ = q.(*mlx5.RecvQueue)
	return r
}

// completionQueue is a CQ.
type completionQueue struct {
	provider.CompletionQueue
	rxe  *rxe.CompletionQueue
	siw  *siw.CompletionQueue
	mlx5 *mlx5.CompletionQueue
}

func newCompletionQueue(q provider.CompletionQueue) completionQueue {
	c := completionQueue{CompletionQueue: q}
	c.rxe, _ = q.(*rxe.CompletionQueue)
	c.siw, _ = q.(*siw.CompletionQueue)
	c.mlx5, _ = q.(*mlx5.CompletionQueue)
	return c
}

// PostSend posts send requests in order and rings one doorbell, its only system call
// (which siw often does without). It returns how many requests were posted: these will
// complete. If not all were posted, the error is [verbs.ErrQueueFull], [verbs.ErrClosed],
// [verbs.ErrQueueFailed] or a [*verbs.PostError] for the first that was not. If the
// doorbell fails, the QP is moved to the error state, where all requests complete.
func (q *QP) PostSend(wrs ...verbs.SendWR) (int, error) {
	switch {
	case q.send.rxe != nil:
		return q.send.rxe.Post(wrs)
	case q.send.siw != nil:
		return q.send.siw.Post(wrs)
	case q.send.mlx5 != nil:
		return q.send.mlx5.Post(wrs)
	}
	return postSend(q.send.SendQueue, wrs)
}

// PostRecv posts receive requests in order, without a system call, and returns how many
// were posted. Errors are as for [QP.PostSend].
func (q *QP) PostRecv(wrs ...verbs.RecvWR) (int, error) {
	switch {
	case q.recv.rxe != nil:
		return q.recv.rxe.Post(wrs)
	case q.recv.siw != nil:
		return q.recv.siw.Post(wrs)
	case q.recv.mlx5 != nil:
		return q.recv.mlx5.Post(wrs)
	case q.recv.RecvQueue != nil:
		return postRecv(q.recv.RecvQueue, wrs)
	}
	return 0, q.obj.fail("post recv on", verbs.ErrSRQ)
}

// PostRecv posts receive requests as [QP.PostRecv] does.
func (s *SRQ) PostRecv(wrs ...verbs.RecvWR) (int, error) {
	switch {
	case s.queue.rxe != nil:
		return s.queue.rxe.Post(wrs)
	case s.queue.siw != nil:
		return s.queue.siw.Post(wrs)
	case s.queue.mlx5 != nil:
		return s.queue.mlx5.Post(wrs)
	}
	return postRecv(s.queue.RecvQueue, wrs)
}

// Poll moves up to len(wcs) completions into wcs and returns how many. It never waits. A
// closed CQ has no completions.
func (q *CQ) Poll(wcs []verbs.WC) int {
	// Polls of an empty queue are short and frequent. All calls on that path are inlined,
	// so nothing has to be saved across a call.
	if q := q.queue.rxe; q != nil && q.TryLock() {
		if n := q.Available(len(wcs)); n > 0 {
			q.Take(wcs[:n])
			return n
		}
		q.Unlock()
		return 0
	}
	if q := q.queue.siw; q != nil && q.TryLock() {
		if q.Available() {
			return q.Take(wcs)
		}
		q.Unlock()
		return 0
	}
	if q := q.queue.mlx5; q != nil {
		if owned := q.Owned(); owned && !q.Available() {
			return 0
		} else if q.TryLock() {
			if owned || q.Available() {
				return q.Take(wcs)
			}
			q.Unlock()
			return 0
		}
	}
	return q.poll(wcs)
}

func (q *CQ) poll(wcs []verbs.WC) int {
	switch {
	case q.queue.rxe != nil:
		return q.queue.rxe.Poll(wcs)
	case q.queue.siw != nil:
		return q.queue.siw.Poll(wcs)
	case q.queue.mlx5 != nil:
		return q.queue.mlx5.Poll(wcs)
	}
	return poll(q.queue.CompletionQueue, wcs)
}

// HoldSends makes the QP's first PostSend wait for a message from the peer, at most until
// t, on devices where the accepting side must not send first (iWARP). It has no effect on
// other devices, or on QPs with an SRQ.
func (q *QP) HoldSends(t time.Time) {
	if h, ok := q.send.SendQueue.(provider.Holder); ok {
		h.Hold(t)
	}
}

// batch is the memory for copies of requests and completions.
type batch struct {
	send  []verbs.SendWR
	recv  []verbs.RecvWR
	sges  []verbs.SGE
	data  []byte
	binds []verbs.MWBind
	wcs   [32]verbs.WC
}

var batches = sync.Pool{New: func() any { return new(batch) }}

// free returns a batch to the pool, unless it has grown long.
func (b *batch) free() {
	const maxPooled = 1 << 16
	if cap(b.data) <= maxPooled && cap(b.sges) <= maxPooled && cap(b.send) <= maxPooled && cap(b.recv) <= maxPooled {
		batches.Put(b)
	}
}

func postSend(q provider.SendQueue, wrs []verbs.SendWR) (int, error) {
	b := batches.Get().(*batch)
	n, err := q.Post(b.copySend(wrs))
	b.free()
	return n, err
}

func postRecv(q provider.RecvQueue, wrs []verbs.RecvWR) (int, error) {
	b := batches.Get().(*batch)
	n, err := q.Post(b.copyRecv(wrs))
	b.free()
	return n, err
}

func poll(q provider.CompletionQueue, wcs []verbs.WC) (n int) {
	b := batches.Get().(*batch)
	for n < len(wcs) {
		part := b.wcs[:min(len(wcs)-n, len(b.wcs))]
		got := q.Poll(part)
		n += copy(wcs[n:], part[:got])
		if got < len(part) {
			break
		}
	}
	b.free()
	return n
}

// copySend copies requests and everything they point to. It copies each field by name: a
// request that is copied as a whole would escape.
func (b *batch) copySend(wrs []verbs.SendWR) []verbs.SendWR {
	sges, data, binds := 0, 0, 0
	for i := range wrs {
		wr := &wrs[i]
		sges += len(wr.SGL)
		data += len(wr.Inline)
		for _, d := range wr.InlineList {
			data += len(d)
		}
		if wr.Bind != nil {
			binds++
		}
	}
	// With enough capacity, append does not move the data.
	b.send, b.sges = slices.Grow(b.send[:0], len(wrs)), slices.Grow(b.sges[:0], sges)
	b.data, b.binds = slices.Grow(b.data[:0], data), slices.Grow(b.binds[:0], binds)
	for i := range wrs {
		wr := &wrs[i]
		c := verbs.SendWR{
			ID: wr.ID, Opcode: wr.Opcode, Flags: wr.Flags, SGL: b.copySGL(wr.SGL), Imm: wr.Imm,
			RemoteAddr: wr.RemoteAddr, RKey: wr.RKey, InvalidateRKey: wr.InvalidateRKey,
			CompareAdd: wr.CompareAdd, Swap: wr.Swap, To: wr.To, Flush: wr.Flush,
		}
		start := len(b.data)
		b.data = append(b.data, wr.Inline...)
		for _, d := range wr.InlineList {
			b.data = append(b.data, d...)
		}
		if end := len(b.data); end > start {
			c.Inline = b.data[start:end:end]
		}
		if wr.Bind != nil {
			b.binds = append(b.binds, *wr.Bind)
			c.Bind = &b.binds[len(b.binds)-1]
		}
		b.send = append(b.send, c)
	}
	return b.send
}

func (b *batch) copyRecv(wrs []verbs.RecvWR) []verbs.RecvWR {
	sges := 0
	for i := range wrs {
		sges += len(wrs[i].SGL)
	}
	b.recv, b.sges = slices.Grow(b.recv[:0], len(wrs)), slices.Grow(b.sges[:0], sges)
	for i := range wrs {
		b.recv = append(b.recv, verbs.RecvWR{ID: wrs[i].ID, SGL: b.copySGL(wrs[i].SGL)})
	}
	return b.recv
}

func (b *batch) copySGL(sgl []verbs.SGE) []verbs.SGE {
	if len(sgl) == 0 {
		return nil
	}
	start := len(b.sges)
	b.sges = append(b.sges, sgl...)
	return b.sges[start:len(b.sges):len(b.sges)]
}
