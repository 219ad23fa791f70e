package rxe

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/provider"
)

// verbs.WC is laid out as struct ib_uverbs_wc; the size is checked here,
// the fields by a test.
var _ [unsafe.Sizeof(verbs.WC{})]byte = [unsafe.Sizeof(abi.IbUverbsWc{})]byte{}

// CompletionQueue is an rxe CQ; see [SendQueue] for why it is exported.
type CompletionQueue struct {
	dev *provider.Device
	provider.Gate
	ring   ring
	cons   uint32 // ours; the shared word is its copy
	prod   uint32 // the kernel's, as last read
	notify provider.Notify
}

func newCompletionQueue(r ring, n provider.Notify, dev *provider.Device, single bool) *CompletionQueue {
	return &CompletionQueue{Gate: provider.Gate{SingleThreaded: single}, dev: dev, ring: r, cons: r.LoadConsumer(), prod: r.LoadProducer(), notify: n}
}

// Poll implements [provider.CompletionQueue].
func (q *CompletionQueue) Poll(wcs []verbs.WC) int {
	q.Lock() // nothing below panics, and a deferred call would take longer
	n := q.Available(len(wcs))
	if n > 0 {
		q.Take(wcs[:n])
	} else {
		q.Unlock()
	}
	return n
}

// Available returns how many completions there are, at most most. The caller holds the
// lock. It reads the kernel's index, at the cost of a cache miss, only if the known
// completions are not enough.
func (q *CompletionQueue) Available(most int) int {
	if q.Closed {
		return 0
	}
	n := int(q.ring.Used(q.prod, q.cons))
	if n < most {
		q.prod = q.ring.LoadProducer()
		n = int(q.ring.Used(q.prod, q.cons))
	}
	return min(n, most)
}

// HasCompletions implements [provider.Peeker].
func (q *CompletionQueue) HasCompletions() bool {
	q.Lock()
	defer q.Unlock()
	return q.Available(1) > 0
}

// Take fills wcs with completions that are available, and unlocks the queue.
func (q *CompletionQueue) Take(wcs []verbs.WC) {
	slots, cons := q.ring.Slots, q.cons
	for i := range wcs {
		wcs[i] = *(*verbs.WC)(slots.Slot(cons))
		if wcs[i].Flags&kernelWithInv != 0 {
			wcs[i].Flags = wcs[i].Flags&^kernelWithInv | verbs.WCWithInv
		}
		cons = slots.Next(cons)
	}
	q.cons = cons
	q.ring.StoreConsumer(cons)
	q.Unlock()
}

// Detach implements [provider.Detacher]. Like the kernel, it drops what the queue has no room for.
func (q *CompletionQueue) Detach(wcs []verbs.WC) {
	q.Lock()
	defer q.Unlock()
	if q.Closed {
		return
	}
	prod := q.ring.LoadProducer()
	for i := range wcs[:min(len(wcs), int(q.ring.Free(prod, q.cons)))] {
		*(*verbs.WC)(q.ring.Slot(prod)) = wcs[i]
		prod = q.ring.Next(prod)
	}
	q.ring.StoreProducer(prod)
}

// kernelWithInv is IB_WC_WITH_INVALIDATE of the kernel's internal enum ib_wc_flags, which
// rxe puts into CQEs. It differs from the uAPI's value, WCWithInv.
const kernelWithInv verbs.WCFlags = 1 << 2

// Arm implements [provider.CompletionQueue].
func (q *CompletionQueue) Arm(solicitedOnly bool) error {
	q.Lock()
	defer q.Unlock()
	if q.Closed {
		return q.Err()
	}
	return q.notify.Arm(solicitedOnly)
}

// Cap implements [provider.CompletionQueue].
func (q *CompletionQueue) Cap() int {
	q.Lock()
	defer q.Unlock()
	return q.ring.Cap()
}

// Resize implements [provider.Resizer].
func (q *CompletionQueue) Resize(size int, resize func(int, provider.UHW) error) error {
	q.Lock()
	defer q.Unlock()
	if q.Closed {
		return q.Err()
	}
	var resp abi.RxeResizeCqResp
	if err := resize(size, provider.UHW{Out: mmap.Bytes(&resp)}); err != nil {
		return err
	}
	if err := q.ring.remap(q.dev, &resp.Mi, unsafe.Sizeof(abi.IbUverbsWc{})); err != nil {
		q.Fail(fmt.Errorf("resized, but map: %w", err))
		return q.Err()
	}
	q.cons, q.prod = q.ring.LoadConsumer(), q.ring.LoadProducer()
	return nil
}

// Recycle implements [provider.CompletionQueue].
func (q *CompletionQueue) Recycle() provider.CompletionQueue {
	q.Stop(true)
	q.ring.StoreConsumer(q.ring.LoadProducer())
	next := newCompletionQueue(q.ring, q.notify, q.dev, q.SingleThreaded)
	if err := q.Err(); errors.Is(err, verbs.ErrQueueFailed) {
		next.Fail(err)
	}
	return next
}

// Release implements [provider.Queue].
func (q *CompletionQueue) Release() {
	q.Stop(true)
	q.notify.Close()
	q.ring.region.Close()
}
