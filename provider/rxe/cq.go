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

// verbs.WC begins as struct ib_uverbs_wc does: the size is checked here, the fields by a test.
var _ [unsafe.Offsetof(verbs.WC{}.Timestamp)]byte = [unsafe.Sizeof(abi.IbUverbsWc{})]byte{}

// completionQueue is an rxe CQ.
type completionQueue struct {
	provider.Completions
	dev    *provider.Device
	ring   ring // None is the consumer index, the shared word its copy
	notify provider.Notify
}

func newCompletionQueue(r ring, n provider.Notify, dev *provider.Device, single bool) *completionQueue {
	q := &completionQueue{dev: dev, notify: n}
	q.SingleThreaded, q.Mask = single, ^uint32(0)
	q.use(r)
	return q
}

// use makes r the ring. It is empty as long as the kernel's index is ours.
func (q *completionQueue) use(r ring) {
	q.ring, q.Word, q.None = r, r.Producer(), r.LoadConsumer()
}

// Take implements [provider.CompletionQueue].
func (q *completionQueue) Take(wcs []verbs.WC) int {
	slots, cons := q.ring.Slots, q.None
	n := min(len(wcs), int(slots.Used(q.ring.Producer().Load(), cons)))
	for i := range wcs[:n] {
		wc := &wcs[i]
		*(*abi.IbUverbsWc)(unsafe.Pointer(wc)) = *(*abi.IbUverbsWc)(slots.Slot(cons + uint32(i)))
		wc.Timestamp = 0
		if wc.Flags&kernelWithInv != 0 {
			wc.Flags = wc.Flags&^kernelWithInv | verbs.WCWithInv
		}
	}
	q.None = slots.After(cons, uint32(n))
	q.ring.StoreConsumer(q.None)
	q.Unlock()
	return n
}

// kernelWithInv is IB_WC_WITH_INVALIDATE of the kernel's internal enum ib_wc_flags, which
// rxe puts into CQEs. It differs from the uAPI's value, WCWithInv.
const kernelWithInv verbs.WCFlags = 1 << 2

// Arm implements [provider.CompletionQueue].
func (q *completionQueue) Arm(solicitedOnly bool) error {
	q.Lock()
	defer q.Unlock()
	if q.Closed {
		return q.Err()
	}
	return q.notify.Arm(solicitedOnly)
}

// Cap implements [provider.CompletionQueue].
func (q *completionQueue) Cap() int {
	q.Lock()
	defer q.Unlock()
	return q.ring.Cap()
}

// Resize implements [provider.Resizer].
func (q *completionQueue) Resize(size int, resize func(int, provider.UHW) error) error {
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
		q.Fail(fmt.Errorf("map the resized queue: %w", err))
		return q.Err()
	}
	q.use(q.ring)
	return nil
}

// Recycle implements [provider.CompletionQueue].
func (q *completionQueue) Recycle() provider.CompletionQueue {
	q.Stop(true)
	q.ring.StoreConsumer(q.ring.LoadProducer())
	next := newCompletionQueue(q.ring, q.notify, q.dev, q.SingleThreaded)
	if err := q.Err(); errors.Is(err, verbs.ErrQueueFailed) {
		next.Fail(err)
	}
	return next
}

// Release implements [provider.Queue].
func (q *completionQueue) Release() {
	q.Stop(true)
	q.notify.Close()
	q.ring.region.Close()
}
