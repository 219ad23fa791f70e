package engine

import (
	"container/heap"
	"math"
	"sync"
	"time"
)

// timers contains the QPs that wait for a time. Times are on the device's clock.
//
// A QP moves its deadlines with every packet, but its timer only when it has to fire
// earlier: a timer that fires too early is set again.
type timers struct {
	mu     sync.Mutex
	heap   timerHeap
	closed bool
	wake   chan struct{}
}

// timer is the part of a QP that timers has.
type timer struct {
	at  time.Duration
	pos int // in the heap, plus 1; 0 if the timer is not set
}

type timerHeap []*QP

func (h timerHeap) Len() int           { return len(h) }
func (h timerHeap) Less(i, j int) bool { return h[i].timer.at < h[j].timer.at }
func (h timerHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].timer.pos, h[j].timer.pos = i+1, j+1
}
func (h *timerHeap) Push(x any) {
	qp := x.(*QP)
	*h = append(*h, qp)
	qp.timer.pos = len(*h)
}
func (h *timerHeap) Pop() any {
	last := len(*h) - 1
	qp := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	qp.timer.pos = 0
	return qp
}

// set makes the timer of a QP fire at a time or earlier.
func (t *timers) set(qp *QP, at time.Duration) {
	t.mu.Lock()
	switch {
	case t.closed || qp.timer.pos > 0 && qp.timer.at <= at:
	case qp.timer.pos > 0:
		qp.timer.at = at
		heap.Fix(&t.heap, qp.timer.pos-1)
	default:
		qp.timer.at = at
		heap.Push(&t.heap, qp)
	}
	first := len(t.heap) > 0 && t.heap[0] == qp
	t.mu.Unlock()
	if first {
		t.signal()
	}
}

func (t *timers) remove(qp *QP) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.closed && qp.timer.pos > 0 {
		heap.Remove(&t.heap, qp.timer.pos-1)
	}
}

func (t *timers) signal() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// forever is how long to wait if no timer is set.
const forever time.Duration = math.MaxInt64

// next removes and returns a QP whose time has come. Otherwise it returns how long to wait.
// It reports false if the device is closed.
func (t *timers) next(now time.Duration) (qp *QP, wait time.Duration, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.closed:
		return nil, 0, false
	case len(t.heap) == 0:
		return nil, forever, true
	case t.heap[0].timer.at > now:
		return nil, t.heap[0].timer.at - now, true
	}
	return heap.Pop(&t.heap).(*QP), 0, true
}

func (t *timers) close() {
	t.mu.Lock()
	t.closed = true
	t.heap = nil
	t.mu.Unlock()
	t.signal()
}

// expire serves the QPs whose time has come, and returns when the next one has to be.
func (d *Device) expire() (wait time.Duration, ok bool) {
	for {
		qp, wait, ok := d.timers.next(d.now())
		if qp == nil {
			return wait, ok
		}
		qp.lock()
		qp.requester.expired(d.now())
		qp.unlock()
	}
}
